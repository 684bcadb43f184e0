"""A whole reproduction of a toy study, killed and continued."""

import json
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


def test_another_reproduction_is_not_mixed_in(config, whole, capsys):
    assert reproduce(config, whole, "toy/Study.seed=1") == 2
    assert "holds the decodes of another configuration" in capsys.readouterr().err
