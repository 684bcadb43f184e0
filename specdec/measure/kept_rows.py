"""The rows of a run: ``decodes.jsonl``, appended as they finish, read back by a resumed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec.core.stats import RunStats
from specdec.decoding.batches import Block, blocks_of
from specdec.decoding.beam import Hypothesis
from specdec.decoding.speculative_beam import SearchedBlock
from specdec.measure.lossless import Mismatch
from specdec.measure.rows import read_lines
from specdec.types import DecodeResult, Stats

_COUNTS = ("target_calls", "proposed", "examined", "accepted", "dropped")


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoded example; an object of ``decodes.jsonl`` has these keys."""

    id: int  # Its index in the task.
    # Texts; output is None without a vocabulary.
    input: str
    output: str | None
    reference: str | None  # The task's, or None.
    tokens: list[int]  # The output, EOS included.
    # This row's counts; see `Stats`.
    num_tokens: int
    target_calls: int
    proposed: int
    examined: int
    accepted: int
    dropped: int
    accepted_histogram: list[int]
    accepted_by_rank: list[int]
    acceptance_prob_sum: float
    blocks: list[Block]  # What each block accepted, rejected and added.
    # Of each token, if asked for; see `specdec.types.LogProbs`. Alternatives are [token, log p].
    log_probs: list[float] | None = None
    adjusted_log_probs: list[float] | None = None
    alternatives: list[list[tuple[int, float]]] | None = None
    # First difference from plain greedy decoding; None where there is none or when sampling.
    mismatch: Mismatch | None = None
    width_matched_mismatch: Mismatch | None = None  # The same against the width-matched reference.
    # Of beam search, the best hypotheses: see `specdec.decoding.beam.Hypothesis`.
    beams: list[dict[str, Any]] | None = None
    searched: list[SearchedBlock] | None = None  # What each block of speculative beams did.

    @classmethod
    def of(
        cls, result: DecodeResult, index: int, *, id: int, input: str, reference: str | None
    ) -> Row:
        """Row ``index`` of a traced decode, without output text and mismatches."""
        assert result.trace is not None
        return cls(
            id=id, input=input, output=None, reference=reference,
            tokens=[int(t) for t in result.tokens[index, : result.num_tokens[index]]],
            num_tokens=int(result.num_tokens[index]), **_counts(result.stats, index),
            blocks=blocks_of(result.trace, index), **_log_probs(result, index),
        )  # fmt: skip

    @classmethod
    def of_beams(
        cls, beams: Sequence[Hypothesis], stats: Stats, index: int, *, id: int, input: str,
        reference: str | None, searched: list[SearchedBlock] | None,
    ) -> Row:  # fmt: skip
        """Row ``index`` of a beam search, without mismatches.

        Args:
          beams: its hypotheses, best first.
          searched: its blocks; None of plain beams.
        """
        best = beams[0]
        return cls(
            id=id, input=input, output=best.text, reference=reference, tokens=best.tokens.tolist(),
            num_tokens=len(best.tokens), **_counts(stats, index), blocks=[],
            beams=[_fields(each) for each in beams],
            searched=searched,
        )  # fmt: skip

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Row:
        """A row of what its line of JSON holds.

        Raises:
          TypeError, KeyError: these are no row's fields.
        """
        fields["blocks"] = [Block(**block) for block in fields["blocks"]]
        if fields.get("searched") is not None:
            fields["searched"] = [SearchedBlock(**block) for block in fields["searched"]]
        for name in ("mismatch", "width_matched_mismatch"):
            fields[name] = fields[name] and Mismatch(**fields[name])
        return cls(**fields)

    def stats(self, gamma: int) -> RunStats:
        """This row's counts, to be added to others'; ``gamma`` is 0 for plain decoding."""
        return RunStats(
            gamma, 1, emitted=self.num_tokens, **{name: getattr(self, name) for name in _COUNTS},
            accepted_histogram=tuple(self.accepted_histogram),
            accepted_by_rank=tuple(self.accepted_by_rank),
            acceptance_prob_sum=self.acceptance_prob_sum,
        )  # fmt: skip


def _counts(stats: Stats, index: int) -> dict[str, Any]:
    """A row's counts."""
    return {name: int(getattr(stats, name)[index]) for name in _COUNTS} | {
        "accepted_histogram": [int(n) for n in stats.accepted_histogram[index]],
        "accepted_by_rank": [int(n) for n in stats.accepted_by_rank[index]],
        "acceptance_prob_sum": float(stats.acceptance_prob_sum[index]),
    }


def read_rows(path: Path) -> Iterator[Row]:
    """Complete rows of a ``decodes.jsonl``; see :func:`specdec.measure.rows.read_lines`."""
    return read_lines(path, Row.from_fields)


def _fields(beam: Hypothesis) -> dict[str, Any]:
    """A hypothesis for JSON; of what was not asked for nothing."""
    fields = {name: value for name, value in vars(beam).items() if not name.endswith("log_probs")}
    told = {name: getattr(beam, name) for name in ("log_probs", "adjusted_log_probs")}
    kept = {name: value.tolist() for name, value in told.items() if value is not None}
    return fields | {"tokens": beam.tokens.tolist()} | kept


def _log_probs(result: DecodeResult, index: int) -> dict[str, Any]:
    """Of a row's tokens, if they were kept."""
    if result.log_probs is None:
        return {}
    told, count = result.log_probs, result.num_tokens[index]
    pairs = [
        [(int(token), float(log_prob)) for token, log_prob in zip(*each, strict=True)]
        for each in zip(told.top_tokens[index, :count], told.top[index, :count], strict=True)
    ]
    return {
        "log_probs": told.plain[index, :count].tolist(),
        "adjusted_log_probs": told.adjusted[index, :count].tolist(),
        "alternatives": pairs if told.top.shape[-1] else None,
    }
