"""Trees from the command line: every shipped configuration, resuming, and what is refused."""

import gin
import pytest

from specdec.drafters.shape import Tree
from specdec.runs import gin_files
from specdec.runs.decode_run import DecodeRun
from specdec.runs.gin_bindings import configured
from specdec.verifiers.kseq import KSeqVerifier
from tests.runs.decoding import ROOT, main, read

TREES, VERIFIERS = (ROOT / "configs" / name for name in ("trees", "verifiers"))
SHAPES = {
    "best_first": (16, 4, "best-first tree of 16 nodes, 5 deep"),
    "branching": (15, 3, "tree 3-2-1"),
    "chains": (12, 4, "tree 4-1-1"),
    "independent": (15, 3, "tree 3-2-1, independent"),
}


def files(tiny, *names):
    return [str(tiny.gin), *(str(ROOT / "configs" / name) for name in names)]


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    """The tokens of plain greedy decoding, by row."""
    directory = tmp_path_factory.mktemp("plain")
    assert main(tiny, directory, files=files(tiny, "methods/autoregressive.gin")) == 0
    return {row["id"]: row["tokens"] for row in read(directory)[1]}


def test_these_are_the_shipped_trees():
    found = {path.stem for path in TREES.glob("*.gin")}
    assert found == {*SHAPES, "auto"}


@pytest.mark.parametrize("name", ["branching", "best_first"])
def test_every_tree_is_lossless_at_temperature_0(tiny, plain, tmp_path, capsys, name):
    nodes, siblings, words = SHAPES[name]
    assert main(tiny, tmp_path, files=files(tiny, f"trees/{name}.gin")) == 0
    results, rows = read(tmp_path)
    assert {row["id"]: row["tokens"] for row in rows} == plain
    assert results["greedy_mismatches"] == results["greedy_mismatches_width_matched"] == 0
    assert results["tree"] == words
    assert results["topology"] == {"nodes": nodes, "siblings": siblings}
    assert results["proposed"] == nodes * results["target_calls"]
    assert len(results["accepted_by_rank"]) == siblings
    by_rank = [sum(row["accepted_by_rank"][i] for row in rows) for i in range(siblings)]
    assert results["accepted_by_rank"] == by_rank
    assert sum(by_rank) == sum(row["accepted"] for row in rows) > 0
    assert results["gamma"] == len(results["accepted_histogram"]) - 1
    assert all(block["siblings"] is not None for row in rows for block in row["blocks"])
    shown = capsys.readouterr().out
    assert f", {words}" in shown
    assert "accepted by rank" in shown
    assert f"v: target call on {nodes + 1} tokens" not in shown  # Nothing was timed.
    assert "After an accepted guess [-the others|of its position-]." in shown
    assert 'class="siblings"' in (tmp_path / "trace.html").read_text()


@pytest.mark.parametrize("name", ["kseq", "typical"])
def test_verifiers_of_trees_sample(tiny, tmp_path, capsys, name):
    tree = "trees/independent.gin" if name == "kseq" else "trees/branching.gin"
    given = files(tiny, tree, f"verifiers/{name}.gin")
    settings = ("BRANCHING=(2, 1)", "TEMPERATURE=1.0", "NUM_EXAMPLES=2")
    assert main(tiny, tmp_path, *settings, files=given) == 0
    results, rows = read(tmp_path)
    assert len(rows) == 2
    assert results["lossless"] == (name != "typical")
    output = capsys.readouterr().out
    assert results["verifier"].lower().startswith(name)
    assert (results["verifier"] in output) == (name != "recursive")
    assert ("LOSSY: TypicalVerifier(epsilon=0.3, delta=0.09) does not" in output) == (
        name == "typical"
    )


def test_a_tree_is_timed_and_a_killed_run_continues(tiny, tmp_path, capsys):
    given = files(tiny, "trees/best_first.gin")
    settings = ("NODES=5", "TIMING_EXAMPLES=1", "CHECK=False")
    assert main(tiny, tmp_path, *settings, files=given) == 0
    results, _ = read(tmp_path)
    assert results["measured_speedup"] > 0
    assert results["predicted_speedup"] > 0
    assert results["verify_ratio"] > 0
    width = results["topology"]["nodes"] + 1
    assert f"v: target call on {width} tokens / on 1" in capsys.readouterr().out
    whole = (tmp_path / "decodes.jsonl").read_bytes()
    first, second, *_ = whole.splitlines(keepends=True)
    (tmp_path / "decodes.jsonl").write_bytes(first + second[:50])
    (tmp_path / "results.json").unlink()
    assert main(tiny, tmp_path, *settings, files=given) == 0
    assert (tmp_path / "decodes.jsonl").read_bytes() == whole
    names = ("accepted_histogram", "accepted_by_rank", "topology", "target_calls")
    assert all(read(tmp_path)[0][name] == results[name] for name in names)


@pytest.mark.parametrize("name", SHAPES)
def test_a_configuration_that_was_written_is_read_back(tiny, tmp_path, name):
    """The operative configuration gives the same run, and so the same configuration again."""
    gin_files.parse(files(tiny, f"trees/{name}.gin"), ["SEED=3"], ROOT)
    how, config = configured(DecodeRun).decoding, gin.operative_config_str()
    assert isinstance(how.tree, Tree)
    assert (str(how.tree), how.seed) == (SHAPES[name][2], 3)
    (tmp_path / "run.gin").write_text(config)
    gin_files.parse([str(tmp_path / "run.gin")], [], ROOT)
    assert configured(DecodeRun).decoding == how
    assert (how.verifier == KSeqVerifier()) == (name == "independent")
    assert gin.operative_config_str() == config
