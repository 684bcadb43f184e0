"""The compilers: wheels that know a kind of device without one."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import os
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
from jax.experimental import topologies

from specdec.compile.chips import Slice

# Variables that the TPU compiler reads on a TPU's host, for a machine that is none.
_TPU_VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_CUDA = "12"
_INSTALL = 'Install what compiles for it: pip install "specdec-jax[compilers]".'


def _wanted() -> dict[str, dict[str, str]]:
    """Packages that compile for each platform, and how their versions begin."""
    requirements = " ".join(metadata.requires("jax") or ())
    libtpu = re.search(r"libtpu\s*==\s*([\d.]+)", requirements)
    cuda = {f"jax-cuda{_CUDA}-plugin": jax.__version__, f"jax-cuda{_CUDA}-pjrt": jax.__version__}
    return {
        "tpu": {"libtpu": libtpu[1] if libtpu else ""},
        "gpu": cuda | {f"nvidia-cuda-nvcc-cu{_CUDA}": ""},
    }


def check(where: Slice) -> None:
    """Raises ValueError unless the wheels that compile for a chip are there, for this JAX."""
    for package, begins in _wanted()[where.chip.platform.name].items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise ValueError(
                f"{package} is not installed, and {where.name} needs it. {_INSTALL}"
            ) from None
        if not found.startswith(begins):
            raise ValueError(
                f"{package} {found} does not go with JAX {jax.__version__}, which needs "
                f"{begins.rstrip('.')}. {_INSTALL}"
            )


@functools.cache
def devices(where: Slice) -> Sequence[Any]:
    """A slice's devices, which can only be compiled for.

    Raises:
      ValueError: see :func:`check`.
    """
    check(where)
    chip = where.chip
    if chip.platform.name == "gpu":
        return _gpus(chip.name)
    for name, value in _TPU_VARIABLES.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {
        "chips_per_host_bounds": (*where.host_shape, 1)[:3],
        "num_slices": 1,
    }
    if chip.cores > 1:  # Both cores of a chip as one device, as JAX has them.
        options["chip_config_name"] = "megacore"
    shape = "x".join(map(str, where.shape))
    found = topologies.get_topology_desc(f"{chip.name}:{shape}", platform="tpu", **options)
    return found.devices[: where.count]


def _gpus(name: str) -> Sequence[Any]:
    """One GPU, described by a file of this package."""
    file = importlib.resources.files("specdec.compile") / f"{name}.txtpb"
    options = {"platform": "cuda", "target_config": file.read_text(), "topology": "1x1x1"}
    jax.local_devices()  # JAX's own are found first, so that none is looked for below.
    try:
        return topologies.get_topology_desc("1x1x1", **options).devices
    except NotImplementedError:
        pass
    # Where there is no GPU the plugin stays out, unless an option forbids it to look for CUDA.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    importlib.import_module(f"jax_plugins.xla_cuda{_CUDA}").initialize()
    return topologies.get_topology_desc("1x1x1", **options).devices
