"""One accelerator in a few minutes: decodes of T5's sizes, timed with and without what is for it.

Weights are random and acceptance is forced, so nothing is loaded and a decode takes the time that
it would take with a draft of that alpha. One row; times are of whole decodes, encoders included.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.api import Pair
from specdec.checkpoints.architectures import Config
from specdec.core import platforms
from specdec.core.compilation import OPTIONS
from specdec.core.progress import say
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.loop import decode
from specdec.decoding.options import Decoding
from specdec.drafters.model import model_draft
from specdec.drafters.shape import Chain, Tree
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.studies.benchmarks.systems.specdec_loop import random_pair
from specdec.studies.measure.forced import ForcedAcceptance
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept_of
from specdec.types import SamplingConfig

RESULT = "device.json"
# How a decode is compiled: as for users, without the platform's options (on a GPU its graphs), and
# without its own kernels.
AS_IT_IS, NO_OPTIONS, NO_KERNELS = "as it is", "without graphs", "without own kernels"
Way = tuple[str, float, str]  # Method or shape, temperature, and how it is compiled.


@dataclasses.dataclass(frozen=True)
class DeviceRuns:
    """Targets of several sizes with one draft, each a piece.

    Attributes:
      name: short, for tables and directories.
      targets: shapes by name.
      draft: the draft's shape.
      full: of the targets, those that are also sampled from and compiled otherwise.
      gamma, branching: of chains and of trees; a plan without trees has none.
      forced_alpha: with which each guess is accepted.
      output_len: tokens that a row emits.
    """

    name: str
    targets: Mapping[str, Config]
    draft: Config
    full: Sequence[str]
    gamma: int
    branching: Sequence[int]
    forced_alpha: float
    input_len: int = 64
    output_len: int = 128
    dtype: str = "bfloat16"
    repetitions: int = 5
    seed: int = 0

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for size in self.targets:
            index = (slug(self.name), "device", slug(size))
            yield index, lambda directory, size=size: self._piece(directory, size)

    def _piece(self, directory: Path, size: str) -> dict[str, Any]:
        left_out = ("name", "targets", "full")
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in left_out
        }
        settings |= {
            "draft": dataclasses.asdict(self.draft), "branching": list(self.branching),
            "target": dataclasses.asdict(self.targets[size]), "full": size in self.full,
        }  # fmt: skip
        settings["target"]["more_eos_ids"] = settings["draft"]["more_eos_ids"] = []
        return kept_of(directory / RESULT, settings, lambda: self._measured(size))

    def _measured(self, size: str) -> dict[str, Any]:
        pair = random_pair(self.targets[size], self.draft, self.dtype, self.seed)
        tokens = np.random.default_rng(self.seed).integers(2, 1000, self.input_len)
        (batch,) = make_batches([tokens.astype(np.int32)], 1, pair.target.model)
        ways: list[Way] = [(shape, 0.0, AS_IT_IS) for shape in ("plain", "chain", "tree")]
        if size in self.full:
            ways += [(shape, 1.0, AS_IT_IS) for shape in ("plain", "chain")]
            others = (NO_OPTIONS, NO_KERNELS)
            ways += [(shape, 0.0, other) for other in others for shape in ("plain", "chain")]
        programs = {}
        for way in ways:
            programs[way] = _Compiled(self._decoder(pair, *way[:2]), batch, way[2])
            say(f"{size}: {way} compiled in {programs[way].seconds:.1f} s")
        works = [
            Work(f"{way} {limit}", lambda each=each, limit=limit: each(limit), None)
            for way, each in programs.items()
            for limit in (1, self.output_len)
        ]
        times = time_interleaved(works, self.repetitions)

        def of(way: Way) -> dict[str, Any]:
            each, result = programs[way], programs[way](self.output_len)
            return {
                "method": way[0], "temperature": way[1], "compiled": way[2],
                "compile_seconds": each.seconds, "temporary_bytes": each.temporary_bytes,
                "tokens": int(result.num_tokens[0]), "blocks": int(result.stats.target_calls[0]),
                "ms": _spread(1e3 * t[f"{way} {self.output_len}"] for t in times),
                "first_token_ms": _spread(1e3 * t[f"{way} 1"] for t in times),
                "speedup": _spread(
                    t[f"{('plain', *way[1:])} {self.output_len}"] / t[f"{way} {self.output_len}"]
                    for t in times
                ),
            }  # fmt: skip

        return {
            "decodes": [of(way) for way in ways],
            "step_bytes": pair.target.step_bytes,
            "same_arithmetic": self._compare_arithmetic(pair, batch),
            "device": jax.devices()[0].device_kind,
        }  # fmt: skip

    def _decoder(self, pair: Pair, shape: str, temperature: float) -> BatchDecoder:
        shapes = {"plain": None, "chain": Chain(self.gamma)}
        given = shapes[shape] if shape in shapes else Tree(tuple(self.branching))
        decoding = Decoding(
            sampling=SamplingConfig(temperature), max_decode_len=self.output_len, seed=self.seed,
            verifier=ForcedAcceptance(self.forced_alpha),
        )  # fmt: skip
        return pair.decoder(decoding.with_shape(given))

    def _compare_arithmetic(self, pair: Pair, batch: Batch) -> dict[str, Any]:
        """The target drafts for itself, greedily: what it rejects was computed otherwise."""
        own = Pair(pair.target, model_draft(pair.target), None)
        drafted = own.decoder(gamma=self.gamma, max_decode_len=self.output_len, seed=self.seed)
        result, plain = drafted.decode(batch), self._decoder(own, "plain", 0.0).decode(batch)
        examined, accepted = int(result.stats.examined[0]), int(result.stats.accepted[0])
        return {
            "guesses": examined, "rejected": examined - accepted,
            "same_tokens_as_plain": bool(np.array_equal(result.tokens, plain.tokens)),
        }  # fmt: skip


class _Compiled:
    """A decoder's program for a batch, compiled in one of the ways above."""

    def __init__(self, decoder: BatchDecoder, batch: Batch, how: str):
        (params, prompt, row_ids, _, seed), bucket = decoder.arguments(batch), decoder.output_bucket
        platform, options = platforms.current(), OPTIONS[platforms.current().name]
        if how == NO_OPTIONS:
            options = None
        if how == NO_KERNELS:
            platform = platform.without_kernels

        def whole(params, prompt, row_ids, limit, seed):
            given = (params, prompt, row_ids, limit, seed)
            return decode.function(decoder.engine, *given, output_bucket=bucket)

        self._arguments = lambda limit: (params, prompt, row_ids, np.int32(limit), seed)
        began = time.perf_counter()
        with platforms.compiling_for(platform):
            lowered = jax.jit(whole).lower(*self._arguments(1))
        self._program = lowered.compile(compiler_options=options)
        self.seconds = time.perf_counter() - began
        sizes = self._program.memory_analysis()
        self.temporary_bytes = int(sizes.temp_size_in_bytes) if sizes else 0

    def __call__(self, limit: int) -> Any:
        return self._program(*self._arguments(limit))


def _spread(values: Iterator[float]) -> dict[str, float]:
    return dataclasses.asdict(Spread.of(values))
