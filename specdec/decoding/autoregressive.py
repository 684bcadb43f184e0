"""Plain decoding, one target call a token: the reference for correctness and for speed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom, draw_from
from specdec.core.standardize import standardize
from specdec.decoding import state as st
from specdec.models.base import Model
from specdec.types import (
    BlockInfo,
    DecodeResult,
    DecodeState,
    Encoded,
    Params,
    Purpose,
    SamplingConfig,
    Verdict,
)


def step(
    model: Model,
    sampling: SamplingConfig,
    width: int,
    limit: Int[Array, ""] | int,
    params: Params,
    encoded: Encoded,
    random: BlockRandom,
    state: DecodeState,
) -> tuple[DecodeState, BlockInfo]:
    """Emits one token a row."""
    batch = state.last_token.shape[0]
    tokens = jnp.pad(state.last_token[:, None], ((0, 0), (0, width - 1)))
    logits, cache = model.extend(params, encoded, state.cache, tokens)
    distribution = standardize(logits[:, :1], sampling)
    uniforms = jnp.zeros(()) if sampling.greedy else random.uniforms(Purpose.FINAL, 1)
    token = draw_from(distribution, uniforms)
    ones = jnp.ones((batch,), jnp.int32)
    verdict = Verdict(token, ones, jnp.zeros_like(ones), jnp.zeros_like(token))
    verdict, dropped = st.cut_at_end(verdict, state, model.eos_id, limit)
    cache = model.commit(cache, None, verdict.num_emitted)
    none = jnp.zeros_like(ones)
    stats = st.count_block(state.stats, verdict, dropped, jnp.zeros((batch, 0)), none)
    info = BlockInfo(token[:, :0], none, token, verdict.num_accepted, verdict.num_emitted)
    state = st.advance(
        state, verdict,
        cache=cache, drafter_state=None, stats=stats, eos_id=model.eos_id, limit=limit,
    )  # fmt: skip
    return state, info


@decode_jit(static_argnames=("model", "sampling", "output_bucket", "width", "trace"))
def autoregressive_decode(
    model: Model,
    params: Params,
    inputs: Int[Array, "b s"],
    row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int,
    seed: Int[Array, ""] | int,
    *,
    sampling: SamplingConfig,
    output_bucket: int,
    width: int = 1,
    trace: bool = False,
) -> DecodeResult:
    """Decodes a batch, one token a target call, in one ``lax.while_loop``.

    Args:
      params: the model's packed parameters.
      inputs: [B, S], padded with ``pad_id``.
      row_ids: [B]; key each row's random numbers, negative for padding rows.
      limit: tokens a row may emit, EOS included; at most ``output_bucket``.
      output_bucket: L, size of the output buffer.
      width: tokens in each call, all but one of them padding. 1 is plain decoding; gamma + 1
        gives the width-matched reference, whose arithmetic is the speculative loop's own.
      trace: keep every block's diagnostics.
    """
    encoded = model.encode(params, inputs)
    state = st.initial_state(
        model, row_ids=row_ids, seed=seed, limit=limit, output_bucket=output_bucket,
        gamma=0, width=width, drafter_state=None, trace=trace,
    )  # fmt: skip

    def body(state: DecodeState) -> DecodeState:
        random = BlockRandom.of(state.row_keys, state.block)
        after, info = step(model, sampling, width, limit, params, encoded, random, state)
        return st.record(after, info)

    state = jax.lax.while_loop(lambda s: ~jnp.all(s.finished), body, state)
    return st.result(state, output_bucket, model.pad_id)
