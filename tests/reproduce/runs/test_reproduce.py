"""A whole reproduction of a toy study, killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec.reproduce.runs.reproduce import main
from specdec.runs.command_line import Given
from tests.runs.conftest import TEXTS

# Random models say what no font has.
pytestmark = pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
ROOT = Path(__file__).resolve().parent.parent.parent
GIN = """
STUDIES = [@toy/Study()]
reproduce.studies = %STUDIES
toy/Study.name = "Toy"
toy/Study.task = @toy/pairs_file
toy/Study.target = {target!r}
toy/Study.max_input_len = 16
toy/Study.max_decode_len = 12
toy/Study.rows = [({draft!r}, 1.0, 2), ({draft!r}, 1.0, 1)]
toy/Study.alpha_drafts = [@Copying()]
toy/Study.alpha_examples = 4
toy/Study.decode_examples = 3
toy/Study.timing_examples = 2
toy/Study.timing_repetitions = 2
toy/pairs_file.name = "toy"
toy/pairs_file.directory = {data!r}
toy/pairs_file.split = "test"
"""


@pytest.fixture(scope="module")
def config(tiny):
    (tiny.root / "test.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    path = tiny.root / "toy.gin"
    path.write_text(GIN.format(target=str(tiny.target), draft=str(tiny.draft), data=str(tiny.root)))
    return path


def reproduce(config, directory, *bindings):
    return main(Given([str(config)], bindings, str(directory), "again"), ROOT)


def numbers(directory):
    """The summary without times and provenance."""
    study = json.loads((directory / "summary.json").read_text())["studies"]["toy"]
    return {
        "alpha": {t: a["drafts"] for t, a in study["alpha"].items()},
        "tokens": [
            (t, shape, r["num_tokens"], r["accepted_histogram"])
            for by_temperature in study["table_2"].values()
            for t, by_shape in by_temperature.items()
            for shape, r in by_shape.items()
        ],
    }


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    assert reproduce(config, directory) == 0
    return directory


def test_tables_are_written(whole, capsys):
    text = (whole / "tables.md").read_text()
    for part in (
        "Table 1", "Table 2", "Table 5", "| Toy |", "copying",
    ):  # fmt: skip
        assert part in text
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["studies"]["toy"]["name"] == "Toy"
    assert {"device", "versions", "git_sha", "command"} <= set(summary)


@pytest.mark.slow
def test_a_killed_reproduction_goes_on(config, whole, tmp_path):
    """kill -9 somewhere, then again to the end: the same numbers, nothing done twice."""
    command = [
        sys.executable, str(ROOT / "scripts" / "reproduce.py"), f"--gin_file={config}",
        f"--output_dir={tmp_path}",
    ]  # fmt: skip
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log, env=os.environ)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if list(tmp_path.glob("toy/table_2/*/t1/*/results*")):
                break
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "summary.json").exists()
    kept = {p: p.read_bytes() for p in tmp_path.glob("toy/**/*.jsonl")}
    assert kept
    assert reproduce(config, tmp_path) == 0
    for path, before in kept.items():
        assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert numbers(tmp_path) == numbers(whole)


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("STUDIES=[]", "nothing to reproduce"),
        ("toy/Study.target='missing'", "missing"),
        ("toy/Study.max_input_len=2", "more than max_input_len = 2"),
        ("toy/Study.rows=[('x', 0.0, 0)]", "gamma must be in"),
    ],
)
def test_mistakes_are_one_line(config, tmp_path, capsys, binding, message):
    assert reproduce(config, tmp_path, binding) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.splitlines()[-1].startswith("error: ")


def test_without_matplotlib_nothing_is_begun(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert reproduce(config, tmp_path / "new") == 2
    assert "The figures need matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_another_reproduction_is_not_mixed_in(config, whole, capsys):
    assert reproduce(config, whole, "toy/Study.seed=1") == 2
    assert "holds another measurement" in capsys.readouterr().err
