import dataclasses

import pytest

from specdec.core import files
from specdec.measure import results
from specdec.measure.lossless import Mismatch
from specdec.measure.run_table import format_table
from specdec.measure.speed import Timings, summarize
from tests.measure.test_kept_rows import BEAMS, ROW
from tests.measure.test_speed import STATS, TOKENS, repetition

SETTINGS = {
    "task": "quickstart", "target": "big", "drafter": "small", "method": "speculative", "gamma": 2,
    "tree": None, "topology": {"nodes": 2, "siblings": 1},
    "stop_below": 0.0, "verifier": "TokenVerifier", "lossless": True, "draft_temperature": 0.0,
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "batch_size": 1,
    "dtype": "float32", "weights": None, "device": "2 cores", "num_skipped": 0, "mesh": None,
}  # fmt: skip
SAME = dataclasses.replace(ROW, mismatch=None)


def table(rows=(SAME,), speculative=3.0, **changes):
    speed = summarize(Timings([repetition(speculative=speculative)], 1, TOKENS, STATS))
    numbers = results.numbers(rows, 2, speed, checked=True)
    return format_table(SETTINGS | numbers | changes)


def test_rules_are_named():
    text = table(rules=["NoRepeatNgram(size=3)", "MinLength(length=4)"])
    assert "\nrules: NoRepeatNgram(size=3), MinLength(length=4)\n\n" in text
    assert "rules" not in table()
    warm = table(temperature=0.7, min_p=0.1, typical_p=0.5)
    assert "temperature 0.7, min-p 0.1, typical-p 0.5, batch size 1" in warm


def test_columns_are_aligned():
    lines = table().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("speedup"))
    header, whole, decoder, theorem = lines[start : start + 4]
    edge = header.index("predicted") + len("predicted")
    for line in (whole, decoder, theorem):
        assert line[:edge].rstrip() == line[:edge]
        assert line[edge : edge + 1] in ("", " ")
    edge = header.index("measured") + len("measured")
    assert whole[:edge].endswith("3.33")
    assert decoder[:edge].endswith("6.00")
    assert all(line == line.rstrip() for line in lines)


def test_numbers_are_there():
    text = table()
    for part in ("tokens", "alpha", "0.100", "block_efficiency", "1.500", "0.100  c:", "1.200  v:"):
        assert part in text


def test_the_mesh_is_named():
    assert "mesh" not in table()
    assert "2 cores, mesh 2 x 4 (data x model)" in table(mesh={"data": 2, "model": 4})


def test_other_weights_are_named_and_their_agreement_is_told():
    agreement = {"alpha": 0.9951, "alpha_interval": [0.9944, 0.9958], "num_texts": 256}
    text = table(weights="int8", agreement=agreement)
    assert text.startswith("quickstart: big with int8 weights drafted by small")
    assert "along 256 outputs the two agree at alpha 0.995 (95 %: 0.994 to 0.996)." in text
    assert "weights" not in table()


def test_lossless_and_mismatches():
    assert "all 1 rows equal to the width-matched reference, 1 to plain decoding" in table()
    text = table([ROW, SAME])
    assert "all 2 rows equal to the width-matched reference, 1 to plain decoding" in text
    assert "row 0 differs from plain decoding at token 1" in text
    assert "1e-07 apart" in text
    assert "NOT LOSSLESS" not in text


def test_a_broken_run_is_loud():
    broken = dataclasses.replace(ROW, width_matched_mismatch=ROW.mismatch)
    text = table([broken, SAME])
    assert "*** NOT LOSSLESS ***" in text
    assert "1 of 2 rows" in text


def test_speculation_that_does_not_pay_is_said_so():
    assert "does not pay" in table(speculative=12.0)
    assert "does not pay" not in table(predicted_speedup_whole=2.0)
    assert "0.90 predicted" in table(predicted_speedup_whole=0.9)


TREE = {
    "tree": "tree 3-2", "topology": {"nodes": 9, "siblings": 3}, "verifier": "RecursiveVerifier",
}  # fmt: skip


def test_a_tree_is_named_and_its_guesses_are_counted_by_rank():
    row = dataclasses.replace(SAME, accepted_by_rank=[291, 19, 10])
    text = table([row], **TREE)
    assert text.startswith("quickstart: big drafted by small, tree 3-2\n")
    for words in (
        "291 / 19 / 10  guesses, by their index among their siblings",
        "mean acceptance at a position", "v: target call on 10 tokens / on 1",
    ):  # fmt: skip
        assert words in text
    assert "gamma" not in text
    chain = table()
    assert "mean of sum min(p, q)" in chain
    assert "v: target call on 3 tokens / on 1" in chain
    assert "rank" not in chain
    assert "tree 3-2, TraversalVerifier" in table([row], **TREE | {"verifier": "TraversalVerifier"})
    assert "gamma 2, RecursiveVerifier" in table(verifier="RecursiveVerifier")


def test_beams_have_levels_and_why_blocks_ended():
    """Without what samples and chains have; predicted and measured speedup stand side by side."""
    row = dataclasses.replace(SAME, blocks=[], **BEAMS)
    found = results.numbers([row], 2, None, checked=True)
    assert found["levels_per_call"] == 1.5
    assert found["block_ends"] == {"miss": 1, "done": 1}
    spread = {"median": 0.5, "low": 0.4, "high": 0.6}
    found |= {
        "cost_ratio": 0.25, "verify_ratio": 2.0, "measured_speedup": 0.5,
        "predicted_speedup_whole": 0.6,
        "spread": {"repetitions": 3, "encode_ms": {}, "measured_speedup": spread,
                   "ms_per_token": {"beam": spread, "speculative_beam": spread}},
    }  # fmt: skip
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
        "0.60      0.50", "per token, speculative_beam",
        "all 1 rows equal to the width-matched reference", "does not pay here: speedup 0.50 meas",
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


def test_what_would_help_a_tree():
    assert "a smaller tree or a draft" in table(speculative=12.0, **TREE)
    assert "a smaller gamma or a draft" in table(speculative=12.0)


def test_disagreement_with_theory_is_said():
    def remark(predicted, measured):
        return table(predicted_speedup=predicted, measured_speedup_decoder=measured)

    assert "20% below the predicted" in remark(2.0, 1.6)
    assert "20% above the predicted" in remark(2.0, 2.4)
    assert "the predicted one" not in remark(2.0, 1.8)


def test_plain_decoding():
    plain = dataclasses.replace(
        SAME, proposed=0, examined=0, accepted=0, accepted_histogram=[3], accepted_by_rank=[],
        acceptance_prob_sum=0.0,
    )  # fmt: skip
    seconds = [{"autoregressive": 10.0, "target_encode": 1.0}]
    speed = summarize(Timings(seconds, 1, {"autoregressive": 1000}))
    numbers = results.numbers([plain], 0, speed, checked=False)
    text = format_table(SETTINGS | numbers | {"method": "autoregressive", "drafter": None})
    assert "per token, autoregressive" in text
    assert "speedup" not in text
    assert numbers["greedy_mismatches"] is None
    assert numbers["predicted_speedup"] is None


def test_rows_that_were_not_compared():
    numbers = results.numbers([SAME], 2, None, checked=False)
    assert "Not compared with plain decoding (CHECK = False)." in format_table(SETTINGS | numbers)


def test_no_timing_and_sampling():
    numbers = results.numbers([SAME], 2, None, checked=False)
    assert numbers["greedy_mismatches"] is None
    sampling = {"temperature": 0.5, "draft_temperature": 0.5, "top_k": 3, "top_p": 0.9}
    text = format_table(SETTINGS | numbers | sampling)
    assert "temperature 0.5, top-k 3, top-p 0.9" in text
    assert "Not compared" not in text
    assert "milliseconds" not in text


def test_a_lossy_verifier_and_another_draft_temperature_are_said():
    numbers = results.numbers([SAME], 2, None, checked=True)
    lossy = {"verifier": "LenientVerifier(lenience=0.5)", "lossless": False}
    text = format_table(SETTINGS | numbers | lossy | {"draft_temperature": 1.0})
    assert (
        "LOSSY: LenientVerifier(lenience=0.5) does not follow the target's distribution. 0 of 1"
        in text
    )
    assert "bug" not in text
    assert "guesses drawn at temperature 1, LenientVerifier(lenience=0.5)" in text
    sampled = format_table(SETTINGS | results.numbers([SAME], 2, None, checked=False) | lossy)
    assert "does not follow the target's distribution." in sampled


def test_blocks_with_fewer_guesses_have_only_the_counted_prediction():
    full = dataclasses.replace(SAME, proposed=2 * SAME.target_calls)
    fewer = dataclasses.replace(SAME, proposed=2 * SAME.target_calls - 1)

    def numbers(row):
        timings = Timings([repetition(speculative=3.0)], 1, TOKENS, row.stats(2))
        return results.numbers([row], 2, summarize(timings), checked=True)

    whole, less = numbers(full), numbers(fewer)
    assert whole["predicted_speedup"] is not None
    assert less["predicted_speedup"] is None
    assert less["predicted_speedup_counted"] > whole["predicted_speedup_counted"]


def test_quality():
    rows = [
        dataclasses.replace(
            SAME, output="the cat sat on the mat", reference="the cat sat on the mat"
        )
    ]
    numbers = results.numbers(rows, 2, None, checked=True)
    assert round(numbers["quality"]["bleu"]) == 100
    assert round(numbers["quality"]["chrf"]) == 100
    assert "BLEU 100.0  chrF 100.0" in format_table(SETTINGS | numbers)


def test_files_are_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    files.write_json(path, {"alpha": 0.5})
    assert path.read_text() == '{\n  "alpha": 0.5\n}\n'
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        files.write_json(path, {"alpha": 0.7})
    assert '"alpha": 0.5' in path.read_text()
