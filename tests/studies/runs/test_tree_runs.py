"""Trees measured by a gin file: every piece once, with small shapes."""

import json

import pytest

from specdec.drafters.shape import Chain, Tree
from specdec.measure import chooser, decode_choice
from specdec.measure.choice import Candidate
from specdec.runs.command_line import Given
from specdec.studies import cli
from specdec.studies.runs import tree_runs
from tests.runs.conftest import TEXTS
from tests.runs.decoding import ROOT

GIN = """
reproduce.trees = [@toy/TreeRuns()]
toy/TreeRuns.name = "Toy"
toy/TreeRuns.task = @toy/pairs_file
toy/TreeRuns.target = {target!r}
toy/TreeRuns.drafts = [{draft!r}]
toy/TreeRuns.num_examples = 4
toy/TreeRuns.max_decode_len = 8
toy/pairs_file.name = "toy"
toy/pairs_file.directory = {data!r}
toy/pairs_file.split = "test"
"""
SMALL = Tree((2,))


@pytest.fixture
def given(tiny, tmp_path, monkeypatch):
    """A command whose shapes are few and small: compilation is most of the time."""
    for name, value in (
        ("GAMMAS", (1,)), ("BRANCHINGS", ((2,),)), ("NODES", 2), ("DEPTH", 2), ("RANKS", 2),
        ("SIZES", (1, 2)), ("_REPETITIONS", 1), ("_PROBED", 2),
        ("BEST_FIRST", Tree(nodes=2, depth=2, siblings=2)),
        ("FIXED", (Candidate(Chain(1)), Candidate(SMALL))),
    ):  # fmt: skip
        monkeypatch.setattr(tree_runs, name, value)
    for name, value in (
        ("GAMMAS", (1,)), ("NODES", (2,)), ("DEPTHS", (1,)), ("BEST_FIRST", ()), ("RANKS", 2),
        ("FREE", (2, 1)), ("PROBE_DEPTH", 1),
    ):  # fmt: skip
        monkeypatch.setattr(decode_choice, name, value)
    monkeypatch.setattr(chooser, "_REPETITIONS", 1)
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 600.0))
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    path = tmp_path / "toy.gin"
    path.write_text(GIN.format(target=str(tiny.target), draft=str(tiny.draft), data=str(tmp_path)))
    return Given([str(path)], (), str(tmp_path / "out"), "again")


@pytest.mark.slow
def test_every_piece_and_going_on(given, tiny, tmp_path):
    assert cli.reproduce(given, ROOT) == 0
    path = tmp_path / "out" / "summary.json"
    first = json.loads(path.read_text())["trees"]["Toy"]
    (found,) = first.values()
    assert set(found) == {"t0", "t1", "auto_t0", "auto_t1", "verifiers", "costs"}
    for t in ("t0", "t1"):
        for each in found[t]["shapes"].values():
            assert each["interval"][0] <= each["block_efficiency"] <= each["interval"][1]
            assert 1 <= each["block_efficiency"] <= each["depth"] + 1
        auto = found[f"auto_{t}"]
        assert {"plain decoding", "gamma 1", "tree 2"} <= set(auto["speedups"])
        assert auto["speedups"][auto["best"]] == max(auto["speedups"].values())
        assert auto["chosen"] in auto["speedups"]
    # The same greedy tokens, whatever the shape.
    assert len({each["num_tokens"] for each in found["t0"]["shapes"].values()}) == 1
    assert len(found["t1"]["shapes"]) == len(found["t0"]["shapes"]) + 1
    for each in found["verifiers"]["shapes"].values():
        assert each["num_blocks"] > 0
        assert each["difference"] == pytest.approx(each["traversal"] - each["recursive"])
    assert set(found["costs"]["verify_ratio"]) == {"2", "3"}
    # What is on disk is not measured again, unless it is of other settings.
    assert cli.reproduce(given, ROOT) == 0
    assert json.loads(path.read_text())["trees"]["Toy"] == first
    kept = next((tmp_path / "out").glob("toy/trees/*/t0/tree.json"))
    changed = json.loads(kept.read_text())
    changed["settings"]["seed"], changed["by_rank"] = 1, []
    kept.write_text(json.dumps(changed))
    assert cli.reproduce(given, ROOT) == 0
    again = json.loads(path.read_text())["trees"]["Toy"]
    assert next(iter(again.values()))["t0"] == found["t0"]
