"""Whether speculative decoding gives the outputs of plain decoding: greedy ones, and beams."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import cast

import jax.numpy as jnp
import numpy as np

from specdec.core.compilation import decode_jit
from specdec.core.topology import Topology
from specdec.decoding.hypotheses import Hypothesis
from specdec.models.base import LoadedModel, Model
from specdec.models.placing import to_host
from specdec.rules.base import Rules, adjusted, at_nodes
from specdec.rules.base import start as begin
from specdec.types import Prompt


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Difference of one row from a reference decode; of beams, from its list of hypotheses."""

    position: int  # Of the first token, or hypothesis, that differs, from 0.
    # The target's largest logit there, after rules, minus its second largest. A difference with a
    # gap near the arithmetic's own precision is a tie broken otherwise; any other is a bug. Of
    # beams, the difference of the two scores.
    top2_gap: float
    expected: list[int]  # The reference's tokens.


def first_difference(tokens: Sequence[int], expected: Sequence[int]) -> int | None:
    """Index of the first token that differs; a missing token differs. None where all are equal."""
    pairs = itertools.zip_longest(tokens, expected)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)


@dataclasses.dataclass(frozen=True)
class Audit:
    """How near to ties greedy tokens were, and how far rounding moved them.

    A margin is a token's logit minus the second largest, after rules.

    Attributes:
      num_tokens: of all outputs.
      rounding: the largest difference between margins of two decodes whose target calls have other
        numbers of tokens, as far as their tokens are the same, and where they part; in logits.
      close: tokens whose margin is at most ``rounding``; at 0, those that are tied.
      differing: outputs whose tokens differ between the two decodes.
    """

    num_tokens: int
    rounding: float
    close: int
    differing: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Hypothesis, Hypothesis]]) -> Audit:
        """The audit of outputs, each with that of another decode."""
        pairs = list(pairs)
        largest = max((rounding(*pair) for pair in pairs), default=0.0)
        margins = np.concatenate([cast(np.ndarray, own.margins) for own, _ in pairs] or [[]])
        close = int(np.sum(margins <= largest))
        tokens = ([each.tokens.tolist() for each in pair] for pair in pairs)
        return cls(len(margins), largest, close, sum(ours != theirs for ours, theirs in tokens))


def rounding(found: Hypothesis, other: Hypothesis) -> float:
    """The largest difference of margins while tokens are the same, and where they part."""
    assert found.margins is not None
    assert other.margins is not None
    ours, theirs = found.tokens.tolist(), other.tokens.tolist()
    shared = min(len(ours), len(theirs))
    part = first_difference(ours[:shared], theirs[:shared])
    end = shared if part is None else part
    with np.errstate(invalid="ignore"):  # Of two that are infinite: rules left one token.
        apart = np.nan_to_num(np.abs(found.margins[:end] - other.margins[:end]))
    across = 0.0 if part is None else found.margins[part] + other.margins[part]
    return float(max(apart.max(initial=0.0), across))


def compare(
    target: LoadedModel, prompt: Prompt, tokens: Sequence[int], expected: Sequence[int],
    rules: Rules = (), limit: int = 0,
) -> Mismatch | None:  # fmt: skip
    """The first difference between a row and its reference, or None.

    Args:
      prompt: of the row alone.
      tokens, expected: the row's own tokens and the reference's.
      rules: for logits, that both followed.
      limit: tokens that the row might emit, as rules get it.
    """
    position = first_difference(tokens, expected)
    if position is None:
        return None
    # A few widths in all, so that many mismatches do not mean many programs.
    padded = np.zeros((1, 1 << position.bit_length()), np.int32)
    padded[0, :position] = expected[:position]
    logits = _logits(target.model, target.params, prompt, padded, rules, limit)
    second, first = np.sort(to_host(logits)[0, position])[-2:]
    return Mismatch(position, float(first - second), [int(t) for t in expected])


def compare_beams(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> Mismatch | None:
    """The first hypothesis whose tokens differ from those of the same rank, or None."""
    lists = [[each.tokens.tolist() for each in beams] for beams in (found, expected)]
    index = next(
        (i for i, (mine, its) in enumerate(zip(*lists, strict=False)) if mine != its), None
    )
    if index is None:
        if len(found) == len(expected):
            return None
        return Mismatch(min(len(found), len(expected)), math.inf, [])
    gap = abs((found[index].score or 0.0) - (expected[index].score or 0.0))
    return Mismatch(index, gap, lists[1][index])


@decode_jit(what="the target's logits", static_argnames="model")
def _logits(model: Model, params, prompt, tokens, rules, limit):
    start = model.start(params, prompt, tokens.shape[1] + 1)
    block = jnp.concatenate([start.last_token[:, None], tokens], axis=1)
    logits = model.logits(params, model.extend(params, start.encoded, start.cache, block)[0])
    if not rules:
        return logits
    size = tokens.shape[1]
    states = at_nodes(rules, begin(rules, prompt, limit, size), tokens, Topology.chain(size))
    return adjusted(rules, states, logits)[0]
