"""README and docs show committed results, and their script says what is missing."""

import copy
import json
import re
from pathlib import Path

import pytest

from specdec.reproduce.pages import files as page_files
from specdec.reproduce.pages import sections as pages
from specdec.reproduce.pages.tables import render

REPO = Path(__file__).parents[3]


def test_the_pages_show_the_committed_results(script):
    assert script.main(["--check"]) == 0
    marked = {
        path.relative_to(REPO).as_posix()
        for path in [REPO / "README.md", *REPO.glob("docs/**/*.md"), *REPO.glob("results/**/*.md")]
        if re.search(r"^<!-- /", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert marked == pages.sections(REPO).keys()


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
        "cost_ratio": 0.07, "verify_ratio": 1.1, "alpha": 0.8, "predicted_speedup": 2.0,
        "counted_speedup": 1.95, "block_efficiency": 2.5, "measured_speedup": 1.9,
    },
}  # fmt: skip


def _results(*workloads):
    return {
        "workloads": list(workloads), "device": "2 cores of a CPU", "threads": 2, "repetitions": 5,
        "command": "python scripts/benchmark.py",
    }  # fmt: skip


def test_benchmarks(tmp_path):
    larger = copy.deepcopy(WORKLOAD) | {"batch_size": 2}
    for name, others in (("one", []), ("sweep", [larger])):
        write(tmp_path, f"results/benchmark_{name}/results.json", _results(WORKLOAD, *others))
    one, sweep = (render(tmp_path, pages.benchmark(name)) for name in ("one", "sweep"))
    assert "| specdec speculative | 1.000 | 0.900 to 1.100 | 1000 |" in one
    assert "| T5X | absent: give --t5x_path |" in one
    assert "c 0.070, v 1.10, alpha 0.800; decoder speedup predicted 2.00" in one
    row = "3 | 0.80 | 0.070 | 1.10 | 2.50 | 2.00 | 1.00 | 2.00 | 2.00 | 1.95 | 1.90 |"
    assert sweep.count(f"| tiny | {row}") == 2


@pytest.fixture
def repo(tmp_path):
    """A repository with one page."""
    write(tmp_path, "README.md", section("devices"))
    return tmp_path


def test_an_unknown_page_is_named(script, repo, capsys):
    assert script.main(["docs/other.md"], repo) == 1
    assert "No page docs/other.md; there are README.md" in capsys.readouterr().err


RESULTS = sorted(
    path for name in ("results.json", "summary.json") for path in (REPO / "results").rglob(name)
)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_have_a_row_with_their_command_and_a_commit(path):
    """And a commit that has the configuration: their own, or a later one."""
    folder = path.parent.relative_to(REPO / "results").as_posix()
    lines = (REPO / "results/README.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if f"[{folder}]({folder}/{path.name})" in line)
    content = json.loads(path.read_text())
    assert f"`{content['command']}`" in row
    own = (content.get("git_sha") or "").removesuffix("-dirty")[:7]
    commits = re.findall(r"\| ([0-9a-f]{7}) \|", row)
    assert commits in ([own], ["a53d7a4"])
