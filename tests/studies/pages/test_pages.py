"""README and docs show committed results, and their script says what is missing."""

import copy
import itertools
import json
from pathlib import Path

import pytest

from specdec.studies import scaling
from specdec.studies.pages import files as page_files
from specdec.studies.pages import sections as pages
from tests.studies.pages.test_paper_tables import CONTENT

REPO = Path(__file__).parent.parent.parent
SUMMARY = "results/scaling/summary.json"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/performance.md",
        "docs/reproduction.md",
        "docs/scaling.md",
        "docs/trees.md",
        "docs/beams.md",
        "docs/distillation.md",
        "docs/drafts.md",
        "docs/guides/execution.md",
    ],
)
def test_the_pages_show_the_committed_results(script, page):
    """docs/scaling.md: its numbers too are computed again, from shapes and public figures."""
    assert script.main(["--check", page]) == 0


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


def test_a_table_has_a_column_for_each_run(tmp_path):
    write(tmp_path, "results/ende_tatoeba_apart/results.json", RESULT)
    sampled = {"greedy_mismatches": None, "greedy_mismatches_width_matched": None}
    other = RESULT | sampled | {"quality": None, "spread": None}
    write(tmp_path, "results/ende_tatoeba_test_t1/results.json", other)
    write(tmp_path, "results/something_else/results.json", {})
    lines = pages.runs_table(tmp_path).splitlines()
    assert lines[0] == "|  | without near neighbours, greedy | test split, temperature 1 |"
    assert "| tokens | 12,345 | 12,345 |" in lines
    assert "| α | 0.812 | 0.812 |" in lines
    assert "| **speedup, measured** (range) | **2.00×** (1.90 to 2.10) | – |" in lines
    assert "| texts that differ from plain decoding | 1 | – |" in lines
    assert "| BLEU | 30.0 | – |" in lines
    assert lines[-1] == (
        "From [ende_tatoeba_apart](results/ende_tatoeba_apart/results.json), "
        "[ende_tatoeba_test_t1](results/ende_tatoeba_test_t1/results.json). "
        "2 cores of a CPU, float32, batch size 1."
    )


def test_another_directory_and_a_page_below_the_root(tmp_path):
    source = "results/before/ende_tatoeba_apart/results.json"
    write(tmp_path, source, RESULT)
    lines = pages.runs_table(tmp_path, "results/before", "../").splitlines()
    assert lines[0] == "|  | without near neighbours, greedy |"
    assert lines[-1].startswith(f"From [ende_tatoeba_apart](../{source}). ")


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
            found = {"quality": {"bleu": bleu + number}, "device": f"CPU {number % 2}"}
            write(tmp_path, f"{directory}/results.json", RESULT | speedups | found)
    lines = pages.comparison(tmp_path).splitlines()
    names = "greedy, before | greedy, after | sampled, before | sampled, after"
    assert lines[0] == f"|  | {names} |"
    assert "| whole speedup, measured | **1.50×** | **1.50×** | **1.50×** | **1.50×** |" in lines
    assert "| new sentences: BLEU | 20.0 | 21.0 | 22.0 | 23.0 |" in lines
    assert "| test split: BLEU | 30.0 | 31.0 | 32.0 | 33.0 |" in lines
    assert lines[-1] == "Before: CPU 0. After: CPU 1."
    (tmp_path / COMPARED[0][1] / "results.json").unlink()
    with pytest.raises(page_files.PageError, match=r"before_mutual/.*results\.json is missing"):
        pages.comparison(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"results\.json is missing; make it with: python scripts/decode\.py"),
        ({k: v for k, v in RESULT.items() if k != "alpha"}, r"results\.json has no 'alpha'"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_results_is_named(tmp_path, content, message):
    if content is not None:
        write(tmp_path, "results/ende_tatoeba_apart/results.json", content)
    with pytest.raises(page_files.PageError, match=message):
        pages.runs_table(tmp_path)


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


@pytest.fixture
def repo(tmp_path):
    """A repository with all pages and their results."""
    larger = copy.deepcopy(WORKLOAD) | {"batch_size": 2, "stop_below": 0.2}
    write(tmp_path, "results/benchmark_one/results.json", _results(WORKLOAD))
    write(tmp_path, "results/benchmark_all/results.json", _results(WORKLOAD, larger))
    write(tmp_path, "results/reproduction_toy/summary.json", CONTENT)
    speedups = {"measured_speedup": 1.5, "measured_speedup_decoder": 1.75}
    for directory in itertools.chain(*COMPARED):
        write(tmp_path, f"{directory}/results.json", RESULT | speedups)
    write(tmp_path, SUMMARY, (REPO / SUMMARY).read_text())
    write(tmp_path, "README.md", section("devices"))
    some = f"# P\n{section('one', 'old')}kept\n{section('all')}{section('runs')}"
    some += "".join(map(section, ("comparison", "tpu", "h100-compiled", "t5x-compiled")))
    write(tmp_path, "docs/performance.md", some)
    compiled = section("table-2-compiled", "old")
    write(tmp_path, "docs/reproduction.md", f"Head.\n\n{compiled}{section('toy')}\nTail.\n")
    write(tmp_path, "docs/scaling.md", section("hardware") + section("meshes-compiled"))
    write(tmp_path, "docs/trees.md", section("shapes", "old"))
    beams = "".join(map(section, ("calls", "ends", "times", "auto", "quality", "benchmark")))
    write(tmp_path, "docs/beams.md", beams)
    write(tmp_path, "docs/guides/execution.md", section("control", "old"))
    write(tmp_path, "docs/distillation.md", section("alphas", "old"))
    write(tmp_path, "docs/drafts.md", section("temperature-1", "old"))
    for name in (
        "beams/summary", "benchmark_beams/results", "control/summary", "drafts/summary",
        "trees/summary", "before_mutual/beams/summary", "before_mutual/drafts/summary",
        "before_mutual/trees/summary", "accelerators/summary", "t5x/summary",
        *(f"benchmark_{each}/results" for each in ("gpu_xxl", "t5_large", "quickstart")),
    ):  # fmt: skip
        write(tmp_path, f"results/{name}.json", (REPO / f"results/{name}.json").read_text())
    (tmp_path / "docs/images").mkdir()
    return tmp_path


def test_all_pages_are_rewritten(script, repo, monkeypatch, capsys):
    monkeypatch.setattr(script, "scaling_numbers", lambda: json.loads((REPO / SUMMARY).read_text()))
    assert script.main(["--check"], repo) == 1
    assert "README.md, docs/performance.md, docs/repro" in capsys.readouterr().out
    assert not list((repo / "docs/images").iterdir())
    assert script.main([], repo) == 0
    assert script.main(["--check"], repo) == 0

    page = (repo / "docs/performance.md").read_text()
    assert "old" not in page
    assert "kept" in page
    assert "| tokens | 12,345 |" in page
    assert "| specdec speculative | 1.000 | 0.900 to 1.100 | 1000 |" in page
    assert "| T5X | absent: give --t5x_path |" in page
    row = "3 | 0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 | 2.00 | 1.95 | 1.90 | 1.17 |"
    assert f"| tiny | {row}" in page
    row = "0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 |  | 1.95 | 1.90 |  |"
    assert f"| tiny | 3, stops below 0.2 | {row}" in page
    assert "![Milliseconds per token, by system](images/performance_one.svg)" in page
    assert "![Tokens per second against batch size](images/performance_all.svg)" in page
    pictures = {path.name: path.read_bytes() for path in (repo / "docs/images").iterdir()}
    assert set(pictures) == {"performance_one.svg", "performance_all.svg", "devices.svg"}
    script.main([], repo)
    for name, content in pictures.items():
        assert (repo / "docs/images" / name).read_bytes() == content

    assert "| best-first tree of 16 | 16 |" in (repo / "docs/trees.md").read_text()
    page = (repo / "docs/beams.md").read_text()
    assert "| W = 4, γ = 3 | 12 | 40 | 4,240 | 2,314 | 1.83 | 0 | 0 |" in page
    assert "- W = 8: Speculation does not pay here" in page
    assert "| 4 beams | 40.3 |" in page
    assert "| specdec beams |" in page
    assert "absent" not in page
    page = (repo / "docs/guides/execution.md").read_text()
    assert "old" not in page
    assert page.count(" of 40 |") == 3
    assert "Not run yet: `python" in (repo / "docs/distillation.md").read_text()
    assert "old" not in (repo / "docs/drafts.md").read_text()
    page = (repo / "docs/reproduction.md").read_text()
    assert page.startswith("Head.\n\n<!-- table-2-compiled -->\n")
    assert page.endswith("<!-- /toy -->\n\nTail.\n")
    assert "figures/figure_5.svg" in page
    assert "`python scripts/reproduce.py`" in page
    assert "|  | memory, GB" in (repo / "docs/scaling.md").read_text()


def test_computed_numbers_are_compared_and_kept(script, repo, monkeypatch):
    numbers = json.loads((REPO / SUMMARY).read_text())
    monkeypatch.setattr(script, "scaling_numbers", lambda: numbers)
    (repo / SUMMARY).write_text("{}")
    script.main(["docs/scaling.md"], repo)
    assert json.loads((repo / SUMMARY).read_text()) == numbers
    (repo / SUMMARY).write_text("{}")
    assert script.main(["--check", "docs/scaling.md"], repo) == 1


def test_several_quantities_make_no_picture(repo):
    other = copy.deepcopy(WORKLOAD) | {"batch_size": 2, "input_tokens": 24}
    write(repo, "results/benchmark_all/results.json", _results(WORKLOAD, other))
    assert "![" not in pages.benchmark(repo, "all", draw=True)


def test_missing_results_and_pages_are_named(script, repo, capsys):
    (repo / "results/benchmark_all/results.json").unlink()
    before = (repo / "docs/performance.md").read_text()
    assert script.main(["docs/performance.md"], repo) == 1
    assert "benchmark_all/results.json is missing" in capsys.readouterr().err
    assert (repo / "docs/performance.md").read_text() == before
    assert script.main(["docs/other.md"], repo) == 1
    assert "No page docs/other.md; there are README.md" in capsys.readouterr().err


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
