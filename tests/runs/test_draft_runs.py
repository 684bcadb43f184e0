"""The study of drafts: acceptance by depth, and its rows on a tiny pair."""

import pytest
from safetensors.numpy import load_file

from specdec.data.tasks import Example, Task
from specdec.drafters.copying import Copying
from specdec.runs import draft_runs
from specdec.runs.draft_runs import DraftRuns


def test_acceptance_by_depth():
    """Of 10 blocks 8 accept a guess, 4 of those a second one, and none of these a third."""
    assert draft_runs.by_depth([2, 4, 4, 0]) == pytest.approx([0.8, 0.5, 0.0])
    assert draft_runs.by_depth([3, 0, 0]) == [0.0]


@pytest.mark.slow
def test_rows_of_the_table(tiny, tmp_path):
    texts = ["the cat sat on the mat", "a dog", "it is late"]
    task = Task.of("three", [Example(text, text, text) for text in texts])
    drafts = {"model": (str(tiny.draft), (2, (2, 1))), "copying": (Copying(), (2,))}
    runs = DraftRuns(
        "Tiny", lambda: task, str(tiny.target), drafts, max_input_len=16, max_decode_len=8,
        num_examples=2, timing_examples=1, timing_repetitions=1,
    )  # fmt: skip
    size = sum(array.size for array in load_file(tiny.draft / "model.safetensors").values())
    pieces = {"/".join(path): make for path, make in runs.pieces()}
    shapes = ("model/chain-2", "model/tree-2-1", "copying/chain-2")
    assert list(pieces) == [f"tiny/drafts/{shape}/t{t}" for shape in shapes for t in (0, 1)]
    for name in ("tiny/drafts/model/tree-2-1/t0", "tiny/drafts/copying/chain-2/t1"):
        found = pieces[name](tmp_path / name)
        assert found["num_examples"] == 2
        assert found["parameters"] == (None if "copying" in name else size)
        assert found["by_depth"] == draft_runs.by_depth(found["accepted_histogram"])
        again = pieces[name](tmp_path / name)
        assert again["spread"] == found["spread"], "it was measured again"
