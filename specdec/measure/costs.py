"""Costs of the parts of a decode: the one timer of c and v.

Timing a single step would mostly measure its dispatch. So each loop here runs ``STEPS`` blocks of
the real engine in one program, with buffers of the size the decode has. The cost of a block does
not depend on its values, because all shapes are static. So rows that have ended continue. Two
drafts are exceptions: one that stops early, and one that is itself drafted for. Behind the text's
end they may guess more or fewer times than within it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.core.topology import Topology, TracedTopology
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.random import RandomDrafter
from specdec.measure.timing import Work
from specdec.types import (
    DecodeState,
    Draft,
    DrafterState,
    Params,
    Prompt,
    RandomSource,
    RuleStates,
    Seed,
    Stats,
)
from specdec.verifiers.point_mass import PointMassVerifier

STEPS = 128
PER_STEP = 1 / STEPS  # Of a repetition's time.
_WARM_UP = 32  # Steps that run unmeasured before each repetition.

Loop = Callable[[int], object]


@decode_jit(static_argnames=("engine", "output_bucket"))
def start(
    engine: Engine, params: EngineParams, prompt: Prompt, row_ids: Int[Array, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int,
) -> DecodeState:  # fmt: skip
    """Start a decode, once; see :meth:`specdec.decoding.engine.Engine.start`."""
    return engine.start(params, prompt, row_ids, limit, seed, output_bucket=output_bucket)


@decode_jit(static_argnames="engine")
def blocks(
    engine: Engine,
    params: EngineParams,
    state: DecodeState,
    steps: Int[Array, ""],
) -> tuple[Array, Array, Array, Stats]:
    """Run a number of blocks, each of which waits for the one before.

    Args:
      steps: the number; not static, as the length of a decode is not.
    """

    def block(_, state):
        random = BlockRandom.of(state.row_keys, state.block)
        draft, state = engine.propose(params, state, random)
        scored = engine.score(params, state, draft)
        verdict = engine.verify(scored, draft, random)
        after, _ = engine.commit(params, state, draft, scored, verdict)
        # Rows that ended go on, so that no drafter leaves them out.
        running = jnp.zeros_like(after.finished)
        return dataclasses.replace(after, finished=running, num_tokens=state.num_tokens)

    after = jax.lax.fori_loop(0, steps, block, state)
    # All that a decode keeps: the compiler leaves out what nobody asks for.
    return after.last_token, after.tokens, after.failed, after.stats


class _FreePointMasses(RandomDrafter):
    """Guesses without a q."""

    def propose(
        self, params: Params, state: DrafterState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, DrafterState]:
        draft, state = super().propose(params, state, random, rules)
        return dataclasses.replace(draft, probs=None, independent=False), state


def without_draft(fast: BatchDecoder, shape: Topology | None = None) -> BatchDecoder:
    """This decoder with guesses that cost nothing.

    Args:
      shape: of the guesses; that of the draft's if None.
    """
    vocab_size, own = fast.engine.target.vocab_size, fast.engine.topology
    drawn = not isinstance(fast.engine.verifier, PointMassVerifier)
    if shape is None and isinstance(own, TracedTopology):
        shape = Topology.of_sizes(own.size, own.depth, own.siblings)
        drawn = False  # They are the draft's likeliest.
    free = (RandomDrafter if drawn else _FreePointMasses)(shape or own, vocab_size)
    engine = dataclasses.replace(fast.engine, drafter=free)
    params = dataclasses.replace(fast.params, drafter=())
    return dataclasses.replace(fast, engine=engine, params=params)


def loop(decoder: BatchDecoder, batch: Batch) -> Loop:
    """Blocks on a batch, to be timed: a function of their number."""
    bucket = decoder.output_bucket
    state = start(decoder.engine, *decoder.arguments(batch), output_bucket=bucket)
    jax.block_until_ready(state)
    return lambda steps: blocks(decoder.engine, decoder.params, state, jnp.int32(steps))


def step_works(plain: BatchDecoder, fast: BatchDecoder | None, batch: Batch) -> list[Work]:
    """Loops that measure c and v: "plain", "verified" (no draft) and "block".

    Only the first if there is no ``fast``.
    """
    decoders = {"plain": plain}
    if fast is not None:
        decoders |= {"verified": without_draft(fast), "block": fast}
    return works_of({name: loop(decoder, batch) for name, decoder in decoders.items()})


def works_of(loops: dict[str, Loop]) -> list[Work]:
    """STEPS blocks of each loop a repetition, after a few unmeasured ones.

    So the processor's caches hold what the blocks before left, as within a long decode. After
    another loop, a model about as large as the cache would first have to be read from memory.
    """
    return [
        Work(name, functools.partial(run, STEPS), None, before=functools.partial(run, _WARM_UP))
        for name, run in loops.items()
    ]


def step_seconds(seconds: dict[str, float], depth: int) -> dict[str, float]:
    """One repetition of :func:`step_works` as seconds of a step.

    Returns:
      "target_step", a step of plain decoding; "verify_step", a block without its draft, both with
      everything that surrounds a call; "draft_step", what the draft adds to a block for each of
      its ``depth`` guesses in a row (of a tree, for a level): between target calls, which flush the
      processor's caches of its weights and code.
    """
    plain, verified, block = (seconds[name] * PER_STEP for name in ("plain", "verified", "block"))
    return {"target_step": plain, "verify_step": verified, "draft_step": (block - verified) / depth}


def start_works(plain: BatchDecoder, fast: BatchDecoder | None, batch: Batch) -> list[Work]:
    """Decodes of one block: work done once, in the encoders above all; see `start_seconds`.

    A whole decode runs before each, unmeasured, since an encoder whose weights are still in the
    processor's caches takes much less time.
    """
    decoders = {"plain_first": plain} | ({} if fast is None else {"fast_first": fast})
    return [
        Work(
            name, functools.partial(decoder.decode, batch, limit=1), batch.shape,
            before=functools.partial(decoder.decode, batch),
        )
        for name, decoder in decoders.items()
    ]  # fmt: skip


def start_seconds(seconds: dict[str, float], num_batches: int) -> dict[str, float]:
    """One repetition of :func:`start_works` and of loops "plain" and "block" as seconds.

    A decode of one block less a block of the loop: it includes what the first block takes longer
    than others, because the encoders drove the decoder's weights out of the processor's caches.

    Args:
      num_batches: of whose decodes ``seconds`` are the sums. The loops are of one batch, of the
        commonest shape; other batches' blocks are taken to cost as much.

    Returns:
      "target_encode", of plain decoding, and "draft_encode", what a drafter adds to it.
    """

    def start(first: str, loop: str) -> float:
        return seconds[first] - num_batches * seconds[loop] * PER_STEP

    found = {"target_encode": start("plain_first", "plain")}
    if "fast_first" in seconds:
        found["draft_encode"] = start("fast_first", "block") - found["target_encode"]
    return found
