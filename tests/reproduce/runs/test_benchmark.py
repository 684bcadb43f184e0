"""Benchmark configurations: all of them are complete, and one runs from file to table."""

from pathlib import Path

import gin
import pytest

from specdec.reproduce.benchmarks.harness import check_systems
from specdec.reproduce.runs.benchmark import main
from specdec.runs import gin_files
from specdec.runs.command_line import Given

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "configs" / "benchmarks").glob("*.gin"))
WORKLOAD = "workload.random_weights"


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "test.tsv").write_text("Hello there.\tHallo.\n" * 64)
    return [f"DATA_DIR = '{tmp_path}'"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_configurations_are_complete(config, pairs, tmp_path):
    given = {
        "DATA_DIR": pairs, "TARGET": ["TARGET = 'quickstart_lm'"],
        "RECORDING": ["RECORDING = 'a.wav'"],
    }  # fmt: skip
    text = config.read_text()
    if "speech.gin" in text:  # It is included.
        text += (ROOT / "configs/benchmarks/speech.gin").read_text()
    bindings = [b for name, some in given.items() if f"{name} = " in text for b in some]
    gin_files.parse([str(config)], bindings, ROOT)
    systems = gin.query_parameter("benchmark.run.systems")
    drafts = any("speculative" in name or "assisted" in name for name in systems)
    for reference in gin.query_parameter("benchmark.run.workloads"):
        for workload in reference.scoped_configurable_fn():
            random = not isinstance(workload.target, str)
            assert workload.forced_alpha is not None or not (random and drafts)
            if len(systems) == 2 or isinstance(workload.target, str):
                check_systems(workload, systems)
    assert config.read_text().startswith("# ")
    assert f"configs/benchmarks/{config.name}" in config.read_text()


def _main(tmp_path, config, *bindings):
    files = [str(ROOT / "configs" / "benchmarks" / config)]
    return main(Given(files, bindings, str(tmp_path / "out"), "test"), ROOT, t5x_path=None)


@pytest.mark.parametrize(
    ("config", "bindings", "message"),
    [
        ("gqu.gin", (), "No config file"),
        ("gpu.gin", ("benchmark.run.threads = 1000",), "threads must be in"),
        ("gpu.gin", (f"{WORKLOAD}.gamma = 0",), "gamma must be in"),
        ("gpu.gin", ('benchmark.run.systems = ("vLLM",)',), "Unknown system 'vLLM'"),
        ("ende_tatoeba_test.gin", (), "DATA_DIR must be set"),
        ("start_lm.gin", (), "TARGET must be set"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, config, bindings, message):
    assert _main(tmp_path, config, *bindings) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert told[-1].startswith("error: ")
    assert message in told[-1]
    assert not (tmp_path / "out" / "results.json").exists()
