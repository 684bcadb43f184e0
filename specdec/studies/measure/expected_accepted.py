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
from specdec.core.pytrees import pytree
from specdec.core.randomness import BlockRandom
from specdec.core.residuals import guess_counts, one_of, take
from specdec.core.theory_measured import cluster_interval
from specdec.decoding.engine import Engine, EngineParams
from specdec.types import Distribution, Draft, PointMass, Prompt, Seed


@pytree
class ExpectedAccepted:
    """Sums over a row's blocks."""

    blocks: Float[Array, " b"]  # How many.
    # Expected accepted guesses by either verification.
    token: Float[Array, " b"]
    block: Float[Array, " b"]


def expected_accepted(
    target: Distribution, draft: Draft, eos_ids: tuple[int, ...]
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Expected accepted guesses of a block by token and by block verification, given its guesses.

    Args:
      target: p at the positions of the guesses; more positions are ignored.
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
    ends = one_of(draft.tokens, eos_ids)
    ended = jnp.cumsum(ends, axis=1) - ends > 0
    guessed = jnp.arange(gamma) < guess_counts(draft)[:, None]
    ratios = jnp.where(guessed & ~ended, ratios, 0.0)
    token = jnp.cumprod(jnp.minimum(1.0, ratios), axis=1).sum(axis=1)
    reach, block = jnp.ones_like(token), jnp.zeros_like(token)
    for i in range(gamma):
        reach = jnp.minimum(1.0, reach * ratios[:, i])
        block += reach
    return token, block


@decode_jit(static_argnames=("engine", "output_bucket"))
def decode_and_expect(
    engine: Engine, params: EngineParams, prompt: Prompt, row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int,
) -> ExpectedAccepted:  # fmt: skip
    """Decodes and adds up what either verification would keep, block by block.

    Arguments as in :func:`specdec.decoding.loop.decode`.
    """
    state = engine.start(params, prompt, row_ids, limit, seed, output_bucket=output_bucket)
    zeros = jnp.zeros((len(row_ids),))

    def block(carry):
        state, sums = carry
        random = BlockRandom.of(state.row_keys, state.block)
        draft, state = engine.propose(params, state, random)
        scored = engine.score(params, state, draft)
        token, block = expected_accepted(scored.distribution, draft, engine.target.eos_ids)
        after, _ = engine.commit(params, state, draft, scored, engine.verify(scored, draft, random))
        runs = ~state.finished
        return after, ExpectedAccepted(
            sums.blocks + runs, sums.token + runs * token, sums.block + runs * block
        )

    begin = state, ExpectedAccepted(zeros, zeros, zeros)
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[0].finished), block, begin)[1]


@dataclasses.dataclass(frozen=True)
class RowExpectation:
    """:class:`ExpectedAccepted` of one row; a line of a file. ``id`` is its index in the task."""

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
        "token": means[0], "block": means[1], "difference": means[1] - means[0],
        "interval": cluster_interval(block - token, blocks),
        "num_blocks": int(blocks.sum()), "num_rows": len(rows),
    }  # fmt: skip
