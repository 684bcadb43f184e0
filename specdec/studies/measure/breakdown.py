"""Where the time of a speculative decode goes, part by part, and whether the parts add up."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import platforms, theory
from specdec.core.compilation import decode_jit
from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, commonest
from specdec.decoding.loop import decode
from specdec.measure import costs
from specdec.measure.speed import decode_works, sum_of_tokens
from specdec.measure.timing import Work, time_interleaved
from specdec.models.base import LoadedModel
from specdec.models.products import few_tokens

_STREAM_BYTES = 512 * 2**20  # Larger than any cache.
_STREAM_READS = 32  # On an accelerator, where one read takes hardly longer than its launch.
_STREAM_WIDTH = 512


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Milliseconds, medians over the repetitions; those of a part are for one occurrence."""

    gamma: int  # Guesses in a row; of a tree, its levels.
    # Of all batches together, what a decode does besides its blocks (`costs.start_seconds`).
    target_encode: float
    draft_encode: float
    drafts: float  # A block's guesses, measured between target calls.
    scoring: float  # A target call on all guesses and the token before, up to the distributions.
    verification: float  # Accepting, drawing.
    bookkeeping: float  # All else in a block: cutting at the end, rolling back, counting, writing.
    plain_step: float  # A whole step of plain decoding.
    # Whole decodes of all batches.
    speculative: float
    autoregressive: float
    target_calls: int  # Blocks run, over all batches; a batch's slowest row counts.
    # Emitted by speculative and by plain decoding.
    tokens: int
    plain_tokens: int
    plain_steps: int  # Of plain decoding, over all batches; a batch's longest row counts.
    alpha: float  # Mean of sum min(p, q), or the forced one.
    # A row's tokens and guesses per target call of its own.
    block_efficiency: float
    guesses: float
    decoder_bytes: int  # What a plain step must read of the weights.
    # Bytes a second of reading an array that fits no cache, in the same run: by one product of a
    # token, on an accelerator by several sums.
    bandwidth: float
    # What the compiled speculative decode needs: its arguments and all it allocates.
    program_bytes: int
    needed_bytes: int  # Of both models' weights, encodings and caches, and a block's logits.

    @property
    def block(self) -> float:
        """One whole block."""
        return self.drafts + self.scoring + self.verification + self.bookkeeping

    @property
    def block_overhead(self) -> float:
        """A whole block over its drafts and its target call."""
        return self.block / (self.drafts + self.scoring)

    @property
    def explained(self) -> float:
        """The parts' sum over the whole speculative decode."""
        parts = self.target_encode + self.draft_encode + self.target_calls * self.block
        return parts / self.speculative

    @property
    def floor_ratio(self) -> float:
        """Time of a plain step over that of reading the decoder's weights once."""
        return self.plain_step * 1e-3 / (self.decoder_bytes / self.bandwidth)

    @property
    def cost_ratio(self) -> float:
        """c: a draft step over a plain step."""
        return self.drafts / self.gamma / self.plain_step

    @property
    def verify_ratio(self) -> float:
        """v: a block without its drafts over a plain step."""
        return (self.block - self.drafts) / self.plain_step

    @property
    def predicted_speedup(self) -> float:
        """Of the decoder, from alpha, c and v."""
        return theory.speedup(self.alpha, self.gamma, self.cost_ratio, self.verify_ratio)

    @property
    def counted_speedup(self) -> float:
        """Of the decoder, from the blocks as they were counted, c and v.

        It includes that a batch's other rows wait for the slowest.
        """
        tokens_a_call = self.tokens / self.target_calls
        tokens_a_step = self.plain_tokens / self.plain_steps
        return theory.block_speedup(
            tokens_a_call / tokens_a_step, self.guesses, self.cost_ratio, self.verify_ratio
        )

    @property
    def measured_speedup(self) -> float:
        """Of the decoder: whole decodes less their encoders, a token."""
        plain = (self.autoregressive - self.target_encode) / self.plain_tokens
        speculative = self.speculative - self.target_encode - self.draft_encode
        return plain / (speculative / self.tokens)


def measure(
    plain: BatchDecoder, fast: BatchDecoder, batches: Sequence[Batch], *, repetitions: int,
    forced_alpha: float | None, parts_of: BatchDecoder | None = None,
) -> Breakdown:  # fmt: skip
    """Measures every part, interleaved with whole decodes.

    Args:
      forced_alpha: that of the verifier, where it is forced.
      parts_of: whose blocks are taken apart, ``fast`` if None: for a draft that stops, the same one
        with all its guesses.
    """
    parts_of = parts_of or fast
    typical, gamma = commonest(batches)[0], fast.engine.depth
    program_bytes, needed_bytes = memory(fast, typical)
    works, decoded = decode_works(plain, fast, batches)
    works += [work for batch in batches for work in costs.start_works(plain, fast, batch)]
    free = costs.without_draft(parts_of)
    loops = {
        "plain": costs.loop(plain, typical),
        "scored": costs.loop(free, typical, ("draft", "target")),
        "judged": costs.loop(free, typical, ("draft", "target", "verify")),
        "verified": costs.loop(free, typical),
        "block": costs.loop(parts_of, typical),
    }
    works += [*costs.works_of(loops), _stream(fast.target)]
    own = "block"  # The loop of a block as ``fast`` decodes it.
    if parts_of is not fast:
        own = "own block"
        works += costs.works_of({own: costs.loop(fast, typical)})
    times = [
        each | costs.start_seconds(each, len(batches), block=own)
        for each in time_interleaved(works, repetitions)
    ]
    ms = {name: 1e3 * statistics.median(t[name] for t in times) for name in times[0]}
    step = {name: ms[name] * costs.PER_STEP for name in loops}
    results = decoded["speculative"]
    rows = sum(batch.prompt.batch_size for batch in batches)
    stats = RunStats.total([result.stats for result in results], rows, gamma)
    alpha = stats.alpha if forced_alpha is None else forced_alpha
    assert alpha is not None
    assert stats.block_efficiency is not None
    wholes = ("target_encode", "draft_encode", "speculative", "autoregressive")
    return Breakdown(
        gamma, **{name: ms[name] for name in wholes},
        drafts=step["block"] - step["verified"], scoring=step["scored"],
        verification=step["judged"] - step["scored"],
        bookkeeping=step["verified"] - step["judged"], plain_step=step["plain"],
        target_calls=sum(int(np.max(r.stats.target_calls)) for r in results),
        tokens=stats.emitted, plain_tokens=sum_of_tokens(decoded["autoregressive"]),
        plain_steps=sum(int(np.max(r.num_tokens)) for r in decoded["autoregressive"]),
        alpha=alpha, block_efficiency=stats.block_efficiency,
        guesses=stats.proposed / stats.target_calls, decoder_bytes=fast.target.step_bytes,
        bandwidth=_streamed_bytes() / (1e-3 * ms["stream"]),
        program_bytes=program_bytes, needed_bytes=needed_bytes,
    )  # fmt: skip


def memory(decoder: BatchDecoder, batch: Batch) -> tuple[int, int]:
    """``program_bytes`` and ``needed_bytes`` of a decode; compiles it."""
    engine, arguments = decoder.engine, decoder.arguments(batch)
    options = {"output_bucket": decoder.output_bucket}
    jitted = decode.jitted(engine, *arguments, **options)
    program = jitted.lower(engine, *arguments, **options).compile().memory_analysis()

    def allocated(params, prompt, *rest):
        state = engine.start(params, prompt, *rest, **options)
        logits = jnp.zeros((prompt.batch_size, engine.nodes + 1, engine.target.vocab_size))
        return state.encoded, state.cache, state.drafter_state, logits

    needed = jax.tree.leaves((decoder.params, jax.eval_shape(allocated, *arguments)))
    return (
        program.argument_size_in_bytes + program.temp_size_in_bytes + program.output_size_in_bytes,
        sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in needed),
    )


def _stream(target: LoadedModel) -> Work:
    """Reads an array that fits no cache, as fast as a decode step could."""
    dtype = max(jax.tree.leaves(target.params), key=lambda leaf: leaf.size).dtype
    kernel = jnp.ones((1, _STREAM_BYTES // (_STREAM_WIDTH * dtype.itemsize), _STREAM_WIDTH), dtype)
    x = jnp.ones((1, 1, _STREAM_WIDTH), dtype)
    return Work("stream", lambda: _read(kernel, x), None)


def _streamed_bytes() -> int:
    return _STREAM_BYTES * (1 if platforms.current() == platforms.CPU else _STREAM_READS)


@decode_jit()
def _read(kernel, x):
    if platforms.current() == platforms.CPU:
        return few_tokens.product(kernel, x)
    return _repeated_reads(kernel)


def _repeated_reads(kernel):
    def again(_, mean):  # Not linear in ``mean``: no compiler takes the sum out of the loop.
        return jnp.mean(jnp.abs(kernel - mean.astype(kernel.dtype)), dtype=jnp.float32)

    return jax.lax.fori_loop(0, _STREAM_READS, again, jnp.float32(0))
