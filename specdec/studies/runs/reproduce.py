"""The paper's tables and figures with the models of a configuration.

A reproduction is a list of pieces, each in a directory of its own: a decode with its timing, or a
measurement of alpha. What is on disk is not done again, so a run that was killed goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gin
import jax
import numpy as np

from specdec.core import files
from specdec.core.progress import Progress, say
from specdec.core.theory_measured import cluster_interval
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.shape import Chain
from specdec.load import load_pair
from specdec.measure import results
from specdec.measure.rows import measure_rows
from specdec.runs import dry_run
from specdec.runs.decode_run import DecodeRun
from specdec.runs.prepared_run import PreparedRun
from specdec.studies import paper_figures, paper_tables
from specdec.studies.measure import expected_accepted, timeline
from specdec.studies.measure.expected_accepted import RowExpectation
from specdec.studies.runs.alpha_run import AlphaRun, slug
from specdec.studies.runs.beam_runs import BeamRuns
from specdec.studies.runs.control_runs import ControlRuns
from specdec.studies.runs.draft_runs import DraftRuns, Shape, named, settings_of
from specdec.studies.runs.loop_runs import LoopRuns
from specdec.studies.runs.rule_runs import FollowedRules, RuleCosts, SampledRules
from specdec.studies.runs.siblings import Siblings
from specdec.studies.runs.tree_runs import TreeRuns
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier

SUMMARY, TABLES, FIGURES, EXPECTED = "summary.json", "tables.md", "figures", "expected.jsonl"
FIGURE_5_GAMMAS = (7, 3, 0)
LENIENCES = (0.5, 0.3, 0.1)
_BATCH = 16  # Rows a batch where nothing is timed.
_LENIENT_GAMMA, _LENIENT_TEMPERATURE = 3, 1.0  # The temperature is Table 5's.
_FIGURE_1_TOKENS = 38
_QUICK = 5.0  # Seconds; what takes less was on disk already.

DraftName = str | DraftSpec
StudyRow = tuple[DraftName, float, Shape]
# Where a result stands in the summary and in the directory, and what makes it or reads it there.
Piece = tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Study:
    """A task, a target, and what it is drafted with.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references, once.
      rows: Table 2's: (draft, temperature, gamma or a tree's branching).
      alpha_drafts, alpha_examples: drafts whose alpha is measured beside those of ``rows``, and
        rows for it; the paper has 10,000 tokens.
      lenient_drafts, lenient_examples: those of Table 5, decoded with less and less lenience.
      decode_examples, timing_examples, timing_repetitions: rows decoded and timed for Table 2.
      block_examples: rows decoded with token and with block verification, for chains at other
        temperatures than 0; 0 for neither.
      All else: see :class:`specdec.runs.decode_run.DecodeRun`.
    """

    name: str
    task: Callable[[], Task]
    target: str
    rows: Sequence[StudyRow]
    max_input_len: int
    max_decode_len: int
    alpha_examples: int
    decode_examples: int
    block_examples: int
    lenient_examples: int
    timing_examples: int
    timing_repetitions: int
    alpha_drafts: Sequence[DraftName] = ()
    lenient_drafts: Sequence[DraftName] = ()
    dtype: str = "float32"
    seed: int = 0

    @functools.cached_property
    def opened(self) -> Task:
        """The task's examples."""
        return self.task()

    def alpha_run(self, temperature: float) -> AlphaRun:
        """Alpha of every draft at a temperature."""
        drafts = [*(row[0] for row in self.rows if row[1] == temperature), *self.alpha_drafts]
        return AlphaRun(
            task=self.opened, target=self.target, drafts=tuple(dict.fromkeys(drafts)),
            sampling=SamplingConfig(temperature), num_examples=self.alpha_examples,
            max_input_len=self.max_input_len, max_decode_len=self.max_decode_len,
            dtype=self.dtype, seed=self.seed,
        )  # fmt: skip

    def decode_run(
        self, draft: DraftName, temperature: float, shape: Shape, examples: int, *,
        verifier: Verifier | None = None, timed: bool = False,
    ) -> DecodeRun:  # fmt: skip
        """A decode of rows spread over the task (not opened for none); timed ones one at a time."""
        task = Task.of(self.name, ())
        if examples:
            chosen = evenly(self.opened.examples, examples)
            task = Task.of(self.opened.name, chosen, self.opened.metrics)
        return DecodeRun(
            task=task, target=self.target, draft=draft, dtype=self.dtype,
            decoding=Decoding(
                **settings_of(shape), verifier=verifier, sampling=SamplingConfig(temperature),
                max_input_len=self.max_input_len, max_decode_len=self.max_decode_len,
                seed=self.seed, batch_size=1 if timed else _BATCH,
            ),
            num_examples=None, timing_examples=self.timing_examples if timed else 0,
            timing_repetitions=self.timing_repetitions,
        )  # fmt: skip

    def path(
        self, part: str, draft: DraftName, temperature: float, shape: Shape
    ) -> tuple[str, ...]:
        """Where the result of a row of a part stands."""
        last = f"gamma{shape}" if isinstance(shape, int) else named(shape)
        return slug(self.name), part, slug(str(draft)), f"t{temperature:g}", last

    def pieces(self) -> Iterator[Piece]:
        """All of the study."""
        for temperature in sorted({temperature for _, temperature, _ in self.rows}):
            where = slug(self.name), "alpha", f"t{temperature:g}"
            yield where, self.alpha_run(temperature).execute
        for row in self.rows:
            run = self.decode_run(*row, self.decode_examples, timed=True)
            yield self.path("table_2", *row), functools.partial(_results, run)
        for row in self.rows:
            if row[1] and isinstance(row[2], int) and self.block_examples:
                yield self.path("block", *row), functools.partial(_compare, self, row)
        for draft in self.lenient_drafts:
            row = draft, _LENIENT_TEMPERATURE, _LENIENT_GAMMA
            for lenience in LENIENCES:
                lenient = LenientVerifier(lenience)
                run = self.decode_run(*row, self.lenient_examples, verifier=lenient)
                where = *self.path("lenience", *row), f"l{lenience:g}"
                yield where, functools.partial(_results, run)


def _done(run: DecodeRun, directory: Path) -> tuple[dict[str, Any], PreparedRun]:
    prepared = PreparedRun.without_gin(run, directory)
    return prepared.finished() or prepared.execute(""), prepared


def _results(run: DecodeRun, directory: Path) -> dict[str, Any]:
    return _done(run, directory)[0]


def _compare(study: Study, row: StudyRow, directory: Path) -> dict[str, Any]:
    """Token and block verification on the same rows: expected on the same blocks, and counted."""
    counted = []
    for name, verifier in (("token", TokenVerifier()), ("block", BlockVerifier())):
        decode = study.decode_run(*row, study.block_examples, verifier=verifier)
        _, done = _done(decode, directory / name)
        rows = list(done.rows())  # In the same order both times: it depends on the task alone.
        counted.append([np.array([getattr(r, key) for r in rows], float)
                        for key in ("num_tokens", "target_calls")])  # fmt: skip
    decode = study.decode_run(*row, study.block_examples)
    expected = expected_accepted.summary(expect_rows(decode, directory / EXPECTED))
    return {"expected": expected, "counted": block_difference(*counted)}


def expect_rows(run: DecodeRun, path: Path) -> list[RowExpectation]:
    """What either verification is expected to keep of each row's blocks; continues a file."""
    pair = load_pair(target=run.target, draft=run.draft, dtype=run.dtype)
    given = model_inputs(run.task.examples, pair.vocabulary)
    ids, decoder = (
        pair.token_ids(given, max_input_len=run.decoding.max_input_len),
        run.decoder(pair),
    )

    def expect(batch: Batch, wanted: Mapping[int, int]) -> Iterator[RowExpectation]:
        given, width = decoder.arguments(batch), decoder.output_bucket
        sums = expected_accepted.decode_and_expect(decoder.engine, *given, output_bucket=width)
        sums = jax.tree.map(np.asarray, sums)
        for row, index in wanted.items():
            kept = float(sums.token[index]), float(sums.block[index])
            yield RowExpectation(row, int(sums.blocks[index]), *kept)

    batches = list(make_batches(ids, run.decoding.batch_size, pair.target.model))
    return measure_rows(path, batches, RowExpectation, expect)


def block_difference(token: Sequence[np.ndarray], block: Sequence[np.ndarray]) -> dict[str, Any]:
    """Block efficiencies and their difference, with a 95 % interval by rows.

    Each argument is the tokens and the target calls of each row, in the same order of rows.
    """
    efficiency = [float(tokens.sum() / calls.sum()) for tokens, calls in (token, block)]
    # Each ratio linearised, row by row: what is common to a row cancels in the difference.
    parts = [
        (tokens - mean * calls) / calls.mean()
        for mean, (tokens, calls) in zip(efficiency, (token, block), strict=True)
    ]
    gain = efficiency[1] - efficiency[0]
    low, high = cluster_interval(parts[1] - parts[0], np.ones(len(parts[0])))
    return {
        "token": efficiency[0], "block": efficiency[1], "difference": gain,
        "interval": (gain + low, gain + high), "num_rows": len(parts[0]),
    }  # fmt: skip


class Part(Protocol):
    """A study of its own kind."""

    @property
    def name(self) -> str:
        """Short, for tables and directories."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Where each result stands, and what makes it or reads it there."""
        ...


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What to make: the paper's tables, and studies of siblings, trees, beams and so on."""

    studies: Sequence[Study] = ()
    siblings: Sequence[Siblings] = ()
    trees: Sequence[TreeRuns] = ()
    beams: Sequence[BeamRuns] = ()
    control: Sequence[ControlRuns] = ()
    loops: Sequence[LoopRuns] = ()
    rules: Sequence[RuleCosts | FollowedRules | SampledRules] = ()
    drafts: Sequence[DraftRuns] = ()
    distillation: Sequence[Part] = ()  # Trained: decoding need not load what that takes.
    compiled: Sequence[Part] = ()  # For chips that need not be there.
    device: Sequence[Part] = ()  # On the accelerator that is.

    def __post_init__(self):
        if not self._parts:
            raise ValueError("There is nothing to reproduce: studies is empty.")

    @property
    def _parts(self) -> Sequence[Part]:
        return (
            *self.studies, *self.siblings, *self.trees, *self.beams, *self.control,
            *self.loops, *self.rules, *self.drafts, *self.distillation, *self.compiled,
            *self.device,
        )  # fmt: skip

    def plan(self, root: Path) -> str:
        """What each row of Table 2 takes: its decode's ``--dry_run``, with nothing opened.

        ``root`` is where ``configs/`` is; raises what :func:`specdec.runs.dry_run.report` does.
        """
        return "\n\n".join(
            f"{study.name}: {dry_run.report(study.decode_run(*row, 0, timed=True), root)}".rstrip()
            for study in self.studies
            for row in study.rows
        )

    def run(self, directory: Path, command: str) -> dict[str, Any]:
        """Does every piece and writes ``summary.json``; continues a stopped run.

        Of studies it also writes the paper's tables and figures.

        Raises:
          OSError, ValueError: as :class:`specdec.runs.prepared_run.PreparedRun` and
            :meth:`specdec.studies.runs.alpha_run.AlphaRun.execute`; pieces that were done are kept.
        """
        if self.studies and importlib.util.find_spec("matplotlib") is None:
            raise ValueError(
                'The figures need matplotlib: pip install -c constraints.txt ".[notebooks]".'
            )
        files.check_writable(directory)
        everything = [piece for part in self._parts for piece in part.pieces()]
        if twice := [path for path, n in Counter(path for path, _ in everything).items() if n > 1]:
            where = "/".join(twice[0])
            raise ValueError(f"{where} is there twice: give studies and rows that differ.")
        found: dict[str, Any] = {}
        with Progress(len(everything), "pieces") as progress:
            for path, result in everything:
                began = time.monotonic()
                progress.begin("/".join(path))
                index = found
                for name in path[:-1]:
                    index = index.setdefault(name, {})
                index[path[-1]] = result(directory.joinpath(*path))
                # A process may map only so much memory: hundreds of programs are too many.
                jax.clear_caches()
                gc.collect()
                quick = time.monotonic() - began < _QUICK
                progress.skip(1) if quick else progress.add()
        content = {
            "studies": {slug(study.name): {"name": study.name, **found[slug(study.name)]}
                        for study in self.studies},
            "siblings": {part.name: found[slug(part.name)]["siblings"] for part in self.siblings},
            "trees": {part.name: found[slug(part.name)]["trees"] for part in self.trees},
            "beams": {part.name: found[slug(part.name)]["beams"] for part in self.beams},
            "control": {part.name: found[slug(part.name)]["execution"] for part in self.control},
            "loops": {part.name: found[slug(part.name)]["loops"] for part in self.loops},
            "rules": {part.name: found[slug(part.name)]["rules"] for part in self.rules},
            "drafts": {part.name: found[slug(part.name)]["drafts"] for part in self.drafts},
            "distillation": {part.name: found[slug(part.name)]["distillation"]
                             for part in self.distillation},
            "compiled": {part.name: found.get(slug(part.name), {}) for part in self.compiled},
            "device_runs": {part.name: found[slug(part.name)] for part in self.device},
            **results.provenance(), "command": command, "gin": gin.operative_config_str(),
        }  # fmt: skip
        files.write_json(directory / SUMMARY, content)
        if self.studies:
            files.write_text(directory / TABLES, paper_tables.page(content))
            say("Drawing the figures")
            paper_figures.write_theory(directory / FIGURES)
            _draw_decodes(self.studies[0], directory)
        return content


def _draw_decodes(study: Study, directory: Path) -> None:
    """Figures 1 and 5, of the first study's first row."""
    row = study.rows[0]
    run = study.decode_run(*row, study.decode_examples, timed=True)
    _, prepared = _done(run, directory.joinpath(*study.path("table_2", *row)))
    pair = prepared.pair
    # As long as the paper's example, which has 38 tokens.
    shown = min(prepared.rows(), key=lambda each: abs(each.num_tokens - _FIGURE_1_TOKENS))
    paper_figures.figure_1([shown], pair.vocabulary, directory / FIGURES)
    given = model_inputs([run.task.examples[shown.id]], pair.vocabulary)
    ids = pair.token_ids(given, max_input_len=study.max_input_len)
    (batch,) = make_batches(ids, 1, pair.target.model)
    shapes = [Chain(n) if n else None for n in FIGURE_5_GAMMAS if n < study.max_decode_len]
    decoders = [pair.decoder(run.decoding.with_shape(shape)) for shape in shapes]
    timelines = [timeline.record(decoder, batch) for decoder in decoders]
    paper_figures.figure_5(timelines, directory / FIGURES)
