"""How likely one of K guesses of a position is accepted, along texts of the target's own.

As in :mod:`specdec.measure.alpha`, target and drafter are asked at every position of a text that
the target generated, and the text goes on whatever they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.compilation import decode_jit
from specdec.core.pytrees import pytree
from specdec.core.reductions import sum_last
from specdec.core.theory_measured import cluster_interval
from specdec.core.theory_siblings import independent_optimum, optimum_without_replacement
from specdec.core.topology import Topology
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.growing import draw_siblings, likeliest
from specdec.measure.alpha import along_texts
from specdec.types import Distribution, Draft, PointMass, Prompt, Purpose, Seed
from specdec.verifiers.base import Verifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.tree import judge, siblings_after
from specdec.verifiers.typical import TypicalVerifier

MOST = 8  # Guesses of a position.
COUNTS = (1, 2, 4, 8)
# The rules, and the bounds of the last two's ways of guessing; keys of results.
DEFAULT, INDEPENDENT, KSEQ, LIKELIEST = "recursive", "recursive_independent", "kseq", "likeliest"
OPTIMUM, INDEPENDENT_OPTIMUM = "optimum", "optimum_independent"
# How far typical acceptance, the lossy rule, is from the target's distribution.
TYPICAL_INDEPENDENT, TYPICAL_LIKELIEST = "typical_independent", "typical_likeliest"
_TYPICAL = TypicalVerifier()
_DRAWS = 8  # Sets of guesses drawn at a position, where the acceptance depends on them.
_ROWS = 64  # Positions that are judged together.


@pytree
class Distributions:
    """What follows each position of texts [B, L]."""

    # The target's probabilities [B, L, V] and the first guess's; or at temperature 0 the target's
    # token [B, L] and the draft's likeliest ones [B, L, K]. Beyond a text's end anything.
    target: Array
    draft: Array


@decode_jit(static_argnames=("engine",))
def replay(
    engine: Engine, params: EngineParams, prompt: Prompt, row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int, seed: Seed, tokens: Int[Array, "b l"],
    num_tokens: Int[Array, " b"],
) -> Distributions:  # fmt: skip
    """Asks target and drafter at every position, then emits the text.

    Arguments are those of :func:`specdec.measure.alpha.replay`, but the drafter makes K guesses of
    one position. Its verifier does not matter.

    Raises:
      ValueError: a guess follows another.
    """
    if engine.depth != 1:
        raise ValueError(f"Guesses of one position are needed, these are {engine.depth} deep.")
    batch, length = tokens.shape
    state = engine.start(params, prompt, row_ids, limit, seed, output_bucket=length)
    greedy = params.sampling.greedy
    size = (batch, length, engine.nodes if greedy else engine.target.vocab_size)
    kind = jnp.int32 if greedy else jnp.float32
    found = Distributions(jnp.zeros(size[:2] if greedy else size, kind), jnp.zeros(size, kind))

    def ask(t, scored, draft, token):
        del t, token
        p = scored.distribution
        if isinstance(p, PointMass):
            return Distributions(p.tokens[:, :1], draft.tokens[:, None])
        return Distributions(p[:, :1], draft.probs[:, :1])

    return along_texts(engine, params, state, tokens, num_tokens, found, ask)


class _AnyNumbers:
    """For verifiers of which only the acceptance is asked: it does not depend on them."""

    def __init__(self, batch: int):
        self._batch = batch

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """Zeros."""
        del purpose
        return jnp.zeros((self._batch, count))


def _reported(
    verifier: Verifier, p: Distribution, tokens: Int[Array, "b k"],
    probs: Float[Array, "b k v"] | None, *, independent: bool = False,
) -> Float[Array, "b k"]:  # fmt: skip
    """The acceptance that a verifier reports of the first 1..K of a position's guesses."""
    batch, most = tokens.shape
    target = jax.tree.map(lambda each: jnp.repeat(each[:, None], most + 1, axis=1), p)
    found = []
    for k in range(1, most + 1):
        q = None if probs is None else probs[:, :k]
        draft = Draft(tokens[:, :k], q, Topology.branching((k,)), independent=independent)
        found.append(verifier(_AnyNumbers(batch), target, draft).acceptance_prob[:, 0])
    return jnp.stack(found, axis=1)


@jax.jit
def acceptance(
    p: Float[Array, "b v"], q: Float[Array, "b v"], numbers: Float[Array, "r b k"]
) -> dict[str, Float[Array, "b k"]]:
    """The probability that one of 1..K guesses is accepted, by rule, as the verifiers report it.

    ``recursive``: siblings without replacement, the mean over R draws of what is expected of each
    guess given the earlier ones. ``recursive_independent``: 1 - prod(1 - beta_k), beta_k being
    sum_x min(q, p_k) with the residual p_k, which does not depend on tokens. ``kseq``: exact too.
    ``likeliest``: p of q's K likeliest tokens. Traversal verification is recursive verification
    where there is one position.

    Args:
      numbers: in [0, 1), to draw siblings with.
    """
    batch, most = numbers.shape[1:]

    def without_replacement(uniforms):
        tokens, probs = draw_siblings(q[:, None], [most], uniforms, independent=False)
        return _reported(RecursiveVerifier(), p, tokens, probs)

    one = Draft(jnp.zeros((batch, 1), jnp.int32), q[:, None], Topology.chain(1))

    def rejected(distribution, _):
        judged = judge(distribution, one, siblings_after(one, jnp.zeros((batch,), jnp.int32)))
        return judged.residual, judged.acceptance

    betas = jax.lax.scan(rejected, p, length=most)[1]
    anything = jnp.zeros((batch, most), jnp.int32)
    same = jnp.repeat(q[:, None], most, axis=1)
    return {
        DEFAULT: jnp.mean(jax.lax.map(without_replacement, numbers), axis=0),
        INDEPENDENT: 1 - jnp.cumprod(1 - betas, axis=0).T,
        KSEQ: _reported(KSeqVerifier(), p, anything, same, independent=True),
        LIKELIEST: _reported(RecursiveVerifier(), p, likeliest(q, most), None),
    }


@jax.jit
def typical_distance(p: Float[Array, "b v"], q: Float[Array, "b v"]) -> dict[str, Array]:
    """Total variation between p and the distribution of the token that typical acceptance emits [B,
    K].

    Let m(x) be q(x) where x passes, else 0, and M its sum. Of K independent guesses the first that
    passes is emitted, and a draw from p if none does:

        (1 - (1 - M)^K) m / M + (1 - M)^K p.

    Of the K likeliest tokens the first that passes is emitted always: 1 - p(x) away from p.
    """
    counts = jnp.arange(1, MOST + 1)
    passing = jnp.where(p > _TYPICAL.least(p)[:, None], q, 0.0)
    mass = sum_last(passing)[:, None]
    none = (1 - jnp.minimum(mass, 1.0)) ** counts
    own = sum_last(jnp.abs(passing / jnp.where(mass > 0, mass, 1.0) - p))[:, None] / 2
    tokens = likeliest(q, MOST)
    p_x = jnp.take_along_axis(p, tokens, axis=1)
    passes = p_x > _TYPICAL.least(p)[:, None]
    # Whether a guess is the first that passes.
    first = passes & (jnp.cumsum(passes, axis=1) == 1)
    return {
        TYPICAL_INDEPENDENT: jnp.where(mass > 0, (1 - none) * own, 0.0),
        TYPICAL_LIKELIEST: jnp.cumsum(jnp.where(first, 1 - p_x, 0.0), axis=1),
    }


@jax.jit
def greedy_acceptance(
    target: Int[Array, " b"], guesses: Int[Array, "b k"]
) -> dict[str, Float[Array, "b k"]]:
    """The same at temperature 0: whether the target's token is among the first 1..K guesses."""
    return {LIKELIEST: _reported(RecursiveVerifier(), PointMass(target), guesses, None)}


@dataclasses.dataclass(frozen=True)
class RowSiblings:
    """One text's sums over its positions; a line of a file."""

    id: int  # Its index in the task.
    positions: int
    accepted: dict[str, list[float]]  # By rule or bound, for 1..K guesses.
    distance: dict[str, list[float]]  # From the target's distribution, by lossy rule.


def replayed(
    decoder: BatchDecoder, batch: Batch, texts: Mapping[int, Sequence[int]]
) -> dict[int, dict[str, Float[np.ndarray, "t k"]]]:
    """Acceptance at each position of texts, by their index in the batch and by rule.

    Args:
      decoder: speculative, with guesses of one position a block: one, or at temperature 0 K.
      texts: outputs, EOS included, by the index of their input.
    """
    tokens = np.zeros((len(batch.row_ids), decoder.output_bucket), np.int32)
    counts = np.zeros(len(batch.row_ids), np.int32)
    for index, text in texts.items():
        counts[index] = len(text)
        tokens[index, : len(text)] = text
    given = (*decoder.arguments(batch), jnp.asarray(tokens), jnp.asarray(counts))
    distributions = jax.tree.map(np.asarray, replay(decoder.engine, *given))
    target, draft = (
        np.concatenate([each[index, : len(text)] for index, text in texts.items()])
        for each in (distributions.target, distributions.draft)
    )
    random = np.random.default_rng([decoder.seed, *(batch.row_ids[index] for index in texts)])
    parts = [
        _judged(target[first : first + _ROWS], draft[first : first + _ROWS], random)
        for first in range(0, len(target), _ROWS)
    ]
    ends = np.cumsum([len(text) for text in texts.values()])
    found = {rule: np.concatenate([part[rule] for part in parts]) for rule in parts[0]}
    split = {rule: np.split(values, ends[:-1]) for rule, values in found.items()}
    return {index: {rule: s[i] for rule, s in split.items()} for i, index in enumerate(texts)}


def _judged(
    target: np.ndarray, draft: np.ndarray, random: np.random.Generator
) -> dict[str, Float[np.ndarray, "t k"]]:
    """All rules and bounds at a few positions, which are padded: one program does for all."""
    count, counts = len(target), range(1, MOST + 1)

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[:1], _ROWS - count, axis=0)])

    if target.ndim == 1:
        found: Mapping[str, Any] = greedy_acceptance(padded(target), padded(draft))
        bounds = {}
    else:
        numbers = random.random((_DRAWS, _ROWS, MOST), np.float32)
        found = acceptance(padded(target), padded(draft), numbers)
        found = found | typical_distance(padded(target), padded(draft))
        bounds = {
            OPTIMUM: optimum_without_replacement(target, draft, counts),
            INDEPENDENT_OPTIMUM: independent_optimum(target, draft, counts),
        }
    return {rule: np.asarray(values)[:count] for rule, values in found.items()} | bounds


def row_of(id: int, found: Mapping[str, Float[np.ndarray, "t k"]]) -> RowSiblings:
    """The sums of one text, rounded to six digits."""
    sums = {rule: np.round(np.sum(v, axis=0, dtype=float), 6).tolist() for rule, v in found.items()}
    distance = {
        rule: sums.pop(rule) for rule in (TYPICAL_INDEPENDENT, TYPICAL_LIKELIEST) if rule in sums
    }
    return RowSiblings(id, len(next(iter(found.values()))), sums, distance)


def summary(rows: Sequence[RowSiblings]) -> dict[str, Any]:
    """What the rows say; all intervals are of 95 %, clustered by text.

    Returns:
      ``acceptance`` by rule or bound and K; ``by_rank``, by rule, how likely guess k is accepted
      where the earlier ones were rejected, as far as that happens; except at temperature 0,
      ``of_optimum``, by K: the default rule's acceptance over the bound for its way of guessing,
      and ``distance`` from the target's distribution, by lossy rule and K.
    """
    counts = np.array([row.positions for row in rows], float)
    sums = {rule: np.array([row.accepted[rule] for row in rows]) for rule in rows[0].accepted}

    def share(part: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
        return {"mean": float(part.sum() / whole.sum()), "interval": cluster_interval(part, whole)}

    def by_rank(accepted: np.ndarray) -> list[dict[str, Any]]:
        before = np.pad(accepted, ((0, 0), (1, 0)))[:, :-1]
        reached = np.maximum(counts[:, None] - before, 0.0)
        ranks = [k for k in range(MOST) if reached[:, k].sum() > 0]
        return [share(accepted[:, k] - before[:, k], reached[:, k]) for k in ranks]

    found = {
        "num_texts": len(rows), "num_tokens": int(counts.sum()),
        "acceptance": {
            rule: {k: share(each[:, k - 1], counts) for k in COUNTS} for rule, each in sums.items()
        },
        "by_rank": {rule: by_rank(sums[rule]) for rule in (DEFAULT, LIKELIEST) if rule in sums},
    }  # fmt: skip
    if OPTIMUM in sums:
        found["distance"] = {
            rule: {
                k: share(np.array([row.distance[rule][k - 1] for row in rows]), counts)
                for k in COUNTS
            }
            for rule in rows[0].distance
        }
        ours, best = sums[DEFAULT], sums[OPTIMUM]
        found["of_optimum"] = {k: share(ours[:, k - 1], best[:, k - 1]) for k in COUNTS}
    return found
