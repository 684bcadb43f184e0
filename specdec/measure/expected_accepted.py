"""Token against block verification on the same blocks, without the noise of acceptance.

Given a block's guesses x_1..x_gamma and r_i = p(x_i) / q(x_i), token verification keeps the first i
guesses with probability prod_{j<=i} min(1, r_j), and block verification with probability

    p_i = min(1, p_{i-1} r_i),    p_0 = 1,

which is never less (Sun et al. 2024, Algorithm 2: with A_i = sum_x max(p_i p(x) - q(x), 0), as
E_q[p_{i+1}] = p_i - A_i, the chance h_i + (1 - h_i)(p_i - A_i) that prefix i or a longer one is
accepted is p_i for h_i = A_i / (A_i + 1 - p_i)). Their sums over i are the expected numbers of
accepted guesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.core.residuals import guess_counts, take
from specdec.core.theory_measured import cluster_interval
from specdec.decoding import speculative
from specdec.decoding import state as st
from specdec.drafters.base import Drafter
from specdec.models.base import Model
from specdec.types import Distribution, Draft, Params, PointMass, SamplingConfig, pytree
from specdec.verifiers.token import TokenVerifier


@pytree
class ExpectedAccepted:
    """Sums over a row's blocks.

    Attributes:
      blocks: [B] how many.
      token, block: [B] expected accepted guesses by either verification.
    """

    blocks: Float[Array, " b"]
    token: Float[Array, " b"]
    block: Float[Array, " b"]


def expected_accepted(
    target: Distribution, draft: Draft, eos_id: int
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Expected accepted guesses of a block by token and by block verification, given its guesses.

    Args:
      target: p at the places of the guesses; more places are ignored.
      draft: a chain of gamma guesses; those behind an EOS do not count.
    """
    gamma = draft.tokens.shape[1]
    if isinstance(target, PointMass):
        ratios = (target.tokens[:, :gamma] == draft.tokens).astype(jnp.float32)
    else:
        ratios = take(target[:, :gamma], draft.tokens)
        if draft.probs is not None:
            q = take(draft.probs, draft.tokens)
            ratios = ratios / jnp.where(q > 0, q, 1.0)
    ended = jnp.cumsum(draft.tokens == eos_id, axis=1) - (draft.tokens == eos_id) > 0
    guessed = jnp.arange(gamma) < guess_counts(draft)[:, None]
    ratios = jnp.where(guessed & ~ended, ratios, 0.0)
    token = jnp.cumprod(jnp.minimum(1.0, ratios), axis=1).sum(axis=1)
    reach, block = jnp.ones_like(token), jnp.zeros_like(token)
    for i in range(gamma):
        reach = jnp.minimum(1.0, reach * ratios[:, i])
        block += reach
    return token, block


@decode_jit(static_argnames=("model", "drafter", "sampling", "output_bucket"))
def decode_and_expect(
    model: Model,
    drafter: Drafter,
    params: Params,
    drafter_params: Params,
    inputs: Int[Array, "b s"],
    row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int,
    seed: Int[Array, ""] | int,
    *,
    sampling: SamplingConfig,
    output_bucket: int,
) -> ExpectedAccepted:
    """Decodes with token verification and adds up what either would keep, block by block.

    Arguments as in :func:`specdec.decoding.speculative.speculative_decode`.
    """
    gamma = drafter.gamma
    encoded = model.encode(params, inputs)
    state = st.initial_state(
        model, row_ids=row_ids, seed=seed, limit=limit, output_bucket=output_bucket,
        gamma=gamma, width=gamma + 1, trace=False,
        drafter_state=drafter.init(drafter_params, inputs, output_bucket, encoded),
    )  # fmt: skip
    zeros = jnp.zeros((inputs.shape[0],))
    verifier = TokenVerifier()

    def body(carry):
        state, sums = carry
        random = BlockRandom.of(state.row_keys, state.block)
        draft, state = speculative.propose(drafter, drafter_params, random, state)
        target, cache = speculative.score(model, verifier, sampling, params, encoded, state, draft)
        token, block = expected_accepted(target, draft, model.eos_id)
        runs = ~state.finished
        sums = ExpectedAccepted(
            sums.blocks + runs, sums.token + runs * token, sums.block + runs * block
        )
        after, info = speculative.settle(
            model, drafter, verifier, limit, random, state, draft, target, cache
        )
        return st.record(after, info), sums

    start = state, ExpectedAccepted(zeros, zeros, zeros)
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[0].finished), body, start)[1]


@dataclasses.dataclass(frozen=True)
class RowExpectation:
    """:class:`ExpectedAccepted` of one row; a line of a file. ``id`` is its place in the task."""

    id: int
    blocks: int
    token: float
    block: float


def summary(rows: Sequence[RowExpectation]) -> dict[str, Any]:
    """Tokens a block by either verification, their difference, and its 95 % interval by rows.

    A block's last token always counts, also behind an accepted EOS.

    Raises:
      ValueError: there is no block.
    """
    blocks, token, block = (
        np.array([getattr(row, name) for row in rows], float)
        for name in ("blocks", "token", "block")
    )
    if not blocks.sum():
        raise ValueError("There is no block to compare verifications on.")
    means = [float(1 + kept.sum() / blocks.sum()) for kept in (token, block)]
    return {
        "token": means[0],
        "block": means[1],
        "difference": means[1] - means[0],
        "interval": cluster_interval(block - token, blocks),
        "num_blocks": int(blocks.sum()),
        "num_rows": len(rows),
    }
