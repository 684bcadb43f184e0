"""Decodes of a reproduction that are compiled: what is asked for, kept, and made of the reports."""

import dataclasses

import pytest

from specdec.compile.programs import DoesNotFitError
from specdec.core.theory import expected_tokens
from specdec.reproduce import paper
from specdec.reproduce.runs import compiled_runs
from specdec.reproduce.runs.compiled_runs import CompiledDecodes

SHAPES = {"T5-XXL": "target", **{row.draft: row.draft for row in paper.TABLE_4}}
ONE = {"chip": "v4", "target": "T5-XXL", "draft": "T5-small", "gamma": 7}


@dataclasses.dataclass
class Report:
    """A report that says how it was asked for."""

    asked: dict
    plain: str = "plain"

    def json(self):
        return {key: self.asked[key] for key in ("chip", "gamma", "max_input_len")}

    def speedup(self, tokens):
        return tokens


@pytest.fixture
def compiled(monkeypatch):
    """The calls of the compiler."""
    calls = []

    def compile_report(target, draft, **asked):
        calls.append((draft, asked))
        return Report(asked)

    monkeypatch.setattr(compiled_runs, "compile_report", compile_report)
    monkeypatch.setattr(compiled_runs, "_PLAIN", {})
    return calls


def test_a_decode_is_compiled_once(compiled, tmp_path):
    (piece,) = CompiledDecodes("steps", SHAPES, [ONE]).pieces()
    assert piece.path == ("steps", "compiled", "chipv4_targett5_xxl_draftt5_small_gamma7")
    first, again = piece.do(tmp_path), piece.do(tmp_path)
    assert (first.measured, again.measured) == (True, False)
    assert first.result == again.result
    assert first.result["chip"] == "v4"
    assert first.result["settings"].items() >= ONE.items()
    (other,) = CompiledDecodes("steps", SHAPES, [ONE | {"gamma": 5}]).pieces()
    assert other.do(tmp_path).result["gamma"] == 5
    # Plain decoding of both is the same program.
    assert [asked["plain"] for _, asked in compiled] == [None, "plain"]


def test_the_papers_rows_have_its_alpha_and_gamma(compiled, tmp_path):
    study = CompiledDecodes("paper", SHAPES, [], "v4", {"EnDe": 64, "CNNDM": 512})
    pieces = list(study.pieces())
    assert len({piece.path for piece in pieces}) == len(paper.TABLE_4)
    for row, piece in zip(paper.TABLE_4, pieces, strict=True):
        found = piece.do(tmp_path.joinpath(*piece.path)).result
        draft, asked = compiled[-1]
        assert (draft, asked["gamma"]) == (row.draft, row.gamma)
        assert asked["sampling"].temperature == row.temperature
        assert asked["max_input_len"] == (64 if row.task == "EnDe" else 512)
        assert found["speedup"] == expected_tokens(row.alpha, row.gamma)


def test_what_does_not_fit_is_a_result(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise DoesNotFitError("Does not fit: too much.")

    monkeypatch.setattr(compiled_runs, "compile_report", refuse)
    (piece,) = CompiledDecodes("steps", SHAPES, [ONE]).pieces()
    assert piece.do(tmp_path).result["does_not_fit"] == "Does not fit: too much."
