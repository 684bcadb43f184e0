"""The description of a decoding run."""

from __future__ import annotations

from typing import Annotated, Literal

from specdec.api import Pair
from specdec.checkpoints.loading import GenerationConfig, check_generation_config
from specdec.core.arguments import path_name
from specdec.core.fields import Count, Natural, OneOf, checked
from specdec.data.inputs import Text
from specdec.data.tasks import Task
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import draft_spec
from specdec.drafters.shape import Chain
from specdec.models.partitioning import DeviceMesh, check_mesh
from specdec.runs.inputs import BadRows


@checked()
class DecodeRun:
    """A decoding run: its rows, and how. ``configs/runs/decode.gin`` binds its fields.

    Attributes:
      target, draft, dtype, weights, mesh, generation_config, source_language, target_language: see
        :func:`specdec.load_pair`; a draft may be a spec.
      decoding: see :class:`specdec.Decoding`.
      num_examples: how many rows of the task, from its beginning; None for all.
      timing_examples, timing_repetitions: how many of these rows, evenly spread, are timed, and
        how often. With 0 rows no speed is measured.
      check: whether greedy rows are compared with plain decoding. This decodes each batch two
        more times, with calls of 1 and of gamma + 1 tokens.
      bad_rows: for a row that is blank, not UTF-8, not a pair in a file of pairs, or longer than
        max_input_len: "fail" ends the run before anything is decoded, "skip" writes the row to
        ``skipped.jsonl``.
      prefix: forced beginning of every output. It is not written, counted or compared with
        references.

    Raises:
      ValueError: a value out of its range.
    """

    task: Task
    target: Annotated[str, path_name]
    draft: str | DraftSpec
    decoding: Decoding
    dtype: Annotated[str, OneOf("float32", "bfloat16", "float16")]
    num_examples: Count | None
    timing_examples: Natural
    timing_repetitions: Count
    bad_rows: BadRows = "fail"
    weights: Literal["int8"] | None = None
    mesh: DeviceMesh | None = None
    generation_config: GenerationConfig = "follow"
    source_language: str | None = None
    target_language: str | None = None
    check: bool = True
    prefix: Text = ""

    def __post_init__(self):
        if not isinstance(self.decoding, Decoding):
            raise ValueError(f"decoding must be a specdec.Decoding, got {self.decoding!r}.")
        if self.decoding.num_samples > 1 or self.decoding.time_limit is not None:
            raise ValueError(
                "A run decodes each row once and to its end: leave num_samples and time_limit out, "
                "which are for generate."
            )
        if self.decoding.audit and not self.checked:
            raise ValueError(
                "An audit measures rounding in the comparison with plain decoding: set CHECK = "
                "True and a method with guesses, or AUDIT = False."
            )
        draft_spec("draft", self.draft)
        check_generation_config(self.generation_config)
        check_mesh(self.mesh)

    @property
    def checked(self) -> bool:
        """Whether rows are compared with plain decoding, or with plain beams."""
        return self.check and self.decoding.sampling.greedy and self.decoding.guesses

    def searcher(self, pair: Pair, *, plain: bool = False) -> BeamDecoder:
        """The run's beam search; with guesses of one level while gamma is "auto".

        Args:
          plain: without guesses, whatever the run's method.

        Raises:
          ValueError: see :meth:`Pair.searcher`.
        """
        how = self.decoding
        if plain or how.to_choose:
            how = how.with_shape(None if plain else Chain(1))
        return pair.searcher(how)

    def decoder(self, pair: Pair, *, plain: bool = False, width: int = 1) -> BatchDecoder:
        """The run's decoder; ``plain``: without guesses. See :meth:`Pair.decoder`."""
        how = self.decoding.with_shape(None) if plain else self.decoding
        return pair.decoder(how, width=width)
