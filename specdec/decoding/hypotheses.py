"""Outputs of a text, whatever decoded them: a chain's is one hypothesis, beams have several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from specdec.decoding.blocks import Block, SearchedBlock

End = Literal["eos", "limit", "stop", "time"]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """An output of a text.

    Attributes:
      tokens: [T] int32, EOS included, without padding.
      ended: why: "eos", "limit" (``max_decode_len``), "stop" (a stop string or stop token) or
        "time" (``time_limit``).
      text: the output's addition to the text of a decoder-only model, or to ``prefix``, without
        what ends it. None without a vocabulary.
      score, log_prob: of beam search, the score by its rule, by which hypotheses are ordered, and
        the sum of log p. None for other methods.
      log_probs: with ``log_probs=True``, [T] float32: log p of each token by the target's own
        distribution, softmax(logits).
      adjusted_log_probs: the same by the distribution that outputs follow: with rules, and above
        temperature 0 with temperature, top-k and so on. ``log_prob`` is their sum.
      ruled_log_probs: the same with rules, at temperature 1; of beams those above are these.
      margins: with ``audit=True``, [T] float32: the largest logit at each token, after rules, minus
        the second largest.
      alternatives: with ``top_log_probs=n``, the likeliest tokens [T, n] in place of each token,
        best first, and their log p [T, n].
      blocks: with ``trace=True``, what each block accepted, rejected and added; of speculative
        beams those of the search, which all of its hypotheses share.
    """

    tokens: np.ndarray
    ended: End
    text: str | None = None
    score: float | None = None
    log_prob: float | None = None
    log_probs: np.ndarray | None = None
    adjusted_log_probs: np.ndarray | None = None
    ruled_log_probs: np.ndarray | None = None
    margins: np.ndarray | None = None
    alternatives: tuple[np.ndarray, np.ndarray] | None = None
    blocks: list[Block] | list[SearchedBlock] | None = None

    def without_time(self) -> Hypothesis:
        """An output of the same method for which there was no time."""

        def none(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[:0]

        alternatives = self.alternatives and (self.alternatives[0][:0], self.alternatives[1][:0])
        return Hypothesis(
            self.tokens[:0], "time", None if self.text is None else "", None, None,
            none(self.log_probs), none(self.adjusted_log_probs), none(self.ruled_log_probs),
            none(self.margins), alternatives, None if self.blocks is None else [],
        )  # fmt: skip


def end_of(tokens: np.ndarray, stopped: bool, eos_ids: Sequence[int], limit: int) -> End:
    """Why an output has ended; "time" if it did not end by itself.

    Args:
      stopped: whether a stop string or stop token ended it.
      limit: tokens that it may have.
    """
    if stopped:
        return "stop"
    if len(tokens) and tokens[-1] in eos_ids:
        return "eos"
    return "limit" if len(tokens) >= limit else "time"
