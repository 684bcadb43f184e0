"""The paper's tables and figures with the models of a configuration.

A reproduction is a list of pieces (:mod:`specdec.reproduce.pieces`): decodes with their timing,
measurements of alpha, decodes compiled for chips that are not there.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gin

from specdec.core import files
from specdec.core.progress import say
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.shape import Chain
from specdec.measure import results
from specdec.reproduce import paper_figures, paper_tables
from specdec.reproduce.measure import timeline
from specdec.reproduce.pieces import Done, Piece, carry_out, slug
from specdec.reproduce.runs.alpha_run import AlphaRun
from specdec.reproduce.runs.compiled_runs import CompiledDecodes
from specdec.runs import gin_files
from specdec.runs.command_line import Given, report_error
from specdec.runs.decode_run import DecodeRun
from specdec.runs.dry_run import report
from specdec.runs.gin_bindings import configured
from specdec.runs.prepared_run import PreparedRun
from specdec.types import SamplingConfig

SUMMARY, TABLES, FIGURES = "summary.json", "tables.md", "figures"
FIGURE_5_GAMMAS = (7, 3, 0)
_FIGURE_1_TOKENS = 38

DraftName = str | DraftSpec
StudyRow = tuple[DraftName, float, int]


@dataclasses.dataclass(frozen=True)
class DecodedRows:
    """A decode, timed or not, as a piece."""

    path: tuple[str, ...]
    run: DecodeRun

    def do(self, directory: Path) -> Done:
        """Decodes the rows that are missing, and times."""
        prepared = PreparedRun.without_gin(self.run, directory)
        finished = prepared.finished()
        return Done(finished or prepared.execute(""), measured=finished is None)


@dataclasses.dataclass(frozen=True)
class Study:
    """A task, a target, and its drafts.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references, once.
      rows: Table 2's: (draft, temperature, gamma).
      alpha_drafts, alpha_examples: drafts whose alpha is measured beside those of ``rows``, and
        rows for it; the paper has 10,000 tokens.
      decode_examples, timing_examples, timing_repetitions: rows decoded and timed for Table 2.
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
    timing_examples: int
    timing_repetitions: int
    alpha_drafts: Sequence[DraftName] = ()
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
            path=(slug(self.name), "alpha", f"t{temperature:g}"), task=self.opened,
            target=self.target, drafts=tuple(dict.fromkeys(drafts)),
            sampling=SamplingConfig(temperature), num_examples=self.alpha_examples,
            max_input_len=self.max_input_len, max_decode_len=self.max_decode_len,
            dtype=self.dtype, seed=self.seed,
        )  # fmt: skip

    def decode_run(self, row: StudyRow, examples: int) -> DecodeRun:
        """A decode of rows spread over the task (not opened for none), one at a time."""
        draft, temperature, gamma = row
        task = Task.of(self.name, ())
        if examples:
            chosen = evenly(self.opened.examples, examples)
            task = Task.of(self.opened.name, chosen, self.opened.metrics)
        return DecodeRun(
            task=task, target=self.target, draft=draft, dtype=self.dtype,
            decoding=Decoding(
                gamma=gamma,
                sampling=SamplingConfig(temperature), max_input_len=self.max_input_len,
                max_decode_len=self.max_decode_len, seed=self.seed, batch_size=1,
            ),
            num_examples=None, timing_examples=self.timing_examples,
            timing_repetitions=self.timing_repetitions,
        )  # fmt: skip

    def timed(self, row: StudyRow) -> DecodedRows:
        """Table 2's decode of a row."""
        draft, temperature, gamma = row
        path = slug(self.name), "table_2", slug(str(draft)), f"t{temperature:g}", f"gamma{gamma}"
        return DecodedRows(path, self.decode_run(row, self.decode_examples))

    def pieces(self) -> Iterator[Piece]:
        """All pieces of the study."""
        yield from map(self.timed, self.rows)
        for temperature in sorted({temperature for _, temperature, _ in self.rows}):
            yield self.alpha_run(temperature)


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """The paper's tables and figures to make, and decodes to compile."""

    studies: Sequence[Study] = ()
    compiled: Sequence[CompiledDecodes] = ()

    def __post_init__(self):
        if not self.studies and not self.compiled:
            raise ValueError("There is nothing to reproduce: studies is empty.")

    def plan(self, root: Path) -> str:
        """The ``--dry_run`` of each row's decode in Table 2, with nothing opened.

        ``root`` is where ``configs/`` is; raises what :func:`specdec.runs.dry_run.report` does.
        """
        return "\n\n".join(
            f"{study.name}: {report(study.decode_run(row, 0), root)}".rstrip()
            for study in self.studies
            for row in study.rows
        )

    def run(self, directory: Path, command: str) -> dict[str, Any]:
        """Does every piece and writes ``summary.json``; continues a stopped run.

        Of studies it also writes the paper's tables and figures.

        Raises:
          OSError, ValueError: as :class:`specdec.runs.prepared_run.PreparedRun` and
            :meth:`specdec.reproduce.runs.alpha_run.AlphaRun.do`; pieces that were done are kept.
        """
        if self.studies and importlib.util.find_spec("matplotlib") is None:
            raise ValueError(
                'The figures need matplotlib: pip install -c constraints.txt ".[notebooks]".'
            )
        files.check_writable(directory)
        found: dict[str, Any] = {}
        everything = [piece for part in (*self.studies, *self.compiled) for piece in part.pieces()]
        for path, result in carry_out(everything, directory):
            index = found
            for name in path[:-1]:
                index = index.setdefault(name, {})
            index[path[-1]] = result
        content = {
            "studies": {slug(study.name): {"name": study.name, **found[slug(study.name)]}
                        for study in self.studies},
            "compiled": {part.name: found[slug(part.name)] for part in self.compiled},
            **results.provenance(), "command": command, "gin": gin.operative_config_str(),
        }  # fmt: skip
        files.write_json(directory / SUMMARY, content)
        if self.studies:
            files.write_text(directory / TABLES, paper_tables.page(content))
            say("Drawing the figures")
            paper_figures.write_theory(directory / FIGURES)
            _draw_decodes(self.studies[0], directory)
        return content


# Names for gin files, beside those of specdec/runs/gin_bindings.py.
gin.external_configurable(Study, module="specdec")
gin.external_configurable(Reproduction, "reproduce", module="specdec")


def _draw_decodes(study: Study, directory: Path) -> None:
    """Figures 1 and 5, of the first study's first row."""
    piece = study.timed(study.rows[0])
    run = piece.run
    prepared = PreparedRun.without_gin(run, directory.joinpath(*piece.path))
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


def main(given: Given, root: Path, *, dry_run: bool = False) -> int:
    """Runs a configuration and prints its tables; returns the exit code.

    ``dry_run`` only prints what :meth:`Reproduction.plan` prints.
    """
    directory = given.directory("reproduce")
    try:
        gin_files.parse(given.gin_files, given.bindings, root)
        reproduction = configured(Reproduction)
        if dry_run:
            print(reproduction.plan(root))
            return 0
        content = reproduction.run(directory, given.command)
    except (ValueError, OSError) as error:
        return report_error(error)
    if reproduction.studies:
        print(paper_tables.page(content))
    tables = f", {TABLES}" if reproduction.studies else ""
    print(f"Written to {directory}: {SUMMARY}{tables}")
    return 0
