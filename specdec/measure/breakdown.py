"""Where the time of a speculative decode goes, part by part, and whether the parts add up."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specdec.api import Method, Pair
from specdec.core import theory
from specdec.core.compilation import decode_jit
from specdec.core.randomness import row_keys
from specdec.core.stats import RunStats
from specdec.decoding.batches import Batch, bucket
from specdec.decoding.speculative import speculative_decode
from specdec.drafters.base import Drafter
from specdec.measure import costs
from specdec.measure.speed import draft_encoding, target_encoding, typical
from specdec.measure.timing import Work, time_interleaved
from specdec.models.t5 import few_tokens
from specdec.models.t5.packing import PackedT5
from specdec.types import DecodeResult, SamplingConfig
from specdec.verifiers.base import Verifier

_STREAM_BYTES = 512 * 2**20  # Larger than any cache.
_STREAM_WIDTH = 512
_LOOPS = 4  # How often a loop of steps is run in each repetition.


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Milliseconds, medians over the repetitions; those of a part are for one occurrence.

    Attributes:
      target_encode, draft_encode: of all batches together.
      drafts: gamma guesses, measured between target calls.
      scoring: a target call on gamma + 1 tokens, up to the logits.
      verification: standardizing, accepting, drawing.
      bookkeeping: all else in a block: cutting at the end, rolling back, counting, writing.
      plain_step: a whole step of plain decoding.
      speculative, autoregressive: whole decodes of all batches.
      target_calls: blocks run, over all batches; a batch's slowest row counts.
      tokens: emitted by speculative decoding; plain_tokens: by plain decoding.
      alpha: mean of sum min(p, q), or the forced one.
      block_efficiency: tokens a row emitted per target call of its own.
      guesses: a row's per target call; fewer than gamma where the draft stopped.
      decoder_bytes: what a plain step must read of the weights.
      bandwidth: bytes a second, read by one large product of a token in the same run.
      program_bytes: what the compiled speculative decode needs: its arguments and all it allocates.
      needed_bytes: of both models' weights, encodings and caches, and a block's logits.
    """

    gamma: int
    target_encode: float
    draft_encode: float
    drafts: float
    scoring: float
    verification: float
    bookkeeping: float
    plain_step: float
    speculative: float
    autoregressive: float
    target_calls: int
    tokens: int
    plain_tokens: int
    alpha: float
    block_efficiency: float
    guesses: float
    decoder_bytes: int
    bandwidth: float
    program_bytes: int
    needed_bytes: int

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
        """v: a target call on gamma + 1 tokens with verification over a plain step."""
        return (self.scoring + self.verification) / self.plain_step

    @property
    def predicted_speedup(self) -> float:
        """Of the decoder, from alpha, c and v."""
        return theory.speedup(self.alpha, self.gamma, self.cost_ratio, self.verify_ratio)

    @property
    def counted_speedup(self) -> float:
        """Of the decoder, from the blocks as they were counted, c and v."""
        return theory.block_speedup(
            self.block_efficiency, self.guesses, self.cost_ratio, self.verify_ratio
        )

    @property
    def measured_speedup(self) -> float:
        """Of the decoder: whole decodes less their encoders, a token."""
        plain = (self.autoregressive - self.target_encode) / self.plain_tokens
        speculative = self.speculative - self.target_encode - self.draft_encode
        return plain / (speculative / self.tokens)


def decoder_bytes(params: PackedT5) -> int:
    """Bytes of the weights that each decode step reads."""
    read = (params.layers, params.final_norm, params.relpos)
    logits = params.embedding if params.logits is None else params.logits
    return sum(leaf.nbytes for leaf in jax.tree.leaves((read, logits)))


def measure(
    pair: Pair,
    batches: Sequence[Batch],
    *,
    gamma: int,
    sampling: SamplingConfig,
    max_decode_len: int,
    seed: int,
    repetitions: int,
    verifier: Verifier,
    forced_alpha: float | None,
    stop_below: float = 0.0,
) -> Breakdown:
    """Measures every part, interleaved with whole decodes.

    Args:
      stop_below: the draft's in whole decodes; the parts are of blocks with gamma guesses.
      verifier, forced_alpha: what whole decodes verify with, and its alpha where that is forced.
    """
    results: dict[Method, list[DecodeResult]] = {"autoregressive": [], "speculative": []}
    room = bucket(max_decode_len)
    drafter = pair.drafter(gamma, sampling)
    program_bytes, needed_bytes = memory(
        pair, typical(batches), gamma, sampling, room, verifier, stop_below
    )
    works = []
    for batch in batches:
        for method, found in results.items():

            def decode(method: Method = method, batch: Batch = batch):
                return pair.decode(
                    batch, method=method, gamma=gamma, sampling=sampling, verifier=verifier,
                    max_decode_len=max_decode_len, seed=seed, stop_below=stop_below,
                )  # fmt: skip

            found.append(decode())
            works.append(Work(method, decode, batch.inputs.shape))
        works += [target_encoding(pair, batch), draft_encoding(pair, drafter, batch, room)]
    loops = _loops(pair, drafter, typical(batches), sampling, room)
    works += [Work(name, run, None) for name, run in loops.items()] * _LOOPS
    works.append(_stream(pair.target.params))

    times = time_interleaved(works, repetitions)
    ms = {name: 1e3 * statistics.median(t[name] for t in times) for name in times[0]}
    step = {name: ms[name] / (costs.STEPS * _LOOPS) for name in loops}
    stats = RunStats.total([r.stats for r in results["speculative"]], len(batches), gamma)
    alpha = stats.alpha if forced_alpha is None else forced_alpha
    assert alpha is not None
    assert stats.block_efficiency is not None

    return Breakdown(
        gamma=gamma,
        target_encode=ms["target_encode"],
        draft_encode=ms["draft_encode"],
        drafts=step["drafted"] - step["verified"],
        scoring=step["scored"],
        verification=step["verified"] - step["scored"],
        bookkeeping=step["block"] - step["drafted"],
        plain_step=step["plain"],
        speculative=ms["speculative"],
        autoregressive=ms["autoregressive"],
        target_calls=sum(int(np.max(r.stats.target_calls)) for r in results["speculative"]),
        tokens=stats.emitted,
        plain_tokens=sum(int(np.sum(r.num_tokens)) for r in results["autoregressive"]),
        alpha=alpha,
        block_efficiency=stats.block_efficiency,
        guesses=stats.proposed / stats.target_calls,
        decoder_bytes=decoder_bytes(pair.target.params),
        bandwidth=_STREAM_BYTES / (1e-3 * ms["stream"]),
        program_bytes=program_bytes,
        needed_bytes=needed_bytes,
    )


def memory(
    pair: Pair,
    batch: Batch,
    gamma: int,
    sampling: SamplingConfig,
    output_bucket: int,
    verifier: Verifier,
    stop_below: float,
) -> tuple[int, int]:
    """``program_bytes`` and ``needed_bytes`` of a decode; compiles it."""
    target, draft, drafter = pair.target, pair.draft, pair.drafter(gamma, sampling, stop_below)
    inputs = jnp.asarray(batch.inputs)
    program = speculative_decode.jitted.lower(
        target.model, drafter, verifier, target.params, draft.params, inputs,
        jnp.asarray(batch.row_ids), output_bucket, 0,
        sampling=sampling, output_bucket=output_bucket,
    ).compile().memory_analysis()  # fmt: skip

    def allocated():
        encoded = target.model.encode(target.params, inputs)
        return (
            target.model.init_cache(len(inputs), output_bucket + gamma + 1),
            encoded,
            drafter.init(draft.params, inputs, output_bucket, encoded),
            jnp.zeros((len(inputs), gamma + 1, target.model.vocab_size)),
        )

    needed = jax.tree.leaves((target.params, draft.params, jax.eval_shape(allocated)))
    return (
        program.argument_size_in_bytes + program.temp_size_in_bytes + program.output_size_in_bytes,
        sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in needed),
    )


def _loops(
    pair: Pair, drafter: Drafter, batch: Batch, sampling: SamplingConfig, output_bucket: int
) -> dict[str, Callable[[], object]]:
    """Loops of STEPS, each with one part more than the one before it."""
    model, params, draft_params = pair.target.model, pair.target.params, pair.draft.params
    inputs = jnp.asarray(batch.inputs)
    keys = row_keys(0, jnp.asarray(batch.row_ids))
    start = jnp.full((len(inputs),), model.decoder_start_id, jnp.int32)
    encoded = costs.encode(model, params, inputs)
    gamma = drafter.gamma
    state = costs.init_drafter(drafter, draft_params, inputs, output_bucket, encoded)

    def verified(gamma):
        return costs.target_calls(
            model, params, encoded, keys,
            gamma=gamma, sampling=sampling, output_bucket=output_bucket,
        )  # fmt: skip

    def with_drafts(loop):
        return loop(
            model, drafter, params, draft_params, encoded, state, keys,
            sampling=sampling, output_bucket=output_bucket,
        )  # fmt: skip

    return {
        "plain": lambda: verified(0),
        "scored": lambda: costs.scoring_calls(
            model, params, encoded, start, width=gamma + 1, output_bucket=output_bucket
        ),
        "verified": lambda: verified(gamma),
        "drafted": lambda: with_drafts(costs.drafted_calls),
        "block": lambda: with_drafts(costs.blocks),
    }


def _stream(params: PackedT5) -> Work:
    """Reads an array that fits no cache once, as fast as a decode step could."""
    dtype = params.embedding.dtype
    kernel = jnp.ones((1, _STREAM_BYTES // (_STREAM_WIDTH * dtype.itemsize), _STREAM_WIDTH), dtype)
    x = jnp.ones((1, 1, _STREAM_WIDTH), dtype)
    return Work("stream", lambda: _read(kernel, x), None)


@decode_jit(static_argnames=())
def _read(kernel, x):
    if jax.default_backend() == "cpu":
        return few_tokens.product(kernel, x)
    return jnp.sum(kernel, dtype=jnp.float32)
