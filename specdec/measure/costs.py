"""The parts of a decode as whole compiled loops, to be timed apart.

A single dispatch of one step would mostly measure the dispatch. Each loop here runs ``STEPS``
steps, each depending on the one before, with caches of the size the decode has. What a step costs
does not depend on what it computes: all shapes are static.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom, draw_from
from specdec.core.standardize import standardize
from specdec.decoding.speculative import step
from specdec.decoding.state import initial_state
from specdec.drafters.base import Drafter
from specdec.models.base import Model
from specdec.types import (
    Cache,
    DecodeState,
    Draft,
    DrafterState,
    Encoded,
    Params,
    Purpose,
    SamplingConfig,
    Topology,
    Verdict,
)
from specdec.verifiers.base import Verifier
from specdec.verifiers.forced import ForcedAcceptance
from specdec.verifiers.token import TokenVerifier

STEPS = 32
VERIFIER = TokenVerifier()


@decode_jit(static_argnames="model")
def encode(model: Model, params: Params, inputs: Int[Array, "b s"]) -> Encoded:
    """What each decode does once."""
    return model.encode(params, inputs)


@decode_jit(static_argnames=("drafter", "output_bucket"))
def init_drafter(
    drafter: Drafter,
    params: Params,
    inputs: Int[Array, "b s"],
    output_bucket: int,
    encoded: Encoded,
) -> DrafterState:
    """The drafter before its first block."""
    return drafter.init(params, inputs, output_bucket, encoded)


@decode_jit(static_argnames=("model", "gamma", "sampling", "output_bucket", "verifier"))
def target_calls(
    model: Model,
    params: Params,
    encoded: Encoded,
    keys: Array,
    *,
    gamma: int,
    sampling: SamplingConfig,
    output_bucket: int,
    verifier: Verifier = VERIFIER,
) -> Int[Array, " b"]:
    """STEPS target calls on gamma + 1 tokens, each with what makes it yield its next token.

    That is verification, or for gamma = 0, a step of plain decoding, one draw.

    Args:
      keys: [B] row keys.
    """
    batch = keys.shape[0]
    uniform = jnp.full((batch, gamma, model.vocab_size), 1 / model.vocab_size)

    def propose(random, token, state):
        del random
        tokens = jnp.broadcast_to(token[:, None], (batch, gamma))
        return Draft(tokens, None if sampling.greedy else uniform, Topology.chain(gamma)), state

    return _calls(
        model, params, encoded, keys, gamma, sampling, output_bucket, verifier, propose, None
    )


@decode_jit(static_argnames=("model", "drafter", "sampling", "output_bucket", "verifier"))
def drafted_calls(
    model: Model,
    drafter: Drafter,
    params: Params,
    drafter_params: Params,
    encoded: Encoded,
    drafter_state: DrafterState,
    keys: Array,
    *,
    sampling: SamplingConfig,
    output_bucket: int,
    verifier: Verifier = VERIFIER,
) -> Int[Array, " b"]:
    """:func:`target_calls`, each after a draft of gamma guesses; all are rejected.

    What it takes more is what drafting costs where it happens: between target calls, which flush
    the processor's caches of the draft's weights and code.
    """
    ones = jnp.ones((keys.shape[0],), jnp.int32)

    def propose(random, token, state):
        del token
        draft, state = drafter.propose(drafter_params, state, random)
        tokens = jnp.pad(draft.tokens, ((0, 0), (0, 1)))
        verdict = Verdict(tokens, ones, jnp.zeros_like(ones), jnp.zeros_like(tokens))
        return draft, drafter.observe(state, verdict)

    return _calls(
        model, params, encoded, keys, drafter.gamma, sampling, output_bucket, verifier,
        propose, drafter_state,
    )  # fmt: skip


@decode_jit(static_argnames=("model", "width", "output_bucket"))
def scoring_calls(
    model: Model,
    params: Params,
    encoded: Encoded,
    start: Int[Array, " b"],
    *,
    width: int,
    output_bucket: int,
) -> Int[Array, " b"]:
    """STEPS target calls on ``width`` tokens, from tokens to logits and no further.

    Args:
      start: [B] the first token.
    """
    cache = _half_full(model, len(start), output_bucket, width)

    def body(_, carry):
        cache, token = carry
        tokens = jnp.broadcast_to(token[:, None], (len(token), width))
        logits, cache = model.extend(params, encoded, cache, tokens)
        # One number makes the next call wait; the barrier keeps all the others.
        return cache, (jax.lax.optimization_barrier(logits)[:, -1, 0] > 0).astype(jnp.int32)

    return jax.lax.fori_loop(0, STEPS, body, (cache, start))[1]


@decode_jit(static_argnames=("model", "drafter", "sampling", "output_bucket"))
def blocks(
    model: Model,
    drafter: Drafter,
    params: Params,
    drafter_params: Params,
    encoded: Encoded,
    drafter_state: DrafterState,
    keys: Array,
    *,
    sampling: SamplingConfig,
    output_bucket: int,
) -> DecodeState:
    """STEPS blocks of the real loop; no guess is accepted, so each emits one token."""
    batch = keys.shape[0]
    state = initial_state(
        model, row_ids=jnp.arange(batch), seed=0, limit=STEPS, output_bucket=output_bucket,
        gamma=drafter.gamma, width=drafter.gamma + 1, drafter_state=drafter_state, trace=False,
    )  # fmt: skip
    cache = model.commit(
        state.cache, None, jnp.full((batch,), max(0, output_bucket // 2 - STEPS // 2))
    )
    state = dataclasses.replace(state, cache=cache, row_keys=keys)

    def body(i, state):
        random = BlockRandom.of(keys, i)
        return step(
            model, drafter, ForcedAcceptance(0.0), sampling, STEPS,
            params, drafter_params, encoded, random, state,
        )[0]  # fmt: skip

    return jax.lax.fori_loop(0, STEPS, body, state)


def _half_full(model: Model, batch: int, output_bucket: int, width: int) -> Cache:
    cache = model.init_cache(batch, output_bucket + width)
    return model.commit(cache, None, jnp.full((batch,), output_bucket // 2))


def _calls(
    model, params, encoded, keys, gamma, sampling, output_bucket, verifier, propose, drafter_state
) -> Int[Array, " b"]:
    """The loop of both; ``propose(random, token, state) -> (Draft, state)``."""
    batch = keys.shape[0]
    cache = _half_full(model, batch, output_bucket, gamma + 1)

    def body(i, carry):
        cache, token, state = carry
        random = BlockRandom.of(keys, i)
        draft, state = propose(random, token, state)
        tokens = jnp.concatenate([token[:, None], draft.tokens], axis=1)
        logits, cache = model.extend(params, encoded, cache, tokens)
        target = standardize(logits, sampling, keep_probs=verifier.needs_probs)
        if gamma:
            verdict = verifier(random, target, draft)
            return cache, verdict.tokens[jnp.arange(batch), verdict.num_emitted - 1], state
        uniforms = jnp.zeros(()) if sampling.greedy else random.uniforms(Purpose.FINAL, 1)
        return cache, draw_from(target, uniforms)[:, 0], state

    start = jnp.full((batch,), model.decoder_start_id, jnp.int32)
    return jax.lax.fori_loop(0, STEPS, body, (cache, start, drafter_state))[1]
