"""A slice of several hosts: its program is that of as many chips on one host."""

import pytest
from slow import slow
from small_decodes import GAMMA, TARGET, decoder_of, devices_of
from tiny import changed

from specdec.compile import chips, compilers
from specdec.compile.compiling import compile_decode
from specdec.compile.programs import Place
from specdec.compile.report import ProgramReport
from specdec.models.partitioning import DeviceMesh

# Heads, and all else that is cut, divide by 16.
WIDE = changed(TARGET, d_model=1024, num_heads=16, d_ff=2048)
INPUT = 16


@pytest.fixture
def program_of(monkeypatch):
    """A slice's program; with its chips on one host, if that is what is asked for."""

    def make(name, mesh, *, one_host):
        with monkeypatch.context() as patch:
            if one_host:
                patch.setattr(chips.Slice, "host_shape", property(lambda self: self.shape))
            compilers.devices.cache_clear()
            place = Place(chips.find(name), mesh)
            processes = {device.process_index for device in devices_of(place).flat}
            assert len(processes) == (1 if one_host else 4)
            shaped = decoder_of(place, "chain", WIDE)
            return compile_decode(place, *shaped, batch_size=mesh.data, input_len=INPUT)

    yield make
    compilers.devices.cache_clear()


@pytest.mark.parametrize(
    ("name", "data", "model"),
    [("v5e-16", 1, 16), slow("v4-32", 2, 8)],
)
def test_the_program_is_that_of_one_host(program_of, name, data, model):
    mesh = DeviceMesh(data, model)
    several, one = (program_of(name, mesh, one_host=one_host) for one_host in (False, True))
    assert several.text == one.text
    if data > 1:
        return
    # Three sums a layer of the target, one of its embedding, and the logits once.
    report = ProgramReport.of(several, chips.find(name).chip, GAMMA)
    assert sum(report.block.collectives.values()) == 3 + 2
