"""An engine with everything it needs to decode batches: what is timed, measured and served."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from specdec.core.randomness import seed_words
from specdec.decoding.batches import Batch, bucket, refuse_nan
from specdec.decoding.engine import Engine, EngineParams, decode
from specdec.models.base import LoadedModel
from specdec.types import AnyArray, DecodeResult, Prompt


@dataclasses.dataclass(frozen=True)
class BatchDecoder:
    """Decodes batches in one way."""

    # See `Engine`.
    engine: Engine
    params: EngineParams
    target: LoadedModel  # The engine's, as it was loaded.
    max_decode_len: int  # Tokens a row may emit, EOS included.
    seed: int  # Of the random numbers; 64 bits.

    @property
    def output_bucket(self) -> int:
        """Size of the output buffer."""
        return bucket(self.max_decode_len)

    def arguments(self, batch: Batch) -> tuple[EngineParams, Prompt, AnyArray, int, np.ndarray]:
        """What :meth:`Engine.start` takes after the engine: arrays on their devices."""
        prompt, row_ids = self.target.place_rows((batch.prompt, batch.row_ids))
        return self.params, prompt, row_ids, self.max_decode_len, seed_words(self.seed)

    def check(self, batch: Batch, *, trace: bool = False) -> None:
        """Traces the program that decodes such a batch, without compiling it.

        Raises:
          ValueError: the verifier cannot verify what the drafter makes.
        """
        arguments = (self.engine, *self.arguments(batch))
        static = {"output_bucket": self.output_bucket, "trace": trace}
        decode.jitted(*arguments, **static).eval_shape(*arguments, **static)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The program of :meth:`decode` for such a batch, to be compiled in any thread.

        Raises:
          ValueError: as :meth:`check`.
        """
        return decode.lower(
            self.engine, *self.arguments(batch), output_bucket=self.output_bucket, trace=False
        )

    def decode(
        self, batch: Batch, *, limit: int | None = None, trace: bool = False
    ) -> DecodeResult:
        """Decodes a batch and brings the result to the host as NumPy arrays.

        Args:
          limit: tokens a row of this batch may emit, at most ``max_decode_len``, the default.

        Raises:
          ValueError: the mesh cannot cut the batch into equal parts; logits are NaN (it names the
            row).
        """
        params, prompt, row_ids, most, seed = self.arguments(batch)
        result = decode(
            self.engine, params, prompt, row_ids, most if limit is None else limit, seed,
            output_bucket=self.output_bucket, trace=trace,
        )  # fmt: skip
        result = jax.tree.map(np.asarray, result)
        refuse_nan(batch, result.nan, result.num_tokens, f"{self.target.source} or of its draft")
        return result
