"""Systems of the benchmark of recordings: specdec's and transformers' say the same."""

import importlib

import pytest
import soundfile
from small_whisper import RATE, sound

from specdec.reproduce.benchmarks.contract import Workload, WorkloadError
from specdec.reproduce.benchmarks.harness import check_systems
from specdec.reproduce.benchmarks.systems import SYSTEMS

# faster-whisper's windows have 30 s, and so none of a small model's.
NAMES = [name for name, entry in SYSTEMS.items() if entry.listens and entry.exact]
PLAIN = "specdec transcribing"


@pytest.fixture(scope="module")
def workload(directory, tmp_path_factory):
    file = tmp_path_factory.mktemp("sounds") / "sound.wav"
    soundfile.write(file, sound(1.7), RATE, subtype="FLOAT")
    return Workload(
        "sound", str(directory), None, ((),), None, 448, gamma=2, recordings=(str(file),),
        seconds=2.2,
    )  # fmt: skip


def decoded(workload, name):
    entry = SYSTEMS[name]
    module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
    return module.System(workload, entry.method, {"threads": 1}).decode([0], None)


def test_systems_say_the_same(torch, workload):
    expected = decoded(workload, PLAIN)
    assert len(expected[0]) > 5
    for name in NAMES:
        if "overlapping" not in name:
            assert decoded(workload, name) == expected, name


def test_what_is_compared(workload):
    check_systems(workload, NAMES)
    with pytest.raises(WorkloadError, match=f'The first system must be "{PLAIN}"'):
        check_systems(workload, NAMES[1:])
    with pytest.raises(WorkloadError, match="it transcribes, which transformers greedy is not for"):
        check_systems(workload, [PLAIN, "transformers greedy"])
