"""Trees from the command line: every shipped configuration, resuming, and what is refused."""

import gin
import pytest
from slow import slow

from specdec.drafters.shape import Tree
from specdec.measure import chooser, decode_choice
from specdec.runs import gin_files
from specdec.runs.decode_run import DecodeRun
from specdec.runs.gin_bindings import configured
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.typical import TypicalVerifier
from tests.runs.decoding import ROOT, main, read, without_time
from tests.runs.test_decode import check_error

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


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "branching" else pytest.mark.slow) for name in SHAPES],
)
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


@pytest.mark.parametrize(
    "name",
    [
        "kseq", *(pytest.param(name, marks=pytest.mark.slow)
                  for name in ("recursive", "traversal", "typical")),
    ],
)  # fmt: skip
def test_every_verifier_of_trees_samples(tiny, tmp_path, capsys, name):
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


def test_several_drafts_make_one_tree(tiny, plain, tmp_path):
    """Each draft has the whole tree: the target scores twice the nodes."""
    drafts = f"Merged.drafts=({str(tiny.draft)!r}, @Copying())"
    settings = ("BRANCHING=(2, 1)", "DRAFT=@Merged()", drafts)
    assert main(tiny, tmp_path, *settings, files=files(tiny, "trees/branching.gin")) == 0
    results, rows = read(tmp_path)
    assert {row["id"]: row["tokens"] for row in rows} == plain
    assert results["greedy_mismatches_width_matched"] == 0
    assert results["drafter"] == f"{tiny.draft} + copying"
    assert results["topology"] == {"nodes": 8, "siblings": 4}
    assert results["gamma"] == 2


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param("branching", "BRANCHING=(2, 1)", marks=pytest.mark.slow),
        ("best_first", "NODES=5"),
    ],
)
def test_a_tree_is_timed(tiny, tmp_path, capsys, name, setting):
    settings = (setting, "TIMING_EXAMPLES=1", "CHECK=False")
    assert main(tiny, tmp_path, *settings, files=files(tiny, f"trees/{name}.gin")) == 0
    results, _ = read(tmp_path)
    assert results["measured_speedup"] > 0
    assert results["predicted_speedup"] > 0
    assert results["verify_ratio"] > 0
    width = results["topology"]["nodes"] + 1
    assert f"v: target call on {width} tokens / on 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["best_first", slow("branching")])
def test_a_killed_run_of_trees_continues(tiny, tmp_path, name):
    given = files(tiny, f"trees/{name}.gin")
    settings = ("CHECK=False",)
    assert main(tiny, tmp_path, *settings, files=given) == 0
    whole, results = (tmp_path / "decodes.jsonl").read_bytes(), read(tmp_path)[0]
    first, second, *_ = whole.splitlines(keepends=True)
    (tmp_path / "decodes.jsonl").write_bytes(first + second[:50])
    assert main(tiny, tmp_path, *settings, files=given) == 0
    assert (tmp_path / "decodes.jsonl").read_bytes() == whole
    assert without_time(read(tmp_path)[0]) == without_time(results)


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


def test_the_settings_of_typical_acceptance(tiny):
    given = files(tiny, "trees/branching.gin", "verifiers/typical.gin")
    gin_files.parse(given, ["EPSILON=0.5", "DELTA=0.2"], ROOT)
    assert configured(DecodeRun).decoding.verifier == TypicalVerifier(0.5, 0.2)


# What is known to be wrong before a model is loaded.
AT_ONCE = [
    ("branching", ("GAMMA=3",), "Give gamma, which is a chain, or tree (in gin with GAMMA = None)"),
    ("branching", ("METHOD='autoregressive'",), "Plain decoding has no guesses: tree must be None"),
    ("branching", ("STOP_BELOW=0.5",), "A tree cannot stop early: stop_below must be 0"),
    ("branching", ("BRANCHING=()",), "branching must be a few whole numbers"),
    ("branching", ("BRANCHING=(2, 0)",), "each of branching must be at least 1, got 0"),
    ("branching", ("BRANCHING=(-1,)",), "each of branching must be at least 1, got -1"),
    ("branching", ("BRANCHING=(2, 1.5)",), "each of branching must be a whole number, got 1.5"),
    ("branching", ("BRANCHING='auto'",), "branching must be a few whole numbers"),
    ("branching", ("MAX_DECODE_LEN=3",), "has 3 guesses in a row; an output of max_decode_len = 3"),
    ("branching", ("Tree.nodes=4",), "A tree has one of branching, parents and nodes"),
    ("branching", ("BRANCHING=(32, 32)",), "A tree has at most 1024 nodes, this one has 1056"),
    ("branching", ("BRANCHING=None", "Tree.parents=(-1, 0, -1)"), "in the order of levels"),
    ("branching", ("BRANCHING=None", "Tree.parents=(1, -1)"), "a parent must be in [-1, 0)"),
    ("best_first", ("NODES=2",), "has 5 to 68 nodes to choose from, got nodes = 2"),
    ("best_first", ("NODES=1025", "SIBLINGS=40"), "A tree has at most 1024 nodes"),
    ("best_first", ("DEPTH=None",), "A tree with nodes needs its depth too"),
    ("best_first", ("Tree.independent=True",), "independent must be False"),
]
AFTER_LOADING = [
    ("branching", ("BRANCHING=(321,)",), "has 321 guesses for one position; the vocabulary has"),
    ("branching", ("VERIFIER=@BlockVerifier()",), "BlockVerifier verifies chains only"),
    ("best_first", ("DRAFT=@Copying()",), "A best-first tree needs a draft model"),
    (
        "branching",
        ("DRAFT=@Hierarchical()", "Hierarchical.draft=%TARGET", "Hierarchical.inner=@Copying()",
         "Hierarchical.gamma=2"),
        "This draft makes chains only: give gamma instead of tree.",
    ),
    (
        "branching",
        ("VERIFIER=@KSeqVerifier()", "TEMPERATURE=1.0"),
        "KSeqVerifier needs siblings that are drawn independently",
    ),
    (
        "branching",
        ("VERIFIER=@PointMassVerifier()", "TEMPERATURE=1.0"),
        "PointMassVerifier needs guesses that are no random draws",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bindings", "message"), AT_ONCE, ids=str)
def test_trees_that_are_refused_at_once(
    tiny, tmp_path, capsys, monkeypatch, name, bindings, message
):
    def load(**_):
        raise AssertionError("loaded")

    monkeypatch.setattr("specdec.runs.prepared_run.load_pair", load)
    code = main(tiny, tmp_path / "out", *bindings, files=files(tiny, f"trees/{name}.gin"))
    check_error(capsys, code, message, tmp_path / "out")


@pytest.mark.parametrize(("name", "bindings", "message"), AFTER_LOADING, ids=str)
def test_trees_that_are_refused_before_anything_is_written(
    tiny, tmp_path, capsys, name, bindings, message
):
    code = main(tiny, tmp_path / "out", *bindings, files=files(tiny, f"trees/{name}.gin"))
    check_error(capsys, code, message, tmp_path / "out")


@pytest.mark.slow
def test_auto_from_the_command_line(tiny, plain, tmp_path, capsys, monkeypatch):
    """What was chosen is in the results, and the tokens are those of plain decoding."""
    for name, value in (  # Few and small shapes: compilation is most of the time.
        ("GAMMAS", (1,)), ("NODES", (2,)), ("DEPTHS", (1,)), ("BEST_FIRST", ()), ("RANKS", 2),
        ("PROBE_DEPTH", 1), ("FREE", (2, 1)),
    ):  # fmt: skip
        monkeypatch.setattr(decode_choice, name, value)
    monkeypatch.setattr(chooser, "_REPETITIONS", 1)
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 600.0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "out"
    assert main(tiny, directory, files=files(tiny, "trees/auto.gin")) == 0
    output = capsys.readouterr().err
    assert "Choosing tree by measurement" in output
    assert "With acceptance by rank" in output
    _, rows = read(directory)
    assert {row["id"]: row["tokens"] for row in rows} == plain
