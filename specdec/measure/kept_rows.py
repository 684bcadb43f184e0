"""The rows of a run: ``decodes.jsonl``, appended as they finish, read back by a resumed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec.core.stats import RunStats
from specdec.decoding.blocks import Block, SearchedBlock
from specdec.decoding.hypotheses import Hypothesis
from specdec.measure.lossless import Mismatch
from specdec.measure.rows import read_lines
from specdec.types import Stats

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
    blocks: list[Block]  # Accepted, rejected and added tokens of each block.
    # Of each token, if asked for; see `specdec.types.LogProbs`. Alternatives are [token, log p].
    log_probs: list[float] | None = None
    adjusted_log_probs: list[float] | None = None
    alternatives: list[list[tuple[int, float]]] | None = None
    # First difference from plain greedy decoding; None where there is none or when sampling.
    mismatch: Mismatch | None = None
    width_matched_mismatch: Mismatch | None = None  # The same against the width-matched reference.
    # Of beam search, the best hypotheses: see `specdec.decoding.hypotheses.Hypothesis`.
    beams: list[dict[str, Any]] | None = None
    searched: list[SearchedBlock] | None = None  # Blocks of speculative beams.

    @classmethod
    def of(
        cls, outputs: Sequence[Hypothesis], stats: Stats, index: int, *, id: int, input: str,
        reference: str | None,
    ) -> Row:  # fmt: skip
        """Row ``index`` of a decode, without mismatches.

        Args:
          outputs: the row's one, with its blocks; or of beam search its hypotheses, best first.
          stats: the whole batch's.
        """
        best, about = outputs[0], {}
        if best.score is None:
            about = {"blocks": best.blocks, **_log_probs(best)}
        else:
            about = {"blocks": [], "beams": [*map(_fields, outputs)], "searched": best.blocks}
        return cls(
            id=id, input=input, output=best.text, reference=reference, tokens=best.tokens.tolist(),
            num_tokens=len(best.tokens), **_counts(stats, index), **about,
        )  # fmt: skip

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Row:
        """A row from its line of JSON.

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
    """A hypothesis for JSON, without fields that were not asked for."""
    log_probs = {name: getattr(beam, name) for name in ("log_probs", "adjusted_log_probs")}
    kept = {name: value.tolist() for name, value in log_probs.items() if value is not None}
    numbers = {"score": beam.score, "log_prob": beam.log_prob}
    return {"tokens": beam.tokens.tolist(), **numbers, "text": beam.text, **kept}


def _log_probs(output: Hypothesis) -> dict[str, Any]:
    """Log-probabilities of a row's tokens, if they were kept."""
    if output.log_probs is None or output.adjusted_log_probs is None:
        return {}
    pairs = None
    if output.alternatives is not None:
        each = zip(*(values.tolist() for values in output.alternatives), strict=True)
        pairs = [[*zip(*lists, strict=True)] for lists in each]
    return {
        "log_probs": output.log_probs.tolist(),
        "adjusted_log_probs": output.adjusted_log_probs.tolist(),
        "alternatives": pairs,
    }
