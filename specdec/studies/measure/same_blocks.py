"""Tokens a block by several verifiers, on the same blocks: a small difference shows in few texts.

One verifier's verdicts are followed. At each of its blocks every verifier judges the same guesses,
several times with random numbers of their own, and the tokens it would emit are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom, row_keys
from specdec.core.residuals import one_of
from specdec.core.theory_measured import cluster_interval
from specdec.decoding.engine import Engine, EngineParams
from specdec.types import Prompt, Seed, Verdict
from specdec.verifiers.base import Verifier

DRAWS = 8  # Verdicts of a verifier on each block.


def emitted(verdict: Verdict, eos_ids: tuple[int, ...]) -> Int[Array, " b"]:
    """Tokens up to the first EOS of a verdict."""
    ends = one_of(verdict.tokens, eos_ids)
    before = jnp.cumsum(ends, axis=1) - ends == 0
    given = jnp.arange(verdict.tokens.shape[1]) < verdict.num_emitted[:, None]
    return jnp.sum(before & given, axis=1)


@decode_jit(static_argnames=("engine", "verifiers", "output_bucket"))
def decode_and_compare(
    engine: Engine, params: EngineParams, prompt: Prompt, row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, verifiers: tuple[Verifier, ...],
    output_bucket: int,
) -> tuple[Float[Array, " b"], Float[Array, "b w"]]:  # fmt: skip
    """Decodes, and adds up what each verifier would emit, block by block.

    Arguments as in :func:`specdec.decoding.loop.decode`.

    Returns:
      a row's blocks, and its tokens by each of W verifiers.
    """
    state = engine.start(params, prompt, row_ids, limit, seed, output_bucket=output_bucket)

    def judged(draw, block, target, draft):
        # Seeds that no decode of these rows has: the verdict that is followed is another draw.
        random = BlockRandom.of(row_keys(jnp.stack([draw, jnp.uint32(2**31)]), row_ids), block)
        verdicts = (each(random, target, draft) for each in verifiers)
        return jnp.stack([emitted(each, engine.target.eos_ids) for each in verdicts], axis=1)

    def block(carry):
        state, blocks, sums = carry
        random = BlockRandom.of(state.row_keys, state.block)
        draft, state = engine.propose(params, state, random)
        scored = engine.score(params, state, draft)
        found = jax.vmap(lambda i: judged(i, state.block, scored.distribution, draft))(
            jnp.arange(DRAWS, dtype=jnp.uint32)
        )
        mean = jnp.mean(found, axis=0, dtype=jnp.float32)
        after, _ = engine.commit(params, state, draft, scored, engine.verify(scored, draft, random))
        runs = ~state.finished
        return after, blocks + runs, sums + runs[:, None] * mean

    zeros = jnp.zeros((len(row_ids), 1 + len(verifiers)))
    begin = state, zeros[:, 0], zeros[:, 1:]
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[0].finished), block, begin)[1:]


def compared(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], names: tuple[str, str]
) -> dict[str, Any]:
    """Tokens a block by two verifiers, the difference, and its 95 % interval by texts.

    Args:
      parts: what :func:`decode_and_compare` found, batch by batch, for two verifiers.
      names: of the first and the second verifier.

    Raises:
      ValueError: there is no block.
    """
    blocks, tokens = (np.concatenate(each).astype(float) for each in zip(*parts, strict=True))
    if not blocks.sum():
        raise ValueError("There is no block to compare verifiers on.")
    first, second = tokens.sum(axis=0) / blocks.sum()
    return {
        names[0]: float(first), names[1]: float(second), "difference": float(second - first),
        "interval": cluster_interval(tokens[:, 1] - tokens[:, 0], blocks),
        "num_blocks": int(blocks.sum()),
    }  # fmt: skip
