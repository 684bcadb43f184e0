"""The study of drafts: acceptance by depth, and its rows on a tiny pair."""

import pytest
from safetensors.numpy import load_file

from specdec.data.tasks import Example, Task
from specdec.decoding.batches import Block
from specdec.drafters.copying import Copying
from specdec.studies.runs import draft_runs
from specdec.studies.runs.draft_runs import DraftRuns


def test_acceptance_by_depth():
    """Of 5 first guesses 4 are accepted, of 3 second ones that are looked at 1."""
    blocks = [
        Block([], [4, 5], 6),
        Block([7], [8], 9),
        Block([7], [8], 9, [[3]]),
        Block([7, 8], [], 9),  # All are accepted.
        Block([1], [8], None),  # The row ends with its first guess.
    ]
    assert draft_runs.by_depth(blocks) == pytest.approx([4 / 5, 1 / 3])
    assert draft_runs.by_depth([Block([], [4, 5], 6)]) == [0.0]


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
        assert all(0 <= share <= 1 for share in found["by_depth"])
        accepted = sum(found["accepted_histogram"][1:])
        assert accepted <= found["by_depth"][0] * found["target_calls"] <= found["target_calls"]
        again = pieces[name](tmp_path / name)
        assert again["spread"] == found["spread"], "it was measured again"
