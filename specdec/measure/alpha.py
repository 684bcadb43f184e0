"""alpha as the paper measures it: along texts that the target itself generated.

At each position of such a text the expected acceptance sum_x min(p(x), q(x)) is computed, whether
or not a decode would have drafted there (Leviathan et al. 2023, section 4.2 and Corollary 3.6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core import theory, theory_measured
from specdec.core.compilation import decode_jit
from specdec.core.pytrees import pytree
from specdec.core.randomness import BlockRandom
from specdec.core.residuals import acceptance_prob, guess_counts, take
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.models.placing import to_host
from specdec.types import (
    AnyArray,
    Distribution,
    Draft,
    PointMass,
    Prompt,
    Seed,
    Verdict,
)
from specdec.verifiers.lenient import LenientVerifier

LENIENCES = (1.0, 0.5, 0.3, 0.1)  # Table 5's.
GAMMAS = (1, 3, 5, 7)
LAGS = (1, 2, 3)
_WITH_PROBS = LenientVerifier(1.0)  # Lenience needs the probabilities behind an argmax.


@pytree
class Acceptance:
    """Acceptance at each position of texts [B, L], or of one [L]; zero where there is no guess."""

    guessed: Bool[Array, "b l"]  # Whether the draft has a guess; nowhere beyond a text's end.
    prob: Float[Array, "b l"]  # sum_x min(p, q).
    # min(1, q(x) / p(x)) at the text's own token x: the chance that x, being what the target
    # generated, was an accepted guess.
    ratio: Float[Array, "b l"]
    # The acceptance probability at each lenience, sum_x min(q, p / l).
    lenient: Float[Array, "b l k"]


@decode_jit(what="what measures alpha", static_argnames="engine")
def replay(
    engine: Engine, params: EngineParams, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, tokens: Int[AnyArray, "b l"],
    num_tokens: Int[AnyArray, " b"],
) -> Acceptance:  # fmt: skip
    """Asks target and drafter at every position for their distributions, then emits the text.

    Args:
      engine: with a drafter of one guess. Its verifier does not matter: no guess is accepted, so
        the drafter takes in each token as one that it had not guessed.
      prompt, row_ids, limit, seed: see :meth:`specdec.decoding.engine.Engine.start`.
      tokens, num_tokens: outputs [B, L] with EOS, and how long they are.

    Raises:
      ValueError: there is more than one guess.
    """
    if engine.nodes != 1:
        raise ValueError(f"A drafter of one guess is needed, this has {engine.nodes}.")
    engine = dataclasses.replace(engine, verifier=_WITH_PROBS)
    batch, length = tokens.shape
    state = engine.start(params, prompt, row_ids, limit, seed, output_bucket=length)
    empty = jnp.zeros((batch, length))
    found = Acceptance(empty.astype(bool), empty, empty, jnp.zeros((batch, length, len(LENIENCES))))

    def position(t, carry):
        state, found = carry
        token = jax.lax.dynamic_slice_in_dim(jnp.asarray(tokens), t, 1, axis=1)
        draft, state = engine.propose(params, state, BlockRandom.of(state.row_keys, state.block))
        scored = engine.score(params, state, draft)
        guessed = (t < num_tokens) & (guess_counts(draft) > 0)

        def keep(values, one):
            rows = guessed.reshape(-1, *[1] * (one.ndim - 1))
            counted = jnp.where(rows, one, jnp.zeros((), one.dtype))
            return jax.lax.dynamic_update_slice_in_dim(values, counted, t, axis=1)

        found = jax.tree.map(keep, found, _acceptance(scored.distribution, draft, token))
        none = jnp.zeros((batch,), jnp.int32)
        emitted, probs = jnp.pad(token, ((0, 0), (0, 1))), jnp.zeros((batch, 1))
        verdict = Verdict(emitted, none + (t < num_tokens), none, 0 * emitted, probs, none)
        state, _ = engine.commit(params, state, draft, scored, verdict)
        return state, found

    return jax.lax.fori_loop(0, jnp.max(num_tokens), position, (state, found))[1]


def _acceptance(target: Distribution, draft: Draft, token: Int[Array, "b 1"]) -> Acceptance:
    """Acceptance at one position, [B, 1]."""
    if isinstance(target, PointMass):
        p_token = (target.tokens[:, :1] == token).astype(jnp.float32)
    else:
        p_token = take(target[:, :1], token)
    if draft.probs is None:
        q_token = (draft.tokens == token).astype(jnp.float32)
    else:
        q_token = take(draft.probs, token)
    lenient = [acceptance_prob(target, draft, lenience) for lenience in LENIENCES]
    ratio = jnp.minimum(1.0, q_token / jnp.maximum(p_token, jnp.finfo(jnp.float32).tiny))
    guessed = jnp.ones(token.shape, bool)
    return Acceptance(guessed, acceptance_prob(target, draft), ratio, jnp.stack(lenient, axis=-1))


def replayed(
    decoder: BatchDecoder, batch: Batch, texts: Mapping[int, Sequence[int]]
) -> list[Acceptance]:
    """Acceptance [L] along each of some texts, which are no longer than the decoder's.

    Args:
      decoder: speculative, with one guess a block.
      texts: outputs, EOS included, by the index of their input in the batch.
    """
    tokens = np.zeros((len(batch.row_ids), decoder.output_bucket), np.int32)
    counts = np.zeros(len(batch.row_ids), np.int32)
    for index, text in texts.items():
        counts[index] = len(text)
        tokens[index, : len(text)] = text
    given = (*decoder.arguments(batch), tokens, counts)
    found = to_host(replay(decoder.engine, *given))

    def row(index: int) -> Acceptance:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[index, : counts[index]], found)

    return list(map(row, texts))


def summary(rows: Sequence[Acceptance]) -> dict[str, Any]:
    """Summary of alpha over the rows, each [L] as :func:`replayed` gives it.

    Returns:
      ``alpha``, the mean over all guesses, as in a decode's statistics, with its
      ``alpha_interval`` (95 %, clustered by text); ``guess_rate``, the share of positions with a
      guess; ``autocorrelation`` of the ratios by lag; ``block_efficiency`` by gamma, as Equation 1
      has it (``equation_1``: of alpha times guess_rate), and as these texts do (``measured``; see
      :mod:`specdec.core.theory_measured`); ``lenience``: alpha and the total variation from p, by
      lenience.

    Raises:
      ValueError: there is no guess.
    """
    counts = np.array([np.sum(row.guessed) for row in rows])
    if not counts.any():
        raise ValueError("There is no guess to measure alpha on.")
    ratios = [np.asarray(row.ratio, float) for row in rows]
    sums = np.array([np.sum(row.prob, dtype=float) for row in rows])
    num_tokens, longest = sum(map(len, ratios)), max(map(len, ratios))
    alpha, guess_rate = float(sums.sum() / counts.sum()), float(counts.sum() / num_tokens)
    lenient = sum(np.sum(row.lenient, axis=0, dtype=float) for row in rows) / counts.sum()
    return {
        "num_texts": len(rows), "num_tokens": num_tokens, "guess_rate": guess_rate,
        "alpha": alpha, "alpha_interval": theory_measured.cluster_interval(sums, counts),
        "autocorrelation": {
            lag: theory_measured.autocorrelation(ratios, lag) for lag in LAGS if lag < longest
        },
        "block_efficiency": {
            gamma: {
                "equation_1": theory.expected_tokens(min(alpha * guess_rate, 1.0), gamma),
                "measured": theory_measured.measured_block_efficiency(ratios, gamma),
            }
            for gamma in GAMMAS
        },
        # A point of alpha gained is a point of distance where there is a guess.
        "lenience": {
            lenience: {"alpha": a, "total_variation": max(0.0, a - alpha) * guess_rate}
            for lenience, a in zip(LENIENCES, map(float, lenient), strict=True)
        },
    }  # fmt: skip
