"""docs/performance.md shows committed results, and its script says what is missing."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent


def load_script():
    path = REPO / "scripts/performance_page.py"
    spec = importlib.util.spec_from_file_location("performance_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()


def _spread(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value}


def _system(name, ms):
    return {
        "system": name, "absent": None, "ms_per_token": _spread(ms), "tokens_per_second": 1e3 / ms,
        "first_token_ms": _spread(5.0), "speedup": _spread(2.0 / ms), "num_tokens": 128,
        "load_seconds": 1.0, "compile_seconds": 2.0, "memory_bytes": 1e6, "same_rows": 2,
    }  # fmt: skip


WORKLOAD = {
    "workload": "tiny", "label": "tiny", "forced_alpha": None, "num_rows": 2, "input_tokens": 12,
    "batch_size": 1, "gamma": 3, "stop_below": 0.0, "temperature": 0.0, "dtype": "float32",
    "systems": [
        _system("specdec autoregressive", 2.0), _system("specdec speculative", 1.0),
        {"system": "T5X", "absent": "give --t5x_path"},
    ],
    "breakdown": {
        "drafts": 0.2, "scoring": 1.0, "verification": 0.1, "bookkeeping": 0.1, "block": 1.4,
        "target_encode": 3.0, "draft_encode": 1.0, "target_calls": 10, "explained": 0.9,
        "speculative": 20.0, "block_overhead": 1.17, "cost_ratio": 0.07, "verify_ratio": 1.1,
        "alpha": 0.8, "predicted_speedup": 2.0, "counted_speedup": 1.95, "block_efficiency": 2.5,
        "measured_speedup": 1.9, "plain_step": 1.0, "program_bytes": 6e7, "needed_bytes": 5e7,
        "floor_ratio": 1.1, "decoder_bytes": 4e7, "bandwidth": 5e10,
    },
}  # fmt: skip


def _results(*workloads):
    return {
        "workloads": list(workloads), "device": "2 cores of a CPU", "threads": 2, "repetitions": 5,
        "command": "python scripts/benchmark.py",
    }  # fmt: skip


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A repository with a page of two sections; returns a function that writes results."""
    (tmp_path / "docs/images").mkdir(parents=True)
    page = tmp_path / "docs/performance.md"
    page.write_text("# P\n<!-- one -->\nold\n<!-- /one -->\nkept\n<!-- all -->\n<!-- /all -->\n")
    monkeypatch.setattr(script, "REPO", tmp_path)
    monkeypatch.setattr(script, "PAGE", page)

    def write(name, results):
        path = tmp_path / "results" / f"benchmark_{name}" / "results.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(results))

    return write


def test_the_page_shows_the_committed_results():
    assert script.main(["--check"]) == 0


def test_tables_and_pictures(repo, tmp_path):
    larger = copy.deepcopy(WORKLOAD)
    larger["batch_size"] = 2
    larger["stop_below"] = 0.2
    repo("one", _results(WORKLOAD))
    repo("all", _results(WORKLOAD, larger))
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0
    page = script.PAGE.read_text()
    assert "old" not in page
    assert "kept" in page
    assert "| specdec speculative | 1.000 | 0.900 to 1.100 | 1000 |" in page
    assert "| T5X | absent: give --t5x_path |" in page
    row = "3 | 0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 | 2.00 | 1.95 | 1.90 | 1.17 |"
    assert f"| tiny | {row}" in page
    row = "0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 |  | 1.95 | 1.90 |  |"
    assert f"| tiny | 3, stops below 0.2 | {row}" in page
    assert "![Milliseconds a token, by system](images/performance_one.svg)" in page
    assert "![Tokens a second against batch size](images/performance_all.svg)" in page
    assert script.main(["--check"]) == 0
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "docs/images").iterdir()}
    assert set(pictures) == {"performance_one.svg", "performance_all.svg"}
    script.main([])
    for name, content in pictures.items():
        assert (tmp_path / "docs/images" / name).read_bytes() == content


def test_several_quantities_make_no_picture(repo):
    other = copy.deepcopy(WORKLOAD)
    other |= {"batch_size": 2, "input_tokens": 24}
    assert script.pictures("all", _results(WORKLOAD, other)) == []


def test_missing_results_are_named(repo, capsys):
    repo("one", _results(WORKLOAD))
    before = script.PAGE.read_text()
    assert script.main([]) == 1
    assert "benchmark_all/results.json is missing" in capsys.readouterr().err
    assert script.PAGE.read_text() == before
