"""What a decoding run is to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from specdec.api import Pair
from specdec.arguments import choice, path_name, truth, whole
from specdec.data.inputs import Text
from specdec.data.tasks import Task
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import draft_spec
from specdec.drafters.tree import Tree
from specdec.engines import TREE_VERIFIER, VERIFIER
from specdec.generate_arguments import Method, check_arguments
from specdec.models.partitioning import DeviceMesh, check_mesh
from specdec.runs.inputs import BadRows
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier

_GENERATE = (
    "method", "gamma", "tree", "sampling", "max_decode_len", "seed", "batch_size", "max_input_len",
    "stop_below", "draft_sampling", "verifier", "beam", "num_return", "draft_beams",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DecodeRun:
    """What to decode and how; gin's macros in ``configs/runs/decode.gin`` bind it.

    Attributes:
      target, draft, dtype, weights, mesh: see :func:`specdec.load_pair`; a draft may be a spec.
      num_examples: the first so many of the task; None for all.
      timing_examples, timing_repetitions: how many of those, evenly spread, are timed, and how
        often; 0 examples measure no speed.
      check: whether greedy rows are compared with plain decoding, which decodes each batch with
        width 1 and gamma + 1.
      bad_rows: what becomes of a row that is blank, not UTF-8, not a pair in a file of pairs, or
        longer than max_input_len: "fail" ends the run before anything is decoded, "skip" writes it
        to ``skipped.jsonl``.
      prefix: what every output is made to begin with. What is written, counted and compared with
        references is without it.
      All else: see :meth:`specdec.Pair.generate`.

    Raises:
      ValueError: a value out of its range.
    """

    task: Task
    target: str
    draft: str | DraftSpec
    dtype: str
    method: Method
    gamma: int | Literal["auto"] | None
    sampling: SamplingConfig
    seed: int
    batch_size: int
    max_input_len: int
    max_decode_len: int
    num_examples: int | None
    timing_examples: int
    timing_repetitions: int
    stop_below: float = 0.0
    draft_sampling: SamplingConfig | None = None
    tree: Tree | Sequence[int] | Literal["auto"] | None = None
    verifier: Verifier | None = None
    bad_rows: BadRows = "fail"
    weights: Literal["int8"] | None = None
    mesh: DeviceMesh | None = None
    check: bool = True
    beam: BeamConfig | None = None
    num_return: int | None = None
    draft_beams: int | None = None
    prefix: Text = ""

    def __post_init__(self):
        checked = check_arguments(**{name: getattr(self, name) for name in _GENERATE})
        checked["target"] = path_name("target", self.target)
        draft_spec("draft", self.draft)
        choice("dtype", self.dtype, "float32", "bfloat16")
        choice("weights", self.weights, "int8", None)
        check_mesh(self.mesh)
        checked["check"] = truth("check", self.check)
        choice("bad_rows", self.bad_rows, *get_args(BadRows))
        at_least = {"timing_examples": 0, "timing_repetitions": 1}
        if self.num_examples is not None:
            at_least["num_examples"] = 1
        checked |= {name: whole(name, getattr(self, name), n) for name, n in at_least.items()}
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # Of Python's own types, for JSON.

    @property
    def checked(self) -> bool:
        """Whether rows are compared with plain decoding, or with plain beams."""
        return self.check and self.sampling.greedy and self.guesses > 0

    @property
    def guesses(self) -> int:
        """Guesses in a row: gamma, or a tree's levels; 0 for plain decoding and plain beams.

        Not known while they are to be chosen.
        """
        if not self.method.startswith("speculative"):
            return 0
        if self.tree is None:
            assert isinstance(self.gamma, int)
            return self.gamma
        assert isinstance(self.tree, Tree)
        return self.tree.levels

    @property
    def who_accepts(self) -> Verifier:
        """The verifier, or the default of chains or trees."""
        return self.verifier or (VERIFIER if self.tree is None else TREE_VERIFIER)

    def searcher(self, pair: Pair, *, plain: bool = False) -> BeamDecoder | SpeculativeBeamDecoder:
        """What searches the run's beams; of one level while gamma is to be chosen.

        Args:
          plain: without guesses, whatever the run's method.

        Raises:
          ValueError: more beams than there are tokens; see also :meth:`Pair.beam_decoder`.
        """
        assert self.beam is not None
        if self.method == "speculative_beam" and not plain:
            gamma = 1 if self.gamma == "auto" else self.guesses
            return pair.beam_decoder(
                self.beam, gamma=gamma, draft_beams=self.draft_beams,
                max_decode_len=self.max_decode_len,
            )  # fmt: skip
        return BeamDecoder(pair.target, self.beam, self.max_decode_len)

    def decoder(self, pair: Pair, method: Method | None = None, width: int = 1) -> BatchDecoder:
        """The run's decoder, or another method's with all else alike; see :meth:`Pair.decoder`."""
        assert not isinstance(self.tree, str | Sequence)
        return pair.decoder(
            method=method or self.method, gamma=self.guesses, tree=self.tree,
            sampling=self.sampling, width=width,
            max_decode_len=self.max_decode_len, seed=self.seed, stop_below=self.stop_below,
            draft_sampling=self.draft_sampling, verifier=self.verifier,
        )  # fmt: skip
