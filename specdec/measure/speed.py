"""How fast speculative decoding is, measured beside its own autoregressive reference."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specdec.api import VERIFIER, Method, Pair
from specdec.core import theory
from specdec.core.randomness import row_keys
from specdec.core.stats import RunStats
from specdec.decoding.batches import Batch, bucket
from specdec.drafters.base import Drafter
from specdec.measure import costs
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier

_LOOPS = 4  # How often a loop of steps is run in each repetition.


@dataclasses.dataclass(frozen=True)
class Timings:
    """Raw measurements.

    Attributes:
      seconds: for each repetition, by name: "autoregressive" and "speculative" are whole decodes
        of all batches, "target_encode" and "draft_encode" what both do first with the same inputs;
        "target_step", "verify_step" and "draft_step" are of one step, the draft's measured
        between target calls.
      num_batches: how many were timed.
      num_tokens: emitted in one repetition, by method.
    """

    seconds: list[dict[str, float]]
    num_batches: int
    num_tokens: dict[Method, int]


@dataclasses.dataclass(frozen=True)
class Speed:
    """What the timings say; the speculative part is None for a plain decoding run.

    Attributes:
      repetitions: how often everything was measured.
      ms_per_token: whole decode, encoders included, by method.
      encode_ms: of a batch, "target" and "draft".
      decoder_ms: of a batch, plain decoding without its encoder.
      measured_speedup: ratio of the two ms_per_token, repetition by repetition.
      measured_speedup_decoder: the same without the encoders' time.
      cost_ratio: c, draft step over target step.
      verify_ratio: v, target call on gamma + 1 tokens over that on one.
    """

    repetitions: int
    ms_per_token: dict[Method, Spread]
    encode_ms: dict[str, Spread]
    decoder_ms: Spread
    measured_speedup: Spread | None = None
    measured_speedup_decoder: Spread | None = None
    cost_ratio: Spread | None = None
    verify_ratio: Spread | None = None


def measure(
    pair: Pair,
    batches: Sequence[Batch],
    *,
    method: Method,
    gamma: int,
    sampling: SamplingConfig,
    max_decode_len: int,
    seed: int,
    repetitions: int,
    stop_below: float = 0.0,
    draft_sampling: SamplingConfig | None = None,
    verifier: Verifier = VERIFIER,
) -> Timings:
    """Times the decodes of ``batches`` and their parts, all interleaved, after warm-up.

    Plain decoding is always timed; speculative decoding and its parts if it is the method.

    Raises:
      ValueError: there is no batch, or no repetition.
    """
    if not batches or repetitions < 1:
        raise ValueError("Measuring speed needs at least one batch and one repetition.")
    methods: tuple[Method, ...] = ("autoregressive",)
    if method == "speculative":
        methods = ("autoregressive", "speculative")
    num_tokens: dict[Method, int] = dict.fromkeys(methods, 0)
    works = []
    # Each method goes through all batches, as it does for its users: what a program finds in the
    # processor's caches is what its own last run left there.
    for each in methods:
        for batch in batches:

            def decode(each: Method = each, batch: Batch = batch):
                # The result comes to the host, as it does for every user.
                return pair.decode(
                    batch, method=each, gamma=gamma, sampling=sampling,
                    max_decode_len=max_decode_len, seed=seed, stop_below=stop_below,
                    draft_sampling=draft_sampling, verifier=verifier,
                )  # fmt: skip

            num_tokens[each] += int(np.sum(decode().num_tokens))
            works.append(Work(each, decode, batch.inputs.shape))
    works += [target_encoding(pair, batch) for batch in batches]
    if method == "speculative":
        drafter = pair.drafter(gamma, draft_sampling or sampling)
        room = bucket(max_decode_len)
        works += [draft_encoding(pair, drafter, batch, room) for batch in batches]
        works += _steps(pair, drafter, typical(batches), sampling, room, verifier)
    seconds = time_interleaved(works, repetitions)
    if method == "speculative":
        seconds = [_one_step(repetition, gamma) for repetition in seconds]
    return Timings(seconds, len(batches), num_tokens)


def _one_step(seconds: dict[str, float], gamma: int) -> dict[str, float]:
    """From whole loops to one step; drafting costs what a loop with drafts takes more."""
    target, verify, drafted = (
        seconds.pop(name) / (costs.STEPS * _LOOPS) for name in ("target", "verify", "drafted")
    )
    return {
        **seconds,
        "target_step": target,
        "verify_step": verify,
        "draft_step": (drafted - verify) / gamma,
    }


def target_encoding(pair: Pair, batch: Batch) -> Work:
    """What the target does before the first block."""

    def run():
        return costs.encode(pair.target.model, pair.target.params, jnp.asarray(batch.inputs))

    return Work("target_encode", run, batch.inputs.shape)


def draft_encoding(pair: Pair, drafter: Drafter, batch: Batch, output_bucket: int) -> Work:
    """What a drafter does before the first block: a draft model's encoder, mostly."""
    target = pair.target
    encoded = costs.encode(target.model, target.params, jnp.asarray(batch.inputs))

    def run():
        return costs.init_drafter(
            drafter, pair.draft.params, jnp.asarray(batch.inputs), output_bucket, encoded
        )

    return Work("draft_encode", run, batch.inputs.shape)


def typical(batches: Sequence[Batch]) -> Batch:
    """A batch of the commonest shape."""
    shape, _ = Counter(batch.inputs.shape for batch in batches).most_common(1)[0]
    return next(batch for batch in batches if batch.inputs.shape == shape)


def _steps(
    pair: Pair,
    drafter: Drafter,
    batch: Batch,
    sampling: SamplingConfig,
    output_bucket: int,
    verifier: Verifier,
) -> list[Work]:
    model, params, gamma = pair.target.model, pair.target.params, drafter.gamma
    inputs = jnp.asarray(batch.inputs)
    keys = row_keys(0, jnp.asarray(batch.row_ids))
    encoded = costs.encode(model, params, inputs)
    state = costs.init_drafter(drafter, pair.draft.params, inputs, output_bucket, encoded)

    def target(width_less_one):
        return lambda: costs.target_calls(
            model, params, encoded, keys, gamma=width_less_one, sampling=sampling,
            output_bucket=output_bucket, verifier=verifier,
        )  # fmt: skip

    def drafted():
        return costs.drafted_calls(
            model, drafter, params, pair.draft.params, encoded, state, keys,
            sampling=sampling, output_bucket=output_bucket, verifier=verifier,
        )  # fmt: skip

    jax.block_until_ready((encoded, state))
    loops = [
        Work("target", target(0), None),
        Work("verify", target(gamma), None),
        Work("drafted", drafted, None),
    ]
    return loops * _LOOPS


def summarize(timings: Timings) -> Speed:
    """Medians and ranges; each ratio is taken within a repetition."""
    seconds, batches = timings.seconds, timings.num_batches

    def spread(value):
        return Spread.of(value(repetition) for repetition in seconds)

    def per_token(method):
        return spread(lambda s: 1e3 * s[method] / timings.num_tokens[method])

    def plain_decoder(s):
        return s["autoregressive"] - s["target_encode"]

    speculative = "speculative" in timings.num_tokens
    speed = Speed(
        repetitions=len(seconds),
        ms_per_token={method: per_token(method) for method in timings.num_tokens},
        encode_ms={
            name: spread(lambda s, key=f"{name}_encode": 1e3 * s[key] / batches)
            for name in (("target", "draft") if speculative else ("target",))
        },
        decoder_ms=spread(lambda s: 1e3 * plain_decoder(s) / batches),
    )
    if not speculative:
        return speed
    # Methods that sample emit different texts: compare time a token.
    tokens_ratio = timings.num_tokens["speculative"] / timings.num_tokens["autoregressive"]

    def decoder(s):
        return s["speculative"] - s["target_encode"] - s["draft_encode"]

    return dataclasses.replace(
        speed,
        measured_speedup=spread(lambda s: s["autoregressive"] / s["speculative"] * tokens_ratio),
        measured_speedup_decoder=spread(lambda s: plain_decoder(s) / decoder(s) * tokens_ratio),
        cost_ratio=spread(lambda s: s["draft_step"] / s["target_step"]),
        verify_ratio=spread(lambda s: s["verify_step"] / s["target_step"]),
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What theory makes of a measured alpha, c and v.

    Attributes:
      decoder: expected_tokens / (gamma c + v), encoders left out.
      theorem_3_8: the same with v = 1.
      whole: ``decoder`` with the measured time of both encoders put back.
      counted: tokens a block / (guesses a block * c + v) as they were counted. Unlike the others it
        knows of blocks that a row's end cuts short, of acceptances that are not independent, and
        of a draft that stops.
    """

    decoder: float
    theorem_3_8: float
    whole: float
    counted: float


def predict(stats: RunStats, speed: Speed) -> Prediction:
    """The speedup that acceptance and costs lead one to expect.

    A draft whose steps were measured to take less than no time (c is a difference of times) takes
    none.

    Raises:
      ValueError: they are of a plain decoding run.
    """
    alpha, gamma = stats.alpha, stats.gamma
    if alpha is None or speed.cost_ratio is None or speed.verify_ratio is None:
        raise ValueError("A plain decoding run has no speedup to predict.")
    c, v = max(0.0, speed.cost_ratio.median), speed.verify_ratio.median
    decoder = theory.speedup(alpha, gamma, c, v)
    target, draft = speed.encode_ms["target"].median, speed.encode_ms["draft"].median
    plain = speed.decoder_ms.median
    return Prediction(
        decoder=decoder,
        theorem_3_8=theory.speedup(alpha, gamma, c),
        whole=(target + plain) / (target + draft + plain / decoder),
        counted=theory.block_speedup(
            stats.emitted / stats.target_calls, stats.proposed / stats.target_calls, c, v
        ),
    )
