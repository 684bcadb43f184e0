"""Speculative decoding: draft, score, verify, roll back; Algorithm 1 as a loop over a batch.

One block, for each row:
  1. the drafter proposes up to gamma guesses x_1..x_gamma and the exact q each was drawn from;
  2. the target scores [last token, x_1..x_gamma] in one call of gamma + 1 tokens;
  3. the verifier keeps a prefix of the guesses and adds one token of its own;
  4. what lies past EOS or the length limit is dropped;
  5. target cache and drafter are rolled back to what was kept.
The last token emitted is never in the target's cache: it opens the next call.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", Algorithm 1.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.core.residuals import acceptance_prob, guess_counts
from specdec.core.standardize import standardize
from specdec.decoding import state as st
from specdec.drafters.base import Drafter
from specdec.models.base import Model
from specdec.types import (
    BlockInfo,
    Cache,
    DecodeResult,
    DecodeState,
    Distribution,
    Draft,
    Encoded,
    Params,
    PointMass,
    RandomSource,
    SamplingConfig,
    Topology,
)
from specdec.verifiers.base import Verifier


def _drafted_part(target: Distribution, gamma: int) -> Distribution:
    if isinstance(target, PointMass):
        return PointMass(target.tokens[:, :gamma])
    return target[:, :gamma]


def step(
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    sampling: SamplingConfig,
    limit: Int[Array, ""] | int,
    params: Params,
    drafter_params: Params,
    encoded: Encoded,
    random: RandomSource,
    state: DecodeState,
) -> tuple[DecodeState, BlockInfo]:
    """Runs one block: each unfinished row emits 1..gamma+1 tokens."""
    draft, state = propose(drafter, drafter_params, random, state)
    return verify(model, drafter, verifier, sampling, limit, params, encoded, random, state, draft)


def propose(
    drafter: Drafter, drafter_params: Params, random: RandomSource, state: DecodeState
) -> tuple[Draft, DecodeState]:
    """A block's guesses."""
    with jax.named_scope("draft"):
        draft, drafter_state = drafter.propose(drafter_params, state.drafter_state, random)
    return draft, dataclasses.replace(state, drafter_state=drafter_state)


def verify(
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    sampling: SamplingConfig,
    limit: Int[Array, ""] | int,
    params: Params,
    encoded: Encoded,
    random: RandomSource,
    state: DecodeState,
    draft: Draft,
) -> tuple[DecodeState, BlockInfo]:
    """The rest of a block, after :func:`propose`: scores its guesses and takes in what is kept."""
    target, cache = score(model, verifier, sampling, params, encoded, state, draft)
    return settle(model, drafter, verifier, limit, random, state, draft, target, cache)


def _scored(draft: Draft) -> Topology:
    """The scored block: the draft under its root, the last token emitted."""
    return Topology((-1, *(parent + 1 for parent in draft.topology.parents)))


def score(
    model: Model,
    verifier: Verifier,
    sampling: SamplingConfig,
    params: Params,
    encoded: Encoded,
    state: DecodeState,
    draft: Draft,
) -> tuple[Distribution, Cache]:
    """p at the last token and at every guess, and the cache with all of them written."""
    tokens = jnp.concatenate([state.last_token[:, None], draft.tokens], axis=1)
    with jax.named_scope("target"):
        logits, cache = model.extend(params, encoded, state.cache, tokens, _scored(draft))
    return standardize(logits, sampling, keep_probs=verifier.needs_probs), cache


def settle(
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    limit: Int[Array, ""] | int,
    random: RandomSource,
    state: DecodeState,
    draft: Draft,
    target: Distribution,
    cache: Cache,
) -> tuple[DecodeState, BlockInfo]:
    """Verifies what was scored and takes in what is kept."""
    verdict = verifier(random, target, draft)
    verdict, dropped = st.cut_at_end(verdict, state, model.eos_id, limit)

    path = None if _scored(draft).is_chain else verdict.path
    cache = model.commit(cache, path, verdict.num_emitted)
    drafter_state = drafter.observe(state.drafter_state, verdict)
    beta = acceptance_prob(_drafted_part(target, drafter.gamma), draft)
    guesses = guess_counts(draft)
    stats = st.count_block(state.stats, verdict, dropped, beta, guesses)
    info = BlockInfo(
        draft.tokens, guesses, verdict.tokens, verdict.num_accepted, verdict.num_emitted
    )
    state = st.advance(
        state, verdict,
        cache=cache, drafter_state=drafter_state, stats=stats, eos_id=model.eos_id, limit=limit,
    )  # fmt: skip
    return state, info


@decode_jit(static_argnames=("model", "drafter", "verifier", "sampling", "output_bucket", "trace"))
def speculative_decode(
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    params: Params,
    drafter_params: Params,
    inputs: Int[Array, "b s"],
    row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int,
    seed: Int[Array, ""] | int,
    *,
    sampling: SamplingConfig,
    output_bucket: int,
    trace: bool = False,
) -> DecodeResult:
    """Decodes a batch speculatively, the whole of it in one ``lax.while_loop``.

    Rows advance and end apart; a row's output does not depend on its neighbours. With a lossless
    verifier the output's law is the target's own under ``sampling``.

    Args:
      model, params: the target and its packed parameters.
      drafter, drafter_params: who guesses; ``drafter.gamma`` guesses a block.
      verifier: who accepts.
      inputs: [B, S], padded with ``pad_id``.
      row_ids: [B]; key each row's random numbers, negative for padding rows.
      limit: tokens a row may emit, EOS included; at most ``output_bucket``.
      output_bucket: L, size of the output buffer.
      trace: keep every block's diagnostics.
    """
    gamma = drafter.gamma
    encoded = model.encode(params, inputs)
    state = st.initial_state(
        model, row_ids=row_ids, seed=seed, limit=limit, output_bucket=output_bucket,
        gamma=gamma, width=gamma + 1, trace=trace,
        drafter_state=drafter.init(drafter_params, inputs, output_bucket, encoded),
    )  # fmt: skip

    def body(state: DecodeState) -> DecodeState:
        random = BlockRandom.of(state.row_keys, state.block)
        after, info = step(
            model, drafter, verifier, sampling, limit,
            params, drafter_params, encoded, random, state,
        )  # fmt: skip
        return st.record(after, info)

    state = jax.lax.while_loop(lambda s: ~jnp.all(s.finished), body, state)
    return st.result(state, output_bucket, model.pad_id)
