"""The study of speculative beams: differences, floors, its pieces on a tiny pair."""

import numpy as np
import pytest

from specdec.core.roofline import Hardware
from specdec.data.tasks import Example, Task
from specdec.decoding.beam import BeamResult
from specdec.measure.beam_floors import BeamFloors
from specdec.models.t5.config import T5Config
from specdec.studies.runs import beam_runs
from specdec.studies.runs.beam_runs import BeamRuns, differences

DEVICE = Hardware("device", memory=1e9, bandwidth=1e9, peak=1e15, interconnect=1e9)
SLOW = Hardware("slow", memory=1e9, bandwidth=1e15, peak=1e9, interconnect=1e9)


def lists(tokens, scores):
    """One row's."""
    tokens, scores = np.array(tokens)[None], np.array(scores, np.float32)[None]
    lengths = np.full(scores.shape, tokens.shape[2])
    one = np.ones(1, int)
    return BeamResult(tokens, lengths, scores, scores, None, one, 0 * one)


def test_differences():
    first = lists([[1, 2], [3, 4]], [-1.0, -1.00001])
    swapped = lists([[3, 4], [1, 2]], [-1.0, -1.00001])
    other = lists([[1, 2], [5, 6]], [-1.0, -1.5])
    found = differences([first, first, first], [first, swapped, other])
    assert found["rows"] == 3
    assert found["differ"] == 2
    assert found["near_ties"] == 1
    assert found["gaps"] == pytest.approx([0.0, 0.49999], abs=1e-5)
    assert found["largest_difference_of_equal_lists"] == 0


def test_floors():
    """Bound by memory, v is about 1; bound by arithmetic, the ratio of tokens."""
    config = T5Config(
        vocab_size=4096, d_model=512, num_encoder_layers=1, num_decoder_layers=4, num_heads=8,
        head_dim=64, d_ff=1024, dtype="bfloat16",
    )  # fmt: skip
    floors = BeamFloors(config, config, 4, 12, 3, input_len=16, output_len=16)
    by_memory, by_arithmetic = (floors.computed(each, 2.0) for each in (DEVICE, SLOW))
    assert by_memory["verify_ratio"] == pytest.approx(1, abs=0.05)
    assert by_memory["cost_ratio"] == pytest.approx(1, abs=0.05)
    assert by_memory["speedup"] == pytest.approx(2 / 4, abs=0.05)
    assert by_arithmetic["verify_ratio"] == pytest.approx(40 / 4, abs=0.2)


@pytest.mark.slow
def test_pieces(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(beam_runs, "_REPETITIONS", 1)
    texts = ["the cat sat on the mat", "a dog", "it is late"]
    task = Task.of("three", [Example(text, text, text) for text in texts])
    runs = BeamRuns(
        "Tiny", lambda: task, str(tiny.target), str(tiny.draft), num_examples=2, max_decode_len=8,
        widths=(2,), gammas=(1,), hardware=(DEVICE,),
    )  # fmt: skip
    pieces = {"/".join(path): make for path, make in runs.pieces()}
    one = "tiny/beams/w2/gamma1"
    parts = [f"{one}/counts", f"{one}/time", "tiny/beams/w2/auto", "tiny/beams/quality"]
    assert list(pieces) == parts
    timed = pieces[f"{one}/time"](tmp_path / "time")
    assert timed["speedup"]["median"] > 0
    # It was counted for the prediction, and is not again.
    monkeypatch.setattr(beam_runs, "differences", None)
    found = pieces[f"{one}/counts"](tmp_path / "counts")
    assert found["num_rows"] == 2
    assert found["against_plain"]["differ"] == found["against_width_matched"]["differ"] == 0
    assert found["calls_saved"] == found["plain_calls"] / found["calls"]
    assert sum(found["levels"]) == sum(found["ends"].values()) == found["calls"]
    assert [each["hardware"] for each in found["computed"]] == ["device"]
    quality = pieces["tiny/beams/quality"](tmp_path / "quality")
    assert quality["num_rows"] == 3
    assert quality["beams"].keys() == {"bleu", "chrf"}
