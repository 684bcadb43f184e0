import dataclasses

import pytest

from specdec.measure import results
from specdec.measure.lossless import Mismatch
from specdec.measure.run_table import format_table
from specdec.measure.speed import summarize
from tests.measure.test_kept_rows import BEAMS, ROW
from tests.measure.test_speed import repetition

SETTINGS = {
    "task": "quickstart", "target": "big", "drafter": "small", "method": "speculative", "gamma": 2,
    "tree": None, "topology": {"nodes": 2, "siblings": 1},
    "stop_below": 0.0, "verifier": "TokenVerifier", "lossless": True, "draft_temperature": 0.0,
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "batch_size": 1,
    "dtype": "float32", "weights": None, "device": "2 cores", "num_skipped": 0, "mesh": None,
}  # fmt: skip
SAME = dataclasses.replace(ROW, mismatch=None)


def table(rows=(SAME,), calls=100, **changes):
    speed = summarize([repetition(calls=calls)], 2)
    numbers = results.numbers(rows, 2, speed, checked=True)
    return format_table(SETTINGS | numbers | changes)


BROKEN = dataclasses.replace(ROW, width_matched_mismatch=ROW.mismatch)
TREE = {
    "tree": "tree 3-2", "topology": {"nodes": 9, "siblings": 3}, "verifier": "RecursiveVerifier",
    "rows": [dataclasses.replace(SAME, accepted_by_rank=[291, 19, 10])],
}  # fmt: skip
LOSSY = {"verifier": "LenientVerifier(lenience=0.5)", "lossless": False, "draft_temperature": 1.0}
INT8 = {
    "weights": "int8",
    "agreement": {"alpha": 0.9951, "alpha_interval": [0.9944, 0.9958], "num_texts": 256},
}
SAID = [
    ({"rules": ["NoRepeatNgram(size=3)", "MinLength(length=4)"]},
     "\nrules: NoRepeatNgram(size=3), MinLength(length=4)\n\n"),
    ({"temperature": 0.7, "min_p": 0.1, "typical_p": 0.5},
     "temperature 0.7, min-p 0.1, typical-p 0.5, batch size 1"),
    ({"mesh": {"data": 2, "model": 4}}, "2 cores, mesh 2 x 4 (data x model)"),
    (INT8, "quickstart: big with int8 weights drafted by small"),
    (INT8, "along 256 outputs the two agree at alpha 0.995 (95 %: 0.994 to 0.996)."),
    ({"rows": [ROW, SAME]}, "all 2 rows equal to the width-matched reference, 1 to plain decoding"),
    ({"rows": [ROW, SAME]}, "row 0 differs from plain decoding at token 1"),
    ({"rows": [BROKEN, SAME]}, "*** NOT LOSSLESS ***"),
    ({"rows": [BROKEN, SAME]}, "1 of 2 rows"),
    ({"rows": [dataclasses.replace(SAME, output="a cat sat on", reference="a cat sat on")]},
     "BLEU 100.0  chrF 100.0"),
    ({"calls": 800}, "does not pay"),
    ({"calls": 800}, "a smaller gamma or a draft"),
    ({"predicted_speedup_whole": 0.9}, "0.90 predicted"),
    ({"predicted_speedup": 2.0, "measured_speedup_decoder": 1.6}, "20% below the predicted"),
    ({"predicted_speedup": 2.0, "measured_speedup_decoder": 2.4}, "20% above the predicted"),
    (TREE, "quickstart: big drafted by small, tree 3-2\n"),
    (TREE, "291 / 19 / 10  guesses, by their index among their siblings"),
    (TREE, "mean acceptance at a position"), (TREE, "v: target call on 10 tokens / on 1"),
    (TREE | {"verifier": "TraversalVerifier"}, "tree 3-2, TraversalVerifier"),
    ({"verifier": "RecursiveVerifier"}, "gamma 2, RecursiveVerifier"),
    (LOSSY, "LOSSY: LenientVerifier(lenience=0.5) does not follow the target's distribution."),
    (LOSSY, "guesses drawn at temperature 1, LenientVerifier(lenience=0.5)"),
]  # fmt: skip


def test_what_is_said_where_it_is_so_alone():
    plain = table(predicted_speedup_whole=2.0)
    for changes, words in SAID:
        assert words in table(**changes), words
        assert words not in plain, words
    speedups = {"predicted_speedup": 2.0, "measured_speedup_decoder": 1.8}
    assert "the predicted one" not in table(**speedups)
    assert "NOT LOSSLESS" not in table([ROW, SAME])
    for words in ("1.500", "0.100  c:", "1.200  v:", "mean of sum min(p, q)"):
        assert words in plain


def test_beams_have_levels_and_why_blocks_ended():
    """Without what samples and chains have; predicted and measured speedup stand side by side."""
    row = dataclasses.replace(SAME, blocks=[], **BEAMS)
    names = ("beam", "speculative_beam", "without a draft")
    speed = summarize([dict(zip(names, repetition(calls=1400).values(), strict=True))], 2)
    found = results.numbers([row], 2, speed, checked=True)
    assert found["levels_per_call"] == 1.5
    assert found["block_ends"] == {"miss": 1, "done": 1}
    assert found["ms_per_token"].keys() == {"beam", "speculative_beam"}
    assert found["predicted_speedup_whole"] == pytest.approx(1.5 / (1.2 + 2 * 0.1))
    assert found["predicted_speedup"] is found["predicted_speedup_counted"] is None
    beams = {
        "method": "speculative_beam", "beam": {"num_beams": 2, "rule": "t5x"},
        "topology": {"nodes": 8, "siblings": 3},
    }  # fmt: skip
    text = format_table(SETTINGS | found | beams)
    assert text.startswith(
        "quickstart: big, 2 beams by the rule t5x, drafted by small, gamma 2\nbatch"
    )
    for words in (
        "1.500  calls of plain beams / calls", "done 1, miss 1", "v: call on 8 tokens / of plain",
        "1.07      0.47", "per token, speculative_beam",
        "all 1 rows equal to the width-matched reference", "does not pay here: speedup 0.47 meas",
    ):  # fmt: skip
        assert words in text, text
    for words in ("alpha", "decoder only", "greedy"):
        assert words not in text
    differ = dataclasses.replace(row, mismatch=Mismatch(1, 3e-6, [6, 1]))
    text = format_table(SETTINGS | results.numbers([differ], 2, None, checked=True) | beams)
    assert "row 0 differs from plain beams at hypothesis 2: the two scores are 3e-06 apart" in text
    plain = SETTINGS | results.numbers(
        [dataclasses.replace(row, searched=None)], 0, None, checked=False
    )
    text = format_table(plain | beams | {"method": "beam", "gamma": 0})
    assert text.startswith("quickstart: big, 2 beams by the rule t5x\n")
    assert "levels" not in text


def test_plain_decoding():
    plain = dataclasses.replace(
        SAME, proposed=0, examined=0, accepted=0, accepted_histogram=[3], accepted_by_rank=[],
        acceptance_prob_sum=0.0,
    )  # fmt: skip
    speed = summarize([{"autoregressive": repetition()["autoregressive"]}])
    numbers = results.numbers([plain], 0, speed, checked=False)
    text = format_table(SETTINGS | numbers | {"method": "autoregressive", "drafter": None})
    assert "per token, autoregressive" in text
    assert "speedup" not in text
    assert numbers["greedy_mismatches"] is None
    assert numbers["predicted_speedup"] is None


def test_no_timing_and_sampling():
    numbers = results.numbers([SAME], 2, None, checked=False)
    assert numbers["greedy_mismatches"] is None
    sampling = {"temperature": 0.5, "draft_temperature": 0.5, "top_k": 3, "top_p": 0.9}
    text = format_table(SETTINGS | numbers | sampling)
    assert "temperature 0.5, top-k 3, top-p 0.9" in text
    assert "Not compared" not in text
    assert "milliseconds" not in text


def test_blocks_with_fewer_guesses_have_only_the_counted_prediction():
    full = dataclasses.replace(SAME, proposed=2 * SAME.target_calls)
    fewer = dataclasses.replace(SAME, proposed=2 * SAME.target_calls - 1)

    def numbers(row):
        speed = dataclasses.replace(summarize([repetition()], 2), blocks=row.stats(2))
        return results.numbers([row], 2, speed, checked=True)

    whole, less = numbers(full), numbers(fewer)
    assert whole["predicted_speedup"] is not None
    assert less["predicted_speedup"] is None
    assert less["predicted_speedup_counted"] > whole["predicted_speedup_counted"]
