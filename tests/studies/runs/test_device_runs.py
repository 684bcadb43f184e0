"""The study of one accelerator, at a tiny size on whatever device there is."""

import json

from specdec.models.t5.config import T5Config
from specdec.studies.runs.device_runs import AS_IT_IS, NO_KERNELS, NO_OPTIONS, DeviceRuns

TINY = T5Config(
    vocab_size=64, d_model=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1,
    d_ff=32,
)  # fmt: skip


def test_everything_is_timed_and_kept(tmp_path):
    runs = DeviceRuns(
        "T5", {"tiny": TINY}, TINY, ["tiny"], 2, (2, 1), 0.75, 16, 8, "float32", 2
    )  # fmt: skip
    ((index, make),) = runs.pieces()
    found = make(tmp_path.joinpath(*index))
    ways = [(d["method"], d["temperature"], d["compiled"]) for d in found["decodes"]]
    assert ways == [
        ("plain", 0.0, AS_IT_IS), ("chain", 0.0, AS_IT_IS), ("tree", 0.0, AS_IT_IS),
        ("plain", 1.0, AS_IT_IS), ("chain", 1.0, AS_IT_IS),
        ("plain", 0.0, NO_OPTIONS), ("chain", 0.0, NO_OPTIONS),
        ("plain", 0.0, NO_KERNELS), ("chain", 0.0, NO_KERNELS),
    ]  # fmt: skip
    for decode in found["decodes"]:
        assert decode["tokens"] == 8
        assert min(decode["first_token_ms"]["low"], decode["ms"]["low"]) > 0
        assert decode["blocks"] == 8 if decode["method"] == "plain" else decode["blocks"] <= 8
        assert decode["speedup"]["low"] > 0
    same = found["same_arithmetic"]
    assert same["guesses"] >= 4
    assert 0 <= same["rejected"] <= 2  # Calls of other widths round otherwise on a CPU.
    again = make(tmp_path.joinpath(*index))
    assert again == json.loads(json.dumps(found))
