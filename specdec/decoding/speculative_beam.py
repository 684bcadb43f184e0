"""Beam search in fewer target calls: a draft's beams guess, and the rules are replayed on them.

One block, for each row:
  1. the draft runs u >= W beams for gamma levels from the W live hypotheses;
  2. the target scores the hypotheses' newest tokens and all guesses, W + u gamma tokens, in one
     call;
  3. :func:`specdec.decoding.beam_rules.step`, which plain beams are made by, takes a level after
     the other, for as long as what each of its survivors goes on with has been scored;
  4. the survivors of its last step open the next block.
Tokens that end beams need not be scored. So a block advances 1 to gamma + 1 levels, and tokens,
scores and n-best lists are those of plain beams whatever the draft says, but for sums that are
rounded otherwise in calls of more tokens.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", appendix A.4.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec.core.compilation import decode_jit
from specdec.decoding import beam_rules
from specdec.decoding.beam import BeamResult
from specdec.decoding.beam_blocks import ENDS, BeamBlock, BeamEngine, Live
from specdec.decoding.beam_rules import BeamRules, BeamState
from specdec.types import AnyArray, Cache, Encoded, Params, Prompt, pytree


@pytree
class BeamStats:
    """Counts of each row.

    Attributes:
      target_calls: [B].
      levels: [B, gamma + 2] calls by the levels that they advanced.
      ends: [B, 4] calls by why their block ended, in the order of :data:`ENDS`.
    """

    target_calls: Int[Array, " b"]
    levels: Int[Array, "b g"]
    ends: Int[Array, "b e"]


@pytree
class SpeculativeBeamResult:
    """Like plain beams, with what it took.

    Attributes:
      beams: its ``steps`` count levels.
      trace: blocks, with a leading axis of L; None unless asked for. Those of a row end with its
        first one of no levels.
    """

    beams: BeamResult
    stats: BeamStats
    trace: BeamBlock | None


@pytree
class _Loop:
    """What a block needs."""

    beams: BeamState
    live: Live
    caches: tuple[Cache, Cache]  # The draft's is () where there is none.
    stats: BeamStats
    nan: Bool[Array, " b"]
    block: Int[Array, ""]
    trace: BeamBlock | None


def _block(
    engine: BeamEngine, rules: BeamRules, params: tuple[Params, Params], prompt: Prompt,
    encoded: tuple[Encoded, Encoded], loop: _Loop,
) -> _Loop:  # fmt: skip
    """Guesses, a target call, and the levels that it is good for."""
    beams, live, (cache, draft_cache) = loop.beams, loop.live, loop.caches
    guesses, draft_cache, odd = engine.guess(
        params[1], encoded[1], prompt, beams, live, draft_cache
    )
    logits, cache = engine.score(params[0], encoded[0], prompt, beams, live, cache, guesses)
    after, live, block, nan = engine.replay(rules, beams, live, guesses, logits)
    nan |= odd & ~beams.finished
    trace = loop.trace
    if trace is not None:
        trace = jax.tree.map(lambda old, new: old.at[loop.block].set(new), trace, block)
    return _Loop(
        dataclasses.replace(after, finished=after.finished | nan), live,
        engine.keep(block, (cache, draft_cache)), _counted(loop.stats, block), loop.nan | nan,
        loop.block + 1, trace,
    )  # fmt: skip


def _counted(stats: BeamStats, block: BeamBlock) -> BeamStats:
    """With one block more."""
    ran = (block.num_levels > 0)[:, None]
    levels = jnp.arange(stats.levels.shape[1]) == block.num_levels[:, None]
    ends = jnp.arange(len(ENDS)) == block.end[:, None]
    return BeamStats(
        stats.target_calls + ran[:, 0], stats.levels + (levels & ran), stats.ends + (ends & ran)
    )


def _no_blocks(engine: BeamEngine, batch: int) -> BeamBlock:
    """A trace before the first block."""

    def zeros(*size: int) -> Array:
        return jnp.zeros((engine.output_bucket, batch, *size), jnp.int32)

    tokens, survivors = zeros(engine.nodes), zeros(engine.num_beams)
    kept = zeros(engine.gamma + 1, engine.num_beams)
    return BeamBlock(tokens, tokens, kept, zeros(), zeros(), survivors, survivors > 0)


@decode_jit(static_argnames=("engine", "trace"))
def search(
    engine: BeamEngine, rules: BeamRules, params: tuple[Params, Params], prompt: Prompt,
    row_ids: Int[AnyArray, " b"], limit: Int[Array, ""] | int, *, trace: bool = False,
) -> SpeculativeBeamResult:  # fmt: skip
    """Searches a batch, the whole of it in one ``lax.while_loop``.

    Rows advance and end apart; a row's hypotheses do not depend on its neighbours.

    Args:
      rules: :meth:`BeamConfig.traced` of the engine's ``output_bucket``, and its ``num_beams``.
      params: the target's and the draft's, () without one.
      trace: whether every block is kept.
      All else: see :func:`specdec.decoding.beam.search`.
    """
    batch, output_bucket, pad_id = len(row_ids), engine.output_bucket, engine.target.pad_id
    beams = beam_rules.initial_state(rules, batch, limit, output_bucket, pad_id)
    beams = dataclasses.replace(beams, finished=beams.finished | (row_ids < 0))
    encoded, live, caches = engine.start(*params, prompt)
    none = jnp.zeros((batch,), jnp.int32)
    stats = BeamStats(
        none, jnp.zeros((batch, engine.gamma + 2), jnp.int32),
        jnp.zeros((batch, len(ENDS)), jnp.int32),
    )  # fmt: skip
    blocks = _no_blocks(engine, batch) if trace else None
    loop = jax.lax.while_loop(
        lambda loop: ~jnp.all(loop.beams.finished),
        lambda loop: _block(engine, rules, params, prompt, encoded, loop),
        _Loop(beams, live, caches, stats, none > 0, jnp.int32(0), blocks),
    )
    tokens, lengths, scores, log_probs = beam_rules.best_hypotheses(rules, loop.beams)
    inside = jnp.arange(output_bucket) < lengths[..., None]
    tokens = jnp.where(inside, tokens, pad_id)
    found = BeamResult(tokens, lengths, scores, log_probs, loop.beams.length, loop.nan)
    return SpeculativeBeamResult(found, loop.stats, loop.trace)
