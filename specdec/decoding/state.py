"""The state around blocks: buffers, the end of a row, and taking in a block's tokens.

A verdict is cut at EOS or the limit before anything is committed or counted. The output buffer has
depth + 1 extra positions, so a block that crosses the limit is written whole and cut afterwards.
Finished rows emit nothing, and neither their cache nor their drafter changes.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from specdec.core.randomness import row_keys
from specdec.core.residuals import guess_counts, one_of, take_position, write_at
from specdec.core.topology import AnyTopology
from specdec.types import (
    AnyArray,
    BlockInfo,
    Cache,
    DecodeResult,
    DecodeState,
    Draft,
    DrafterState,
    LogProbs,
    RuleStates,
    Seed,
    Start,
    Stats,
    Verdict,
)


def initial_state(
    start: Start, drafter_state: DrafterState, *, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, output_bucket: int, pad_id: int,
    topology: AnyTopology, rules: RuleStates, stop: Int[Array, " b"] | None = None,
    alternatives: int | None = None, audit: bool = False, trace: bool,
) -> DecodeState:  # fmt: skip
    """The state before the first block; arguments as in :meth:`specdec.decoding.engine.Engine`.

    Args:
      topology: of each draft; of no nodes for plain decoding.
      rules: their states before the first token.
      stop: the states of what ends rows beside EOS; None without any.
      alternatives: to keep of each token with its log-probabilities; None to keep nothing.
      audit: whether margins are kept with them.
    """
    depth, nodes = topology.depth, topology.size
    batch = row_ids.shape[0]
    zeros = jnp.zeros((batch,), jnp.int32)
    counts = ("target_calls", "proposed", "examined", "accepted", "emitted", "dropped")
    # One block more than a row can have, for what finished rows would write.
    blocks = jnp.zeros((batch, output_bucket + 1), jnp.int32)
    guesses = jnp.zeros((*blocks.shape, nodes), jnp.int32)
    emitted = jnp.zeros((*blocks.shape, depth + 1), jnp.int32)
    limit = jnp.asarray(limit, jnp.int32)
    return DecodeState(
        # A block that crosses the limit is written whole and cut afterwards.
        tokens=jnp.full((batch, output_bucket + depth + 1), pad_id, jnp.int32),
        num_tokens=zeros,
        last_token=start.last_token,
        finished=(row_ids < 0) | (limit <= 0),
        block=zeros,
        failed=zeros,
        stop=stop,
        stopped=None if stop is None else jnp.zeros((batch,), bool),
        limit=limit,
        row_keys=row_keys(seed, jnp.asarray(row_ids)),
        rules=rules,
        encoded=start.encoded,
        cache=start.cache,
        drafter_state=drafter_state,
        log_probs=None
        if alternatives is None
        else no_log_probs(batch, output_bucket + depth + 1, alternatives, audit),
        stats=Stats(
            **dict.fromkeys(counts, zeros),
            accepted_histogram=jnp.zeros((batch, depth + 1), jnp.int32),
            accepted_by_rank=jnp.zeros((batch, topology.siblings), jnp.int32),
            acceptance_prob_sum=jnp.zeros((batch,), jnp.float32),
        ),
        trace=BlockInfo(
            draft_tokens=guesses,
            parents=guesses,
            num_guesses=blocks,
            tokens=emitted,
            path=emitted,
            num_accepted=blocks,
            num_emitted=blocks,
        )
        if trace
        else None,
    )


def no_log_probs(batch: int, size: int, alternatives: int, audit: bool) -> LogProbs:
    """Empty buffers for ``size`` tokens."""
    nothing = jnp.zeros((batch, size))
    top = jnp.zeros((batch, size, alternatives))
    return LogProbs(
        nothing, nothing, nothing, top.astype(jnp.int32), top, nothing if audit else None
    )


def cut_at_end(
    verdict: Verdict, state: DecodeState, eos_ids: tuple[int, ...],
    stops: Bool[Array, "b d1"] | None = None,
) -> tuple[Verdict, Int[Array, " b"]]:  # fmt: skip
    """The verdict without tokens behind EOS or the limit, and the number of these, [B].

    Finished rows emit nothing. A row cut inside its guesses keeps ``num_emitted`` of them, and
    counts no further level as examined.

    Args:
      stops: which tokens end a row beside EOS; None for none.
    """
    slots = jnp.arange(verdict.tokens.shape[1])
    valid = slots < verdict.num_emitted[:, None]
    is_eos = one_of(verdict.tokens, eos_ids)
    if stops is not None:
        is_eos |= stops
    until_eos = jnp.min(jnp.where(is_eos & valid, slots + 1, slots.size), axis=1)
    capacity = state.limit - state.num_tokens
    emitted = jnp.minimum(jnp.minimum(verdict.num_emitted, until_eos), capacity)
    emitted = jnp.where(state.finished, 0, emitted).astype(jnp.int32)
    dropped = jnp.where(state.finished, 0, verdict.num_emitted - emitted)
    accepted = jnp.minimum(verdict.num_accepted, emitted)
    examined = jnp.minimum(verdict.examined, emitted)
    kept = dataclasses.replace(
        verdict, num_emitted=emitted, num_accepted=accepted, examined=examined
    )
    return kept, dropped


def count_block(stats: Stats, verdict: Verdict, dropped: Int[Array, " b"], draft: Draft) -> Stats:
    """Adds one block, after :func:`cut_at_end`."""
    active = (verdict.num_emitted > 0).astype(jnp.int32)
    depth = verdict.acceptance_prob.shape[1]
    histogram = jax.nn.one_hot(verdict.num_accepted, depth + 1, dtype=jnp.int32)
    num_guesses = guess_counts(draft)
    kept = jnp.arange(depth) < verdict.num_accepted[:, None]
    ranks = jnp.broadcast_to(jnp.asarray(draft.topology.ranks()), draft.tokens.shape)
    nodes = jnp.where(kept, verdict.path[:, 1:] - 1, 0)
    ranks = jnp.where(kept, jnp.take_along_axis(ranks, nodes, axis=1), -1) if depth else kept
    by_rank = ranks[..., None] == jnp.arange(stats.accepted_by_rank.shape[1])
    was_examined = jnp.arange(depth) < verdict.examined[:, None]
    return Stats(
        target_calls=stats.target_calls + active,
        proposed=stats.proposed + num_guesses * active,
        examined=stats.examined + verdict.examined,
        accepted=stats.accepted + verdict.num_accepted,
        emitted=stats.emitted + verdict.num_emitted,
        dropped=stats.dropped + dropped,
        accepted_histogram=stats.accepted_histogram + histogram * active[:, None],
        accepted_by_rank=stats.accepted_by_rank + jnp.sum(by_rank, axis=1, dtype=jnp.int32),
        acceptance_prob_sum=stats.acceptance_prob_sum
        + jnp.sum(jnp.where(was_examined, verdict.acceptance_prob, 0.0), axis=1),
    )


def advance(
    state: DecodeState, verdict: Verdict, *, cache: Cache, drafter_state: DrafterState,
    stats: Stats, rules: RuleStates, log_probs: LogProbs | None, failed: Int[Array, " b"],
    eos_ids: tuple[int, ...],
    stop: tuple[Int[Array, "b d1"], Bool[Array, "b d1"]] | None = None,
) -> DecodeState:  # fmt: skip
    """Takes in a cut verdict: writes its tokens and ends rows that emitted EOS or met the limit.

    Args:
      rules: the states behind what was emitted.
      log_probs: of the verdict's tokens; None unless they are kept.
      failed: [B] see :class:`DecodeState`; where it is not 0, rows end too.
      stop: the states behind each of the verdict's tokens of what ends rows beside EOS, and whether
        the token ends its row; None without any.
    """
    emitted = verdict.num_emitted
    tokens = write_at(state.tokens, verdict.tokens, state.num_tokens)
    newest = take_position(verdict.tokens, jnp.maximum(emitted - 1, 0))
    active = emitted > 0
    stop_state, stopped = state.stop, state.stopped
    if stop is not None:
        assert state.stop is not None
        assert stopped is not None
        last = jnp.maximum(emitted - 1, 0)
        behind, ends = (take_position(each, last) for each in stop)
        stop_state = jnp.where(active, behind, state.stop)
        stopped = stopped | (active & ends)
    num_tokens = state.num_tokens + emitted
    failed = jnp.where(active, failed, 0)
    finished = state.finished | (active & one_of(newest, eos_ids)) | (num_tokens >= state.limit)
    finished |= failed > 0
    if stopped is not None:
        finished |= stopped
    return dataclasses.replace(
        state,
        # Finished rows write nothing: their garbage would fall on the end of their own output.
        tokens=jnp.where(active[:, None], tokens, state.tokens),
        num_tokens=num_tokens,
        last_token=jnp.where(active, newest, state.last_token),
        finished=finished,
        failed=jnp.maximum(state.failed, failed),
        stop=stop_state,
        stopped=stopped,
        rules=rules,
        log_probs=jax.tree.map(
            lambda old, new: jnp.where(
                active.reshape(-1, *[1] * (old.ndim - 1)), write_at(old, new, state.num_tokens), old
            ), state.log_probs, log_probs,
        ),
        block=state.block + active, cache=cache, drafter_state=drafter_state, stats=stats,
    )  # fmt: skip


def record(state: DecodeState, info: BlockInfo) -> DecodeState:
    """Keeps the diagnostics of the block just run, if they are wanted."""
    if state.trace is None:
        return state
    # Finished rows have no block; theirs comes behind those that they had.
    at = jnp.where(info.num_emitted > 0, state.block - 1, state.block)
    trace = jax.tree.map(lambda old, new: write_at(old, new[:, None], at), state.trace, info)
    return dataclasses.replace(state, trace=trace)


def result(state: DecodeState, size: int, pad_id: int) -> DecodeResult:
    """Results of the rows, [B, size], padded after their end."""
    count = state.num_tokens
    return DecodeResult(
        until_end(state.tokens, count, size, pad_id), count, state.failed, state.stopped,
        jax.tree.map(lambda leaf: until_end(leaf, count, size), state.log_probs),
        state.stats, state.trace,
    )  # fmt: skip


def until_end(
    values: Shaped[Array, "*b l ..."], num_tokens: Int[Array, "*b"], size: int, fill: int = 0
) -> Shaped[Array, "*b size ..."]:
    """Values of ``size`` tokens, ``fill`` behind the end."""
    axis = num_tokens.ndim
    values = jax.lax.slice_in_dim(values, 0, min(size, values.shape[axis]), axis=axis)
    padding = [(0, 0)] * values.ndim
    padding[axis] = (0, size - values.shape[axis])
    inside = jnp.arange(size) < num_tokens[..., None]
    inside = inside.reshape(*inside.shape, *[1] * (values.ndim - axis - 1))
    return jnp.where(inside, jnp.pad(values, padding), fill)
