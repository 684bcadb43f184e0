"""One decode call by call, timed, as Figure 5 of Leviathan et al. 2023 shows it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec.api import VERIFIER, Pair, check_arguments
from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.decoding import autoregressive, speculative
from specdec.decoding import state as st
from specdec.decoding.batches import Batch, bucket, make_batches
from specdec.drafters.base import Drafter
from specdec.measure import costs
from specdec.models.base import Model
from specdec.types import (
    BlockInfo,
    DecodeState,
    Draft,
    Encoded,
    Params,
    SamplingConfig,
)
from specdec.verifiers.base import Verifier

Kind = Literal["target_encoder", "draft_encoder", "draft", "target"]
REPETITIONS = 5


@dataclasses.dataclass(frozen=True)
class Event:
    """One call, from its start to the arrival of its result.

    Attributes:
      kind: "target_encoder"; "draft_encoder", what a draft does once an input, be it a model or
        not; "draft", all gamma guesses of a block; "target", a target call with verification and
        bookkeeping, or a step of plain decoding.
      start_ms, end_ms: milliseconds since the decode began.
      emitted: tokens that a target call emitted; 0 for other kinds.
    """

    kind: Kind
    start_ms: float
    end_ms: float
    emitted: int = 0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A decode's calls, in order.

    Attributes:
      gamma: guesses a block; 0 for plain decoding.
      events: the calls.
      tokens: the output, EOS included.
    """

    gamma: int
    events: tuple[Event, ...]
    tokens: np.ndarray

    @property
    def total_ms(self) -> float:
        """Milliseconds from the first call's start to the last one's end."""
        return self.events[-1].end_ms - self.events[0].start_ms


def record(
    pair: Pair,
    text_ids: Sequence[int] | np.ndarray,
    gamma: int,
    sampling: SamplingConfig,
    max_decode_len: int,
    seed: int,
) -> Timeline:
    """Decodes one text with the host between the calls, and times each call.

    The tokens are those of :meth:`specdec.api.Pair.generate`, which runs the same parts in one
    program. It need not wait for the host after each call, nor hand on caches from program to
    program, so it takes less time than what is shown here.

    Everything runs once unmeasured; of ``REPETITIONS`` decodes, the one of median time is kept.

    Args:
      text_ids: the input's token ids, EOS included; see :meth:`specdec.api.Pair.token_ids`.
      gamma: guesses a block; 0 decodes plainly.
      sampling: the target's, and the draft's.
      max_decode_len: tokens that may be emitted, EOS included.
      seed: of the random numbers.

    Raises:
      ValueError: gamma or max_decode_len out of range.
    """
    method = "speculative" if gamma else "autoregressive"
    check_arguments(method, gamma, max_decode_len, 1, 0.0)
    (batch,) = make_batches([np.asarray(text_ids)], 1, pair.target.model.pad_id)
    drafter = pair.drafter(gamma, sampling) if gamma else None
    _unmeasured, *runs = [
        _decode(pair, batch, drafter, sampling, max_decode_len, seed)
        for _ in range(1 + REPETITIONS)
    ]
    return sorted(runs, key=lambda run: run.total_ms)[REPETITIONS // 2]


def _decode(
    pair: Pair,
    batch: Batch,
    drafter: Drafter | None,
    sampling: SamplingConfig,
    limit: int,
    seed: int,
) -> Timeline:
    target, room = pair.target, bucket(limit)
    gamma = drafter.gamma if drafter else 0
    inputs = jnp.asarray(batch.inputs)
    state = st.initial_state(
        target.model, row_ids=jnp.asarray(batch.row_ids), seed=seed, limit=limit,
        output_bucket=room, gamma=gamma, width=gamma + 1, drafter_state=None, trace=False,
    )  # fmt: skip
    jax.block_until_ready(state)
    events: list[Event] = []
    begin = time.perf_counter()

    def timed(kind: Kind, call, *args):
        start = time.perf_counter()
        result = jax.block_until_ready(call(*args))
        end = time.perf_counter()
        emitted = result[1].num_emitted.item() if kind == "target" else 0
        events.append(Event(kind, 1e3 * (start - begin), 1e3 * (end - begin), emitted))
        return result

    encoded = timed("target_encoder", costs.encode, target.model, target.params, inputs)
    if drafter:
        drafter_state = timed(
            "draft_encoder", costs.init_drafter, drafter, pair.draft.params, inputs, room, encoded
        )
        state = dataclasses.replace(state, drafter_state=drafter_state)
    while not state.finished.item():
        if drafter:
            draft, state = timed("draft", _propose, drafter, pair.draft.params, state)
            state, _ = timed(
                "target", _verify, target.model, drafter, VERIFIER, sampling, limit,
                target.params, encoded, state, draft,
            )  # fmt: skip
        else:
            state, _ = timed(
                "target", _plain_step, target.model, sampling, limit, target.params, encoded, state
            )
    result = st.result(state, room, target.model.pad_id)
    return Timeline(gamma, tuple(events), np.asarray(result.tokens[0, : result.num_tokens[0]]))


@decode_jit(static_argnames="drafter")
def _propose(drafter: Drafter, params: Params, state: DecodeState) -> tuple[Draft, DecodeState]:
    random = BlockRandom.of(state.row_keys, state.block)
    return speculative.propose(drafter, params, random, state)


@decode_jit(static_argnames=("model", "drafter", "verifier", "sampling"))
def _verify(
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    sampling: SamplingConfig,
    limit: Int[Array, ""] | int,
    params: Params,
    encoded: Encoded,
    state: DecodeState,
    draft: Draft,
) -> tuple[DecodeState, BlockInfo]:
    random = BlockRandom.of(state.row_keys, state.block)
    return speculative.verify(
        model, drafter, verifier, sampling, limit, params, encoded, random, state, draft
    )


@decode_jit(static_argnames=("model", "sampling"))
def _plain_step(
    model: Model,
    sampling: SamplingConfig,
    limit: Int[Array, ""] | int,
    params: Params,
    encoded: Encoded,
    state: DecodeState,
) -> tuple[DecodeState, BlockInfo]:
    random = BlockRandom.of(state.row_keys, state.block)
    return autoregressive.step(model, sampling, 1, limit, params, encoded, random, state)
