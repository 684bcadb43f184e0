"""What the machine says of itself."""

import pytest

from specdec.core import machine


@pytest.fixture
def cpu_info(monkeypatch, tmp_path):
    """Puts a text in the place of /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"

    def say(text):
        path.write_text(text)
        machine.vector_registers.cache_clear()

    monkeypatch.setattr(machine, "Path", lambda _: path)
    yield say
    machine.vector_registers.cache_clear()


@pytest.mark.parametrize(
    ("flags", "registers"),
    [("fpu avx2 fma", 16), ("fpu avx2 avx512f avx512dq", 32), ("fpu avx512dq", 16)],
)
def test_registers(cpu_info, flags, registers):
    cpu_info(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n")
    assert machine.vector_registers() == registers


def test_a_machine_that_says_nothing_is_taken_to_have_16(cpu_info, tmp_path):
    cpu_info("")
    (tmp_path / "cpuinfo").unlink()
    assert machine.vector_registers() == 16


def test_the_device_is_called_by_its_processor(cpu_info):
    cpu_info("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu\n")
    assert machine.device_name().endswith("cores of Some CPU @ 2 GHz")
