"""README and docs show committed results, and their script says what is missing."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest

from specdec.studies import scaling
from specdec.studies.benchmarks import plots
from specdec.studies.pages import files as page_files
from specdec.studies.pages import sections as pages
from specdec.studies.pages.tables import render

REPO = Path(__file__).parents[3]
SUMMARY = "results/scaling/summary.json"


def test_the_pages_show_the_committed_results(script):
    """docs/scaling.md: its numbers too are computed again, from shapes and public figures."""
    assert script.main(["--check"]) == 0


def write(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def section(name, text=""):
    return f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n"


RESULT = {
    "gamma": 4,
    "batch_size": 1,
    "dtype": "float32",
    "num_examples": 200,
    "num_tokens": 12345,
    "alpha": 0.8125,
    "acceptance_rate": 0.8,
    "draft_utilization": 0.7,
    "block_efficiency": 3.5,
    "cost_ratio": 0.05,
    "verify_ratio": 1.25,
    "ms_per_token": {"autoregressive": 4.0, "speculative": 2.0},
    "spread": {
        "measured_speedup": {"median": 2.0, "low": 1.9, "high": 2.1},
        "measured_speedup_decoder": {"median": 2.2, "low": 2.1, "high": 2.3},
    },
    "predicted_speedup": 2.3,
    "predicted_speedup_whole": 2.1,
    "predicted_speedup_thm38": 2.6,
    "greedy_mismatches": 1,
    "greedy_mismatches_width_matched": 0,
    "quality": {"bleu": 30.04, "chrf": 50.0},
    "device": "2 cores of a CPU",
}


def table(lines):
    return {row[1]: row[2:-1] for row in (re.split(r" *\| *", line) for line in lines[2:])}


def test_runs_have_a_column_each(tmp_path):
    sampled = {"greedy_mismatches": None, "greedy_mismatches_width_matched": None}
    other = RESULT | sampled | {"quality": None, "spread": None, "alpha": 0.5}
    write(tmp_path, "results/one/results.json", RESULT)
    write(tmp_path, "results/two/results.json", other)
    section = pages.runs({"one": "greedy", "two": "temperature 1"})
    *lines, _, source = render(tmp_path, section).splitlines()
    assert lines[0] == "|  | greedy | temperature 1 |"
    cells = table(lines)
    assert cells["tokens"] == ["12,345", "12,345"]
    assert cells["α"] == ["0.812", "0.500"]
    assert cells["**speedup, measured** (range)"] == ["**2.00×** (1.90 to 2.10)", "–"]
    assert cells["texts that differ from plain decoding"] == ["1", "–"]
    assert cells["BLEU"] == ["30.0", "–"]
    assert "[two](../results/two/results.json). 2 cores of a CPU, float32, batch size 1." in source


# By column of README's table, the runs on new sentences and on the whole test split.
COMPARED = [
    [f"{directory}/ende_tatoeba_{split}{ending}" for split in ("apart", "test")]
    for ending in ("", "_t1")
    for directory in ("results/before_mutual", "results")
]


def test_the_pair_before_mutual_learning_beside_the_one_after(tmp_path):
    speedups = {"measured_speedup": 1.5, "measured_speedup_decoder": 1.75}
    for number, runs in enumerate(COMPARED):
        for bleu, directory in zip((20.0, 30.0), runs, strict=True):
            found = {"quality": {"bleu": bleu + number}}
            write(tmp_path, f"{directory}/results.json", RESULT | speedups | found)
    *lines, _, source = render(tmp_path, pages.COMPARISON).splitlines()
    assert lines[0] == "|  | greedy, before | greedy, after | sampled, before | sampled, after |"
    assert table(lines)["new sentences: BLEU"] == ["20.0", "21.0", "22.0", "23.0"]
    assert table(lines)["test split: BLEU"] == ["30.0", "31.0", "32.0", "33.0"]
    assert source == "Measured on 2 cores of a CPU."
    write(tmp_path, f"{COMPARED[0][1]}/results.json", RESULT | speedups | {"device": "another"})
    with pytest.raises(ValueError, match="too many values"):
        render(tmp_path, pages.COMPARISON)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"results/one/results\.json is missing"),
        ({k: v for k, v in RESULT.items() if k != "alpha"}, "cannot be made: .*'alpha'"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_results_is_named(tmp_path, content, message):
    if content is not None:
        write(tmp_path, "results/one/results.json", content)
    write(tmp_path, "page.md", section("runs"))
    with pytest.raises(page_files.PageError, match=message):
        page_files.rewrite(
            tmp_path / "page.md",
            lambda _: render(tmp_path, pages.runs({"one": "greedy"})),
            check=True,
        )


def test_only_what_is_between_the_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"a\n{section('these', 'x')}b\n{section('and-those')}c\n")
    assert page_files.rewrite(page, str.upper, check=True)
    assert "x" in page.read_text()
    assert page_files.rewrite(page, str.upper, check=False)
    expected = f"a\n{section('these', 'THESE')}b\n{section('and-those', 'AND-THOSE')}c\n"
    assert page.read_text() == expected
    assert not page_files.rewrite(page, str.upper, check=False)
    page.write_text("<!-- these -->\nx\n")
    with pytest.raises(page_files.PageError, match="no section between"):
        page_files.rewrite(page, str.upper, check=True)


@pytest.mark.parametrize(
    "section_of", [{}.__getitem__, lambda name: name + 1, lambda name: f"{name:.2f}"]
)
def test_a_section_that_results_are_not_enough_for(tmp_path, section_of):
    page = tmp_path / "page.md"
    page.write_text(section("these"))
    with pytest.raises(page_files.PageError, match=r"section these of .*page\.md cannot be made"):
        page_files.rewrite(page, section_of, check=True)


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
        "speculative": 20.0, "autoregressive": 35.0, "block_overhead": 1.17, "cost_ratio": 0.07,
        "verify_ratio": 1.1, "alpha": 0.8, "predicted_speedup": 2.0,
        "counted_speedup": 1.95, "block_efficiency": 2.5,
        "measured_speedup": 1.9, "plain_step": 1.0, "program_bytes": 6e7, "needed_bytes": 5e7,
        "floor_ratio": 1.1, "decoder_bytes": 4e7, "bandwidth": 5e10,
    },
}  # fmt: skip


def _results(*workloads):
    return {
        "workloads": list(workloads), "device": "2 cores of a CPU", "threads": 2, "repetitions": 5,
        "command": "python scripts/benchmark.py",
    }  # fmt: skip


def test_benchmarks_and_their_pictures(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "systems", lambda result, path: drawn.append(path.name))
    monkeypatch.setattr(plots, "sweep", lambda _, x, label, path: drawn.append((label, path.name)))
    larger = copy.deepcopy(WORKLOAD) | {"batch_size": 2, "stop_below": 0.2}
    longer = copy.deepcopy(WORKLOAD) | {"batch_size": 2, "input_tokens": 24}
    for name, others in (("one", []), ("sweep", [larger]), ("several", [longer])):
        write(tmp_path, f"results/benchmark_{name}/results.json", _results(WORKLOAD, *others))
    one, sweep, several = (
        render(tmp_path, pages.benchmark(name), draw=True) for name in ("one", "sweep", "several")
    )
    assert "| specdec speculative | 1.000 | 0.900 to 1.100 | 1000 |" in one
    assert "| T5X | absent: give --t5x_path |" in one
    row = "3 | 0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 | 2.00 | 1.95 | 1.90 | 1.17 |"
    assert f"| tiny | {row}" in sweep
    row = "0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 |  | 1.95 | 1.90 |  |"
    assert f"| tiny | 3, stops below 0.2 | {row}" in sweep
    assert "![Tokens per second against batch size](images/performance_sweep.svg)" in sweep
    assert "![" not in several  # Two quantities differ.
    assert drawn == ["performance_one.svg", ("batch size", "performance_sweep.svg")]


@pytest.fixture
def repo(tmp_path):
    """A repository with the page of computed numbers, and with one folder of results."""
    write(tmp_path, SUMMARY, (REPO / SUMMARY).read_text())
    write(tmp_path, "README.md", section("devices"))
    write(
        tmp_path,
        "docs/scaling.md",
        section("hardware") + "[numbers](../results/scaling/summary.json)",
    )
    write(tmp_path, "results/README.md", section("folders"))
    return tmp_path


def test_computed_numbers_are_compared_and_kept(script, repo, monkeypatch):
    numbers = json.loads((REPO / SUMMARY).read_text())
    monkeypatch.setattr(script, "scaling_numbers", lambda: numbers)
    (repo / SUMMARY).write_text("{}")
    script.main(["docs/scaling.md"], repo)
    assert json.loads((repo / SUMMARY).read_text()) == numbers
    (repo / SUMMARY).write_text("{}")
    assert script.main(["--check", "docs/scaling.md"], repo) == 1


def test_an_unknown_page_is_named(script, repo, capsys):
    assert script.main(["docs/other.md"], repo) == 1
    assert "No page docs/other.md; there are README.md" in capsys.readouterr().err


FOLDERS = ["results/README.md"]


@pytest.fixture
def measured(script, repo):
    """With a folder of a measurement, in the table."""
    write(
        repo, "configs/one.gin", "# What one shows. More of it.\n# Command:  python run.py\nA = 1\n"
    )
    one = {
        "command": "python run.py --gin_file=configs/one.gin",
        "device": "a CPU",
        "git_sha": None,
    }
    write(repo, "results/one/results.json", one | {"date": "2026-11-27"})
    write(repo, "docs/trees.md", "[one](../results/one/results.json)")
    assert script.main(FOLDERS, repo) == 0
    return repo


def test_a_row_tells_what_a_folder_shows_and_how_it_was_made(script, measured):
    assert script.main(["--check", *FOLDERS], measured) == 0
    *_, row, computed, _ = (measured / "results/README.md").read_text().splitlines()
    assert row == (
        "| [one](one/results.json) | What one shows. | [docs/trees.md](../docs/trees.md) | a CPU "
        "| 2026-11-27 | `python run.py --gin_file=configs/one.gin` |"
    )
    assert computed.startswith("| [scaling](scaling/summary.json) |")
    assert "| – | – |" in computed


def test_a_date_that_was_not_kept_is_not_made_up(script, measured):
    path = measured / "results/one/results.json"
    content = json.loads(path.read_text()) | {"git_sha": "0123456789abcdef-dirty"}
    del content["date"]
    write(measured, "results/one/results.json", content)
    script.main(FOLDERS, measured)
    assert "| a CPU | not kept; commit 0123456 |" in (measured / "results/README.md").read_text()


def test_a_folder_without_a_row(script, measured, capsys):
    write(
        measured,
        "results/two/results.json",
        json.loads((measured / "results/one/results.json").read_text()),
    )
    write(measured, "docs/beams.md", "[two](../results/two/results.json)")
    assert script.main(["--check", *FOLDERS], measured) == 1
    assert "Not up to date: results/README.md" in capsys.readouterr().out


def test_a_row_without_a_folder(script, measured, capsys):
    shutil.rmtree(measured / "results/one")
    assert script.main(["--check", *FOLDERS], measured) == 1
    assert "Not up to date: results/README.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("docs/trees.md", "No page shows results/one"),
        ("configs/one.gin", "The command of results/one names configs/one.gin, which is not there"),
        ("results/one/results.json", "results/one has no results.json and no summary.json"),
    ],
)
def test_a_folder_that_cannot_have_a_row(script, measured, capsys, path, message):
    (measured / path).unlink()
    assert script.main(["--check", *FOLDERS], measured) == 1
    assert message in capsys.readouterr().err


def test_figures_and_sizes_are_where_they_belong():
    committed = json.loads((REPO / SUMMARY).read_text())
    lines = scaling.section(committed, "hardware").splitlines()
    assert lines[2] == "| TPU v4 | 34.4 | 1,200 | 275.0 | 300 | 229 |"
    models = scaling.section(committed, "models").splitlines()
    assert models[2].startswith(
        "| T5-XXL | 24 + 24 | 4096 | 64 | 10240 | 22.27 | 11.14 | 393 | 74 |"
    )
    assert models[3].startswith("| T5 of 110 B | 60 + 60 | 8192 | 128 | 20480 |")
    assert len(scaling.section(committed, "meshes").splitlines()) == 2 + 2 * 3 * 2
