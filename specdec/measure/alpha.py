"""alpha as the paper measures it: along texts that the target itself generated.

At each position of such a text the expected acceptance sum_x min(p(x), q(x)) is computed, whether
or not a decode would have drafted there (Leviathan et al. 2023, section 4.2 and Corollary 3.6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core import theory, theory_measured
from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom, row_keys
from specdec.core.reductions import sum_last
from specdec.core.residuals import acceptance_prob, guess_counts, take
from specdec.core.standardize import standardize
from specdec.drafters.base import Drafter
from specdec.models.base import Model
from specdec.types import (
    Distribution,
    Draft,
    Params,
    PointMass,
    SamplingConfig,
    Verdict,
    pytree,
)

LENIENCES = (1.0, 0.5, 0.3, 0.1)  # Table 5's.
GAMMAS = (1, 3, 5, 7)
LAGS = (1, 2, 3)


@pytree
class Acceptance:
    """What would be accepted at each position of texts [B, L]; zero beyond a text's end.

    Attributes:
      prob: [B, L] sum_x min(p, q).
      ratio: [B, L] min(1, q(x) / p(x)) at the text's own token x: the chance that x, being what the
        target said, was an accepted guess.
      lenient: [B, L, K] the acceptance probability at each lenience, sum_x min(q, p / l).
    """

    prob: Float[Array, "b l"]
    ratio: Float[Array, "b l"]
    lenient: Float[Array, "b l k"]


@decode_jit(static_argnames=("model", "drafter", "sampling", "leniences"))
def replay(
    model: Model,
    drafter: Drafter,
    params: Params,
    drafter_params: Params,
    inputs: Int[Array, "b s"],
    row_ids: Int[Array, " b"],
    tokens: Int[Array, "b l"],
    num_tokens: Int[Array, " b"],
    seed: Int[Array, ""] | int,
    *,
    sampling: SamplingConfig,
    leniences: tuple[float, ...] = LENIENCES,
) -> Acceptance:
    """Asks target and drafter at every position what they would say, and then says the text.

    Args:
      drafter: with gamma = 1.
      inputs: [B, S] padded.
      tokens, num_tokens: outputs [B, L] with EOS, and how long they are.
      sampling: the target's.

    Raises:
      ValueError: gamma is not 1.
    """
    if drafter.gamma != 1:
        raise ValueError(f"A drafter of one guess is needed, this has gamma {drafter.gamma}.")
    batch, length = tokens.shape
    keys = row_keys(seed, row_ids)
    encoded = model.encode(params, inputs)
    ones = jnp.ones((batch,), jnp.int32)
    empty = jnp.zeros((batch, length))
    found = Acceptance(empty, empty, jnp.zeros((batch, length, len(leniences))))
    last = jnp.full((batch,), model.decoder_start_id, jnp.int32)
    carry = (
        model.init_cache(batch, length + 2),
        drafter.init(drafter_params, inputs, length, encoded), last, found,
    )  # fmt: skip

    def body(t, carry):
        cache, state, last, found = carry
        inside = t < num_tokens
        draft, state = drafter.propose(drafter_params, state, BlockRandom.of(keys, t))
        logits, cache = model.extend(params, encoded, cache, last[:, None])
        p = standardize(logits, sampling, keep_probs=True)
        token = jax.lax.dynamic_slice_in_dim(tokens, t, 1, axis=1)
        here = _acceptance(p, draft, token, leniences)
        counts = inside & (guess_counts(draft) > 0)
        here = jax.tree.map(
            lambda a: jnp.where(counts.reshape(-1, *[1] * (a.ndim - 1)), a, 0.0), here
        )
        found = jax.tree.map(
            lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one, t, axis=1), found, here
        )
        cache = model.commit(cache, None, ones * inside)
        # No guess counts as accepted: the drafter takes in the token as one that it had not said.
        verdict = Verdict(
            jnp.pad(token, ((0, 0), (0, 1))), ones * inside, ones * 0, jnp.zeros((batch, 2), int)
        )
        return cache, drafter.observe(state, verdict), token[:, 0], found

    return jax.lax.fori_loop(0, jnp.max(num_tokens), body, carry)[3]


def _acceptance(
    p: Distribution, draft: Draft, token: Int[Array, "b 1"], leniences: tuple[float, ...]
) -> Acceptance:
    """One position's, [B, 1]."""
    if isinstance(p, PointMass):
        assert p.relative is not None
        p_token = (p.tokens == token).astype(jnp.float32)
        allowed = [p.relative >= lenience for lenience in leniences]
        if draft.probs is None:
            lenient = [take(a, draft.tokens).astype(jnp.float32) for a in allowed]
        else:
            lenient = [sum_last(jnp.where(a, draft.probs, 0.0)) for a in allowed]
    else:
        p_token = take(p, token)
        if draft.probs is None:
            p_guess = take(p, draft.tokens)
            lenient = [jnp.minimum(1.0, p_guess / lenience) for lenience in leniences]
        else:
            q = draft.probs
            lenient = [sum_last(jnp.minimum(q, p / lenience)) for lenience in leniences]
    if draft.probs is None:
        q_token = (draft.tokens == token).astype(jnp.float32)
    else:
        q_token = take(draft.probs, token)
    ratio = jnp.minimum(1.0, q_token / jnp.maximum(p_token, jnp.finfo(jnp.float32).tiny))
    return Acceptance(acceptance_prob(p, draft), ratio, jnp.stack(lenient, axis=-1))


@dataclasses.dataclass(frozen=True)
class RowAcceptance:
    """:class:`Acceptance` of one text, as lists over its positions; a line of a file.

    Attributes:
      id: its place in the task.
    """

    id: int
    prob: list[float]
    ratio: list[float]
    lenient: list[list[float]]

    @classmethod
    def of(cls, found: Acceptance, place: int, id: int, count: int) -> RowAcceptance:
        """Row ``place`` of a batch, ``count`` tokens long; rounded to six digits."""

        def listed(values) -> Any:
            return np.round(np.asarray(values)[place, :count].astype(float), 6).tolist()

        return cls(id, listed(found.prob), listed(found.ratio), listed(found.lenient))


def summary(rows: Sequence[RowAcceptance]) -> dict[str, Any]:
    """What the rows say of alpha.

    Returns:
      ``alpha`` with its ``alpha_interval`` (95 %, clustered by text); ``autocorrelation`` of the
      ratios by lag; ``block_efficiency`` by gamma, as Equation 1 has it (``equation_1``), and as
      these texts do (``measured``; see :mod:`specdec.core.theory_measured`); ``lenience``: alpha
      and the total variation from p, by lenience.

    Raises:
      ValueError: there is no token.
    """
    if not any(row.prob for row in rows):
        raise ValueError("There is no token to measure alpha on.")
    ratios = [np.asarray(row.ratio) for row in rows]
    sums = np.array([sum(row.prob) for row in rows])
    counts = np.array([len(row.prob) for row in rows])
    alpha = float(sums.sum() / counts.sum())
    longest = int(counts.max())
    lenient = np.concatenate([np.asarray(row.lenient) for row in rows if row.prob]).mean(axis=0)
    return {
        "num_texts": len(rows),
        "num_tokens": int(counts.sum()),
        "alpha": alpha,
        "alpha_interval": theory_measured.cluster_interval(sums, counts),
        "autocorrelation": {
            lag: theory_measured.autocorrelation(ratios, lag) for lag in LAGS if lag < longest
        },
        "block_efficiency": {
            gamma: {
                "equation_1": theory.expected_tokens(min(alpha, 1.0), gamma),
                "measured": theory_measured.measured_block_efficiency(ratios, gamma),
            }
            for gamma in GAMMAS
        },
        # A point of alpha gained is a point of distance; see theory_laws.lenient_distance.
        "lenience": {
            lenience: {"alpha": float(a), "total_variation": float(max(0.0, a - alpha))}
            for lenience, a in zip(LENIENCES, lenient, strict=True)
        },
    }
