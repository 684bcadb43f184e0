"""Speed of speculative decoding, compared with plain decoding in the same run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec.core import theory
from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamDecoder
from specdec.measure.timing import Spread, Timed, time_in_turns, without_draft

# Names of the methods without guesses and with them.
CHAINS, BEAMS = ("autoregressive", "speculative"), ("beam", "speculative_beam")


@dataclasses.dataclass(frozen=True)
class Speed:
    """Measured times; the speculative part is None for a plain decoding run."""

    repetitions: int  # How often everything was measured.
    ms_per_token: dict[str, Spread]  # Whole decode, encoders included, by method.
    # Of a batch, what a decode does besides its blocks: "target" plain decoding, "draft" what a
    # drafter adds to it.
    encode_ms: dict[str, Spread]
    decoder_ms: Spread  # Of a batch, the steps of plain decoding.
    # Ratio of the two ms_per_token, repetition by repetition.
    measured_speedup: Spread | None = None
    measured_speedup_decoder: Spread | None = None  # The same without the encoders' time.
    cost_ratio: Spread | None = None  # c, draft step over target step.
    # v, a block without its draft over a step of plain decoding.
    verify_ratio: Spread | None = None
    blocks: RunStats | None = None  # Of the texts that were timed.


def measure(
    plain: BatchDecoder | BeamDecoder, fast: BatchDecoder | BeamDecoder | None,
    batches: Sequence[Batch], repetitions: int,
) -> Speed:  # fmt: skip
    """Times the decodes of ``batches`` and their parts, all in turns, after warm-up.

    Args:
      plain: plain decoding or plain beams, which are always timed.
      fast: speculative ones, timed with their parts; None for a run without guesses.

    Raises:
      ValueError: there is no batch, or no repetition.
    """
    if not batches or repetitions < 1:
        raise ValueError("Measuring speed needs at least one batch and one repetition.")
    names = BEAMS if isinstance(plain, BeamDecoder) else CHAINS
    decoders: dict[str, Any] = {names[0]: plain}
    depth = 0
    if fast is not None:
        decoders |= {names[1]: fast, "without a draft": without_draft(fast)}
        depth = fast.engine.depth if isinstance(fast, BatchDecoder) else fast.gamma
    return summarize(time_in_turns(decoders, batches, repetitions, starts=True), depth)


def summarize(repetitions: Sequence[Mapping[str, Timed]], depth: int = 0) -> Speed:
    """Medians and ranges; each ratio is taken within a repetition.

    Args:
      repetitions: times of plain decoding and, unless it was timed alone, of speculative decoding
        and of blocks without a draft, by name in this order.
      depth: guesses in a row of a block.
    """
    plain, *others = repetitions[0]
    num_batches = len(repetitions[0][plain].results)

    def spread(value: Callable[..., float]) -> Spread:
        return Spread.of(value(*times.values()) for times in repetitions)

    def per_token(name: str) -> Spread:
        return Spread.of(1e3 * each[name].seconds / each[name].tokens for each in repetitions)

    speed = Speed(
        repetitions=len(repetitions),
        ms_per_token={plain: per_token(plain)},
        encode_ms={"target": spread(lambda plain, *_: 1e3 * plain.start)},
        decoder_ms=spread(lambda plain, *_: 1e3 * plain.blocks / num_batches),
    )
    if not others:
        return speed
    # Methods that sample emit different texts: compare time a token.
    ratio = repetitions[0][others[0]].tokens / repetitions[0][plain].tokens
    added = spread(lambda plain, fast, _: 1e3 * (fast.start - plain.start))
    return dataclasses.replace(
        speed,
        ms_per_token=speed.ms_per_token | {others[0]: per_token(others[0])},
        encode_ms=speed.encode_ms | {"draft": added},
        measured_speedup=spread(lambda plain, fast, _: plain.seconds / fast.seconds * ratio),
        measured_speedup_decoder=spread(lambda plain, fast, _: plain.blocks / fast.blocks * ratio),
        cost_ratio=spread(
            lambda plain, fast, free: (fast.block - free.block) / depth / plain.block
        ),
        verify_ratio=spread(lambda plain, _, free: free.block / plain.block),
        blocks=repetitions[0][others[0]].stats(depth),
    )


def predict(stats: RunStats, speed: Speed) -> dict[str, float]:
    """The speedups that acceptance and costs predict.

    A draft whose steps or whose encoder were measured to take less than no time (both are
    differences of times) takes none.

    Returns:
      ``predicted_speedup``, expected_tokens / (gamma c + v), encoders left out;
      ``predicted_speedup_thm38``, the same with v = 1; ``predicted_speedup_whole``, with the
      measured time of both encoders put back; ``predicted_speedup_counted``, tokens a block /
      (guesses a block * c + v) as they were counted in the texts that were timed. Unlike the others
      the last includes blocks that a row's end cuts short, of acceptances that are not independent,
      and of a draft that stops. It leaves out that a batch waits for its slowest row.

    Raises:
      ValueError: they are of a plain decoding run.
    """
    alpha, gamma, timed = stats.alpha, stats.gamma, speed.blocks
    if alpha is None or speed.cost_ratio is None or speed.verify_ratio is None or timed is None:
        raise ValueError("A plain decoding run has no speedup to predict.")
    c, v = max(0.0, speed.cost_ratio.median), speed.verify_ratio.median
    decoder = theory.speedup(alpha, gamma, c, v)
    target, draft = speed.encode_ms["target"].median, max(0.0, speed.encode_ms["draft"].median)
    plain = speed.decoder_ms.median
    tokens = timed.emitted / timed.target_calls
    guesses = min(timed.proposed / timed.target_calls, gamma)  # Of a tree, a step is a level.
    return {
        "predicted_speedup": decoder,
        "predicted_speedup_thm38": theory.speedup(alpha, gamma, c),
        "predicted_speedup_whole": (target + plain) / (target + draft + plain / decoder),
        "predicted_speedup_counted": theory.block_speedup(tokens, guesses, c, v),
    }
