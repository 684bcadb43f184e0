"""What both decode loops share: the buffers, the end of a row, and taking in a block's tokens."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.randomness import row_keys
from specdec.core.residuals import take_position
from specdec.models.base import Model
from specdec.types import (
    BlockInfo,
    Cache,
    DecodeResult,
    DecodeState,
    DrafterState,
    Stats,
    Verdict,
)


def initial_state(
    model: Model,
    *,
    row_ids: Int[Array, " b"],
    seed: Int[Array, ""] | int,
    limit: Int[Array, ""] | int,
    output_bucket: int,
    gamma: int,
    width: int,
    drafter_state: DrafterState,
    trace: bool,
) -> DecodeState:
    """The state before the first block.

    Args:
      row_ids: [B] ids that key each row's random numbers; a negative id marks a padding row, which
        is finished from the start.
      limit: tokens a row may emit, EOS included, at most ``output_bucket``.
      output_bucket: L, size of the output buffer.
      gamma: guesses a block; 0 for plain decoding.
      width: tokens in each target call.
      trace: whether every block's diagnostics are kept.
    """
    batch = row_ids.shape[0]
    zeros = jnp.zeros((batch,), jnp.int32)
    empty = BlockInfo(
        jnp.zeros((output_bucket, batch, gamma), jnp.int32),
        jnp.zeros((output_bucket, batch), jnp.int32),
        jnp.zeros((output_bucket, batch, gamma + 1), jnp.int32),
        jnp.zeros((output_bucket, batch), jnp.int32),
        jnp.zeros((output_bucket, batch), jnp.int32),
    )
    return DecodeState(
        # A block that crosses the limit is written whole and cut afterwards.
        tokens=jnp.full((batch, output_bucket + gamma + 1), model.pad_id, jnp.int32),
        num_tokens=zeros,
        last_token=jnp.full((batch,), model.decoder_start_id, jnp.int32),
        finished=(row_ids < 0) | (jnp.asarray(limit) <= 0),
        block=jnp.zeros((), jnp.int32),
        row_keys=row_keys(seed, row_ids),
        cache=model.init_cache(batch, output_bucket + width),
        drafter_state=drafter_state,
        stats=Stats(
            target_calls=zeros,
            proposed=zeros,
            examined=zeros,
            accepted=zeros,
            emitted=zeros,
            dropped=zeros,
            accepted_histogram=jnp.zeros((batch, gamma + 1), jnp.int32),
            acceptance_prob_sum=jnp.zeros((batch,), jnp.float32),
        ),
        trace=empty if trace else None,
    )


def cut_at_end(
    verdict: Verdict, state: DecodeState, eos_id: int, limit: Int[Array, ""] | int
) -> tuple[Verdict, Int[Array, " b"]]:
    """The verdict without what follows EOS or the limit, and how many tokens that dropped, [B].

    Finished rows emit nothing. A row cut inside its guesses keeps ``num_emitted`` of them.
    """
    slots = jnp.arange(verdict.tokens.shape[1])
    valid = slots < verdict.num_emitted[:, None]
    is_eos = (verdict.tokens == eos_id) & valid
    until_eos = jnp.min(jnp.where(is_eos, slots + 1, slots.size), axis=1)
    emitted = jnp.minimum(jnp.minimum(verdict.num_emitted, until_eos), limit - state.num_tokens)
    emitted = jnp.where(state.finished, 0, emitted).astype(jnp.int32)
    dropped = jnp.where(state.finished, 0, verdict.num_emitted - emitted)
    kept = dataclasses.replace(
        verdict,
        num_emitted=emitted,
        num_accepted=jnp.minimum(verdict.num_accepted, emitted),
    )
    return kept, dropped


def count_block(
    stats: Stats,
    verdict: Verdict,
    dropped: Int[Array, " b"],
    beta: Float[Array, "b g"],
    num_guesses: Int[Array, " b"],
) -> Stats:
    """Adds one block, after :func:`cut_at_end`.

    Args:
      beta: [B, G] each position's Σ min(p, q).
      num_guesses: [B] guesses that were made.
    """
    active = (verdict.num_emitted > 0).astype(jnp.int32)
    gamma = beta.shape[1]
    # The position of the first rejection is examined too; a row cut short has none.
    examined = jnp.minimum(verdict.num_accepted + 1, verdict.num_emitted)
    examined = jnp.minimum(examined, num_guesses)
    histogram = jax.nn.one_hot(verdict.num_accepted, gamma + 1, dtype=jnp.int32)
    was_examined = jnp.arange(gamma) < examined[:, None]
    return Stats(
        target_calls=stats.target_calls + active,
        proposed=stats.proposed + num_guesses * active,
        examined=stats.examined + examined,
        accepted=stats.accepted + verdict.num_accepted,
        emitted=stats.emitted + verdict.num_emitted,
        dropped=stats.dropped + dropped,
        accepted_histogram=stats.accepted_histogram + histogram * active[:, None],
        acceptance_prob_sum=stats.acceptance_prob_sum
        + jnp.sum(jnp.where(was_examined, beta, 0.0), axis=1),
    )


def advance(
    state: DecodeState,
    verdict: Verdict,
    *,
    cache: Cache,
    drafter_state: DrafterState,
    stats: Stats,
    eos_id: int,
    limit: Int[Array, ""] | int,
) -> DecodeState:
    """Takes in a cut verdict: writes its tokens and ends rows that emitted EOS or met the limit."""
    emitted = verdict.num_emitted

    def write(row, new, at):
        return jax.lax.dynamic_update_slice(row, new, (at,))

    tokens = jax.vmap(write)(state.tokens, verdict.tokens, state.num_tokens)
    newest = take_position(verdict.tokens, jnp.maximum(emitted - 1, 0))
    active = emitted > 0
    num_tokens = state.num_tokens + emitted
    return dataclasses.replace(
        state,
        # Finished rows write nothing: their garbage would fall on the end of their own output.
        tokens=jnp.where(active[:, None], tokens, state.tokens),
        num_tokens=num_tokens,
        last_token=jnp.where(active, newest, state.last_token),
        finished=state.finished | (active & (newest == eos_id)) | (num_tokens >= limit),
        block=state.block + 1,
        cache=cache,
        drafter_state=drafter_state,
        stats=stats,
    )


def record(state: DecodeState, info: BlockInfo) -> DecodeState:
    """Keeps the diagnostics of the block just run, if they are wanted."""
    if state.trace is None:
        return state
    at = state.block - 1
    trace = jax.tree.map(lambda old, new: old.at[at].set(new), state.trace, info)
    return dataclasses.replace(state, trace=trace)


def result(state: DecodeState, output_bucket: int, pad_id: int) -> DecodeResult:
    """The finished rows, padded after their end."""
    tokens = state.tokens[:, :output_bucket]
    inside = jnp.arange(output_bucket) < state.num_tokens[:, None]
    return DecodeResult(
        jnp.where(inside, tokens, pad_id), state.num_tokens, state.stats, state.trace
    )
