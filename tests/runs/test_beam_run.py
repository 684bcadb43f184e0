"""Beam search of a data set: n-best lists in decodes.jsonl, continued after a stop, planned."""

import re

import specdec
from tests.runs.decoding import main, read

BEAMS = ("METHOD='beam'", "GAMMA=None", "BEAM=@BeamConfig()", "BeamConfig.num_beams=3")


def test_n_best_lists_and_quality(tiny, tmp_path, capsys):
    assert main(tiny, tmp_path / "whole", *BEAMS, "NUM_RETURN=2") == 0
    results, rows = read(tmp_path / "whole")
    assert "3 beams by the rule t5x" in capsys.readouterr().out
    assert results["beam"] == {
        "num_beams": 3, "rule": "t5x", "alpha": 0.6, "length_penalty": None, "early_stopping": None
    }  # fmt: skip
    assert results["quality"].keys() == {"bleu", "chrf"}
    assert results["greedy_mismatches"] is None
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft)
    out = pair.generate(
        [row["input"] for row in rows], method="beam", beam=specdec.BeamConfig(3), num_return=2,
        max_decode_len=12,
    )  # fmt: skip
    assert out.beams is not None
    for row, beams in zip(rows, out.beams, strict=True):
        assert [each["tokens"] for each in row["beams"]] == [e.tokens.tolist() for e in beams]
        assert [each["text"] for each in row["beams"]] == [e.text for e in beams]
        assert row["output"] == row["beams"][0]["text"]
        assert row["target_calls"] >= row["num_tokens"] == len(row["beams"][0]["tokens"])
    # Stopped after two rows and continued.
    whole = (tmp_path / "whole" / "decodes.jsonl").read_bytes()
    (tmp_path / "whole" / "decodes.jsonl").write_bytes(b"".join(whole.splitlines(True)[:2]))
    (tmp_path / "whole" / "results.json").unlink()
    assert main(tiny, tmp_path / "whole", *BEAMS, "NUM_RETURN=2") == 0
    assert (tmp_path / "whole" / "decodes.jsonl").read_bytes() == whole


def test_a_plan_of_beams(tiny, tmp_path, capsys):
    """Caches hold every beam."""

    def said(*bindings):
        assert main(tiny, tmp_path, *bindings, dry_run=True) == 0
        return capsys.readouterr().out

    def cache(text):
        (line,) = (line for line in text.splitlines() if line.startswith("self-attention"))
        return float(re.search(r"([\d.]+) MB", line)[1])

    three = said(*BEAMS)
    assert "beam, 3 beams, temperature 0" in three
    assert cache(three) > 2 * cache(said("METHOD='autoregressive'", "GAMMA=0"))
    fast = ("METHOD='speculative_beam'", "BEAM=@BeamConfig()", "GAMMA=2", "DRAFT_BEAMS=5")
    assert "speculative_beam, 4 beams, gamma 2" in said(*fast)
