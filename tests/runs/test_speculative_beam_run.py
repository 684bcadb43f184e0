"""Speculative beams of a data set: the rows of plain beams, with fewer target calls."""

import re

from specdec.measure import beam_choice, chooser
from specdec.measure.timing import Timed
from tests.runs.decoding import main, read

BEAMS = ("BEAM=@BeamConfig()", "BeamConfig.num_beams=3", "NUM_RETURN=2")
PLAIN = ("METHOD='beam'", "GAMMA=None", *BEAMS)
FAST = ("METHOD='speculative_beam'", *BEAMS)


def test_the_rows_of_plain_beams(tiny, tmp_path, capsys):
    assert main(tiny, tmp_path / "plain", *PLAIN) == 0
    shown = (*FAST, "GAMMA=2", "DRAFT_BEAMS=5", "TIMING_EXAMPLES=2", "CHECK=True")
    capsys.readouterr()
    assert main(tiny, tmp_path / "fast", *shown) == 0
    text = capsys.readouterr().out
    (_, expected), (results, rows) = read(tmp_path / "plain"), read(tmp_path / "fast")
    for row, its in zip(rows, expected, strict=True):
        assert [each["tokens"] for each in row["beams"]] == [e["tokens"] for e in its["beams"]]
        assert row["output"] == its["output"]
        assert row["accepted"] + row["target_calls"] == its["target_calls"]
        assert row["proposed"] == 10 * row["target_calls"]
        assert sum(row["accepted_histogram"]) == row["target_calls"]
    assert results["gamma"] == 2
    assert results["draft_beams"] == 5
    assert results["greedy_mismatches"] == results["greedy_mismatches_width_matched"] == 0
    calls = sum(row["target_calls"] for row in rows)
    assert sum(results["block_ends"].values()) == calls
    assert results["levels_per_call"] * calls == sum(row["target_calls"] for row in expected)
    for row in rows:
        assert len(row["searched"]) == row["target_calls"]
        levels = sum(len(block["survivors"]) for block in row["searched"])
        assert levels == row["accepted"] + row["target_calls"]
    assert results["topology"] == {"nodes": 3 + 2 * 5, "siblings": 5}
    assert results["predicted_speedup_whole"] > 0
    assert results["spread"]["ms_per_token"].keys() == {"beam", "speculative_beam"}
    assert "| between hypotheses, / between levels." in text
    assert re.search(rf"levels_per_call +{results['levels_per_call']:.3f} ", text)
    assert "</table>" in (tmp_path / "fast" / "trace.html").read_text()


def test_auto(tiny, tmp_path, monkeypatch, capsys):
    """Plain beams are faster here, by a clock that says so."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(beam_choice, "GAMMAS", (1,))
    monkeypatch.setattr(chooser, "SECONDS", {"beams": 600.0})

    def timed(decoders, batches, repetitions, **options):
        return [{
            name: Timed(1 + name.startswith("gamma"), 0.0, tuple(map(decoder.decode, batches)))
            for name, decoder in decoders.items()
        }]  # fmt: skip

    monkeypatch.setattr(chooser, "time_in_turns", timed)
    assert main(tiny, tmp_path / "auto", *FAST, "GAMMA='auto'") == 0
    results, _ = read(tmp_path / "auto")
    assert results["method"] == "beam"
    assert results["gamma_choice"]["shape"] is None
    assert "Speculation does not pay here" in capsys.readouterr().err
