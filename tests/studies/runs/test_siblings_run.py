"""Siblings measured by a gin file, as a reproduction without studies."""

import json

import pytest

from specdec.runs.command_line import Given
from specdec.studies import cli
from tests.runs.conftest import TEXTS
from tests.runs.decoding import ROOT

GIN = """
reproduce.siblings = [@toy/Siblings()]
toy/Siblings.name = "Toy"
toy/Siblings.task = @toy/pairs_file
toy/Siblings.target = {target!r}
toy/Siblings.drafts = [{draft!r}]
toy/Siblings.num_examples = 3
toy/Siblings.max_input_len = 16
toy/Siblings.max_decode_len = 8
toy/pairs_file.name = "toy"
toy/pairs_file.directory = {data!r}
toy/pairs_file.split = "test"
"""


@pytest.fixture
def config(tiny, tmp_path):
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    path = tmp_path / "toy.gin"
    path.write_text(GIN.format(target=str(tiny.target), draft=str(tiny.draft), data=str(tmp_path)))
    return path


@pytest.mark.slow
def test_both_temperatures_of_a_draft_and_going_on(config, tiny, tmp_path, capsys):
    given = Given([str(config)], (), str(tmp_path / "out"), "again")
    assert cli.reproduce(given, ROOT) == 0
    assert capsys.readouterr().out.endswith("out: summary.json\n")
    path = tmp_path / "out" / "summary.json"
    first = json.loads(path.read_text())
    greedy, drawn = (first["siblings"]["Toy"][t]["drafts"][str(tiny.draft)] for t in ("t0", "t1"))
    assert set(greedy["acceptance"]) == {"likeliest"}
    assert drawn["num_texts"] == 3
    accepted = {rule: by_count["1"]["mean"] for rule, by_count in drawn["acceptance"].items()}
    for rule in ("recursive", "recursive_independent", "kseq", "optimum_independent"):
        assert accepted[rule] == pytest.approx(accepted["optimum"], abs=1e-5)
    # What is on disk is not measured again: a line less is.
    directory = tmp_path / "out/toy/siblings/t1"
    (lines,) = directory.glob("*draft*.jsonl")
    whole, texts = lines.read_text(), (directory / "texts.jsonl").read_text()
    counts = [
        {row["id"]: length(row) for row in map(json.loads, each.splitlines())}
        for each, length in (
            (whole, lambda row: row["positions"]), (texts, lambda row: len(row["tokens"])),
        )
    ]  # fmt: skip
    assert counts[0] == counts[1]
    assert len({str(json.loads(each)["accepted"]) for each in whole.splitlines()}) == 3
    lines.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert cli.reproduce(given, ROOT) == 0
    assert lines.read_text() == whole
    assert json.loads(path.read_text())["siblings"] == first["siblings"]
