"""Chips and slices by name, and what is said where they or their compilers are missing."""

import re
from collections import Counter
from importlib import metadata

import jax
import pytest
from small_decodes import devices_of

from specdec.compile import chips, compilers
from specdec.compile.programs import DoesNotFitError, Place, compile_program
from specdec.models.partitioning import DeviceMesh


@pytest.mark.parametrize(
    ("name", "chip", "count", "shape", "hosts"),
    [
        ("v4", "v4", 1, (2, 2, 1), 1), ("v4-16", "v4", 8, (2, 2, 2), 2),
        ("v4-1024", "v4", 512, (8, 8, 8), 128), ("v5p-8", "v5p", 4, (2, 2, 1), 1),
        ("v5e", "v5e", 1, (1, 1), 1), ("v5litepod-8", "v5e", 8, (2, 4), 1),
        ("v5e-16", "v5e", 16, (4, 4), 4), ("v6e-32", "v6e", 32, (4, 8), 8),
    ],
)  # fmt: skip
def test_names_are_googles(name, chip, count, shape, hosts):
    found = chips.find(name)
    assert (found.chip.name, found.count, found.shape) == (chip, count, shape)
    assert found.hosts == hosts
    devices = compilers.devices(found)
    assert len(devices) == count
    assert {device.platform for device in devices} == {"tpu"}
    if count > 1:  # One process a host, with as many chips each.
        each = Counter(device.process_index for device in devices)
        assert each == dict.fromkeys(range(hosts), count // hosts)


def test_what_a_slice_is():
    names = ("v5e-16", "v4-8", "v6e", "h100")
    expected = ["16 x TPU v5e on 4 hosts", "4 x TPU v4", "TPU v6e", "H100"]
    assert [str(chips.find(name)) for name in names] == expected


@pytest.mark.parametrize("name", [
    "v3", "v4-3", "v4-12", "v5e-2", "v6e-512", "h100-8", "v5e-016x", "V4", "", None, 4,
])  # fmt: skip
def test_what_there_is_not(name):
    message = f"is called {re.escape(repr(name))}\\. .*v5p.*h200.*v4-8/16/.*v5e-1/4/8/"
    with pytest.raises(ValueError, match=message):
        chips.find(name)


@pytest.mark.parametrize(
    ("chip", "package"),
    [("v5e", "libtpu"), ("h200", "jax-cuda12-plugin"), ("h100", "nvidia-cuda-nvcc-cu12")],
)
def test_a_wheel_is_missing(monkeypatch, chip, package):
    real = metadata.version

    def version(name):
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ValueError, match=rf"{package} is not .*{chip}.*specdec-jax\[compilers\]"):
        compilers.check(chips.find(chip))


@pytest.mark.parametrize(("chip", "package"), [("v4", "libtpu"), ("h100", "jax-cuda12-pjrt")])
def test_a_wheel_is_of_another_jax(monkeypatch, chip, package):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "0.0.7" if n == package else real(n))
    with pytest.raises(ValueError, match=rf"{package} 0.0.7 .*JAX {jax.__version__}.*compilers"):
        compilers.check(chips.find(chip))


def test_a_mesh_of_more_chips_than_there_are():
    with pytest.raises(ValueError, match=r"2 x 4 .* needs 8 chips, and v4-8 has 4"):
        Place(chips.find("v4-8"), DeviceMesh(2, 4))


def test_a_mesh_leaves_out_a_host():
    """As a run's over several processes, it has all devices; on one host it may have fewer."""
    message = r"1 x 8 .* needs 8 chips, and v5e-16 has 16 on 4 hosts: all .* whose product is 16"
    with pytest.raises(ValueError, match=message):
        Place(chips.find("v5e-16"), DeviceMesh(1, 8))
    assert devices_of(Place(chips.find("v5e-8"), DeviceMesh(1, 4))).shape == (1, 4)


def test_a_mesh_that_a_slice_has_no_axes_for():
    message = r"2 x 8 .* cannot be laid over this slice: .* products of those"
    with pytest.raises(ValueError, match=message):
        _ = Place(chips.find("v6e-16"), DeviceMesh(2, 8)).whole
    for data, model in ((4, 4), (1, 16)):
        place = Place(chips.find("v6e-16"), DeviceMesh(data, model))
        assert devices_of(place).shape == (data, model)


@pytest.mark.parametrize("name", ["v5e-16", "v6e-16"])
def test_a_mesh_is_a_ring_through_its_hosts(name):
    """JAX's order, and so a run's: each chip is wired to the next, the last to the first."""
    (ring,) = devices_of(Place(chips.find(name), DeviceMesh(1, 16)))
    for one, after in zip(ring, [*ring[1:], ring[0]], strict=True):
        assert sum(abs(a - b) for a, b in zip(one.coords, after.coords, strict=True)) == 1


@pytest.mark.parametrize(
    ("chip", "sizes"), [("v5e", "96.* GiB .* v5e has 15.75 GiB"), ("h100", "96.* H100 has 74.5")]
)
def test_a_program_that_does_not_fit(chip, sizes):
    large = jax.ShapeDtypeStruct((2**17, 2**17), "bfloat16")
    with pytest.raises(DoesNotFitError, match=f"Does not fit: the program needs {sizes}"):
        compile_program(Place(chips.find(chip)), lambda a, b: a @ b, large, large)
