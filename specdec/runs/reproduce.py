"""The paper's tables and figures with the models at hand.

A reproduction is a list of pieces, each in a directory of its own: a decode with its timing, or a
measurement of alpha. What is on disk is not done again, so a run that was killed goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import numpy as np

from specdec.api import VERIFIER
from specdec.core import files
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import make_batches
from specdec.drafters.base import DraftSpec
from specdec.measure import expected_accepted, results, timeline
from specdec.measure.progress import Progress, say
from specdec.reproduction import decode_figures, paper_tables, theory_figures
from specdec.runs import dry_run
from specdec.runs.alpha_run import AlphaRun, slug
from specdec.runs.decode import PreparedRun
from specdec.runs.decode_run import DecodeRun
from specdec.runs.verifier_comparison import block_difference, expect_rows
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier

SUMMARY, TABLES, FIGURES, EXPECTED = "summary.json", "tables.md", "figures", "expected.jsonl"
FIGURE_5_GAMMAS = (7, 3, 0)
LENIENCES = (0.5, 0.3, 0.1)
_BATCH = 16  # Rows a batch where nothing is timed.
_LENIENT_GAMMA, _LENIENT_TEMPERATURE = 3, 1.0  # The temperature is Table 5's.
_FIGURE_1_TOKENS = 38
_QUICK = 5.0  # Seconds; what takes less was on disk already.

DraftName = str | DraftSpec


@dataclasses.dataclass(frozen=True)
class Study:
    """A task, a target, and what it is drafted with.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references; called once, when the study begins.
      rows: Table 2's: (draft, temperature, gamma).
      alpha_drafts: drafts whose alpha is measured beside those of ``rows``.
      lenient_drafts: those of Table 5, decoded with less and less lenience.
      target, dtype, max_input_len, max_decode_len, seed: see
        :class:`specdec.runs.decode_run.DecodeRun`.
      decode_examples, timing_examples, timing_repetitions: rows decoded and timed for Table 2.
      alpha_examples: rows for alpha; the paper has 10,000 tokens.
      block_examples: rows decoded with token and with block verification.
      lenient_examples: rows decoded with lenience.
    """

    name: str
    task: Callable[[], Task]
    target: str
    rows: Sequence[tuple[DraftName, float, int]]
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
        drafts = [row[0] for row in self.rows if row[1] == temperature]
        drafts += [draft for draft in self.alpha_drafts if draft not in drafts]
        return AlphaRun(
            task=self.opened,
            target=self.target,
            drafts=tuple(dict.fromkeys(drafts)),
            sampling=SamplingConfig(temperature),
            num_examples=self.alpha_examples,
            max_input_len=self.max_input_len,
            max_decode_len=self.max_decode_len,
            dtype=self.dtype,
            seed=self.seed,
        )

    def decode_run(
        self,
        draft: DraftName,
        temperature: float,
        gamma: int,
        examples: int,
        *,
        verifier: Verifier = VERIFIER,
        timed: bool = False,
    ) -> DecodeRun:
        """A decode of rows spread over the task; timed ones have batch size 1, as the paper's.

        Without examples the task is not opened.
        """
        task = Task.of(self.name, ())
        if examples:
            chosen = evenly(self.opened.examples, examples)
            task = Task.of(self.opened.name, chosen, self.opened.metrics)
        return DecodeRun(
            task=task,
            target=self.target,
            draft=draft,
            dtype=self.dtype,
            method="speculative",
            gamma=gamma,
            sampling=SamplingConfig(temperature),
            seed=self.seed,
            batch_size=1 if timed else _BATCH,
            max_input_len=self.max_input_len,
            max_decode_len=self.max_decode_len,
            num_examples=None,
            timing_examples=self.timing_examples if timed else 0,
            timing_repetitions=self.timing_repetitions,
            verifier=verifier,
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a reproduction.

    Attributes:
      path: its directory, and where its result stands in the summary.
      run: does it in that directory, or reads what is there.
    """

    path: tuple[str, ...]
    run: Callable[[Path], dict[str, Any]]


def pieces(study: Study) -> list[Piece]:
    """All of a study."""
    temperatures = sorted({temperature for _, temperature, _ in study.rows})
    found = [
        Piece(
            (slug(study.name), "alpha", f"t{temperature:g}"), study.alpha_run(temperature).execute
        )
        for temperature in temperatures
    ]
    for draft, temperature, gamma in study.rows:
        run = study.decode_run(draft, temperature, gamma, study.decode_examples, timed=True)
        found.append(Piece(_path(study, "table_2", draft, temperature, gamma), _decode(run)))
    for draft, temperature, gamma in study.rows:
        if temperature:
            path = _path(study, "block", draft, temperature, gamma)
            found.append(Piece(path, _compare(study, draft, temperature, gamma)))
    for draft in study.lenient_drafts:
        for lenience in LENIENCES:
            run = study.decode_run(
                draft, _LENIENT_TEMPERATURE, _LENIENT_GAMMA, study.lenient_examples,
                verifier=LenientVerifier(lenience),
            )  # fmt: skip
            path = _path(study, "lenience", draft, _LENIENT_TEMPERATURE, _LENIENT_GAMMA)
            found.append(Piece((*path, f"l{lenience:g}"), _decode(run)))
    return found


def _path(study: Study, part: str, draft: DraftName, temperature: float, gamma: int):
    return slug(study.name), part, slug(f"{draft}"), f"t{temperature:g}", f"gamma{gamma}"


def _decode(run: DecodeRun) -> Callable[[Path], dict[str, Any]]:
    return lambda directory: _done(run, directory)[0]


def _done(run: DecodeRun, directory: Path) -> tuple[dict[str, Any], PreparedRun]:
    prepared = _prepared(run, directory)
    return prepared.finished() or prepared.execute(""), prepared


def _prepared(run: DecodeRun, directory: Path) -> PreparedRun:
    fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name != "task"}
    settings = {name: str(value) for name, value in fields.items()}
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    return PreparedRun(run, f"task = {run.task.name}\n{text}", directory)


def _compare(
    study: Study, draft: DraftName, temperature: float, gamma: int
) -> Callable[[Path], dict[str, Any]]:
    """Token and block verification on the same rows: expected on the same blocks, and counted."""

    def run(directory: Path) -> dict[str, Any]:
        found = {}
        for name, verifier in (("token", VERIFIER), ("block", BlockVerifier())):
            decode = study.decode_run(
                draft, temperature, gamma, study.block_examples, verifier=verifier
            )
            _, done = _done(decode, directory / name)
            rows = list(done.rows())  # In the same order both times: it depends on the task alone.
            found[name] = [np.array([getattr(r, key) for r in rows], float)
                           for key in ("num_tokens", "target_calls")]  # fmt: skip
        decode = study.decode_run(draft, temperature, gamma, study.block_examples)
        expected = expected_accepted.summary(expect_rows(decode, directory / EXPECTED))
        return {"expected": expected, "counted": block_difference(found["token"], found["block"])}

    return run


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Studies to be made one after the other.

    Raises:
      ValueError: there is none.
    """

    studies: Sequence[Study]

    def __post_init__(self):
        if not self.studies:
            raise ValueError("There is nothing to reproduce: studies is empty.")

    def plan(self, root: Path) -> str:
        """What each row of Table 2 takes: its decode's ``--dry_run``, with nothing opened.

        Args:
          root: where ``configs/`` is.

        Raises:
          ValueError: as :func:`specdec.runs.dry_run.report`.
        """
        return "\n\n".join(
            f"{study.name}: {dry_run.report(study.decode_run(*row, 0, timed=True), root)}".rstrip()
            for study in self.studies
            for row in study.rows
        )

    def run(self, directory: Path, command: str) -> dict[str, Any]:
        """Does every piece and writes ``summary.json``, tables and figures.

        Args:
          directory: where; a directory of the same reproduction is continued.
          command: how to do this again.

        Raises:
          OSError, ValueError: as :class:`specdec.runs.decode.PreparedRun` and
            :meth:`specdec.runs.alpha_run.AlphaRun.execute`; pieces that were done are kept.
        """
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError(
                'The figures need matplotlib: pip install -c constraints.txt ".[notebooks]".'
            )
        files.check_writable(directory)
        everything = [piece for study in self.studies for piece in pieces(study)]
        paths = [piece.path for piece in everything]
        if len(set(paths)) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise ValueError(
                f"{'/'.join(twice)} is there twice: give studies and rows that differ."
            )
        found: dict[str, Any] = {}
        with Progress(len(everything), "pieces") as progress:
            for piece in everything:
                began = time.monotonic()
                progress.begin("/".join(piece.path))
                place = found
                for name in piece.path[:-1]:
                    place = place.setdefault(name, {})
                place[piece.path[-1]] = piece.run(directory.joinpath(*piece.path))
                # A process may map only so many pieces of memory: hundreds of programs are too
                # many.
                jax.clear_caches()
                gc.collect()
                quick = time.monotonic() - began < _QUICK
                progress.skip(1) if quick else progress.add()
        content = {
            "studies": {slug(study.name): {"name": study.name, **found[slug(study.name)]}
                        for study in self.studies},
            **results.provenance(), "command": command, "gin": gin.operative_config_str(),
        }  # fmt: skip
        files.write_json(directory / SUMMARY, content)
        files.write_text(directory / TABLES, paper_tables.page(content))
        say("Drawing the figures")
        theory_figures.write_figures(directory / FIGURES)
        _draw_decodes(self.studies[0], directory)
        return content


def _draw_decodes(study: Study, directory: Path) -> None:
    """Figures 1 and 5, of the first study's first row."""
    draft, temperature, gamma = study.rows[0]
    run = study.decode_run(draft, temperature, gamma, study.decode_examples, timed=True)
    place = directory.joinpath(*_path(study, "table_2", draft, temperature, gamma))
    _, prepared = _done(run, place)
    pair = prepared.pair
    # As long as the paper's example, which has 38 tokens.
    row = min(prepared.rows(), key=lambda row: abs(row.num_tokens - _FIGURE_1_TOKENS))
    decode_figures.figure_1([row], pair.vocabulary, directory / FIGURES)
    given = model_inputs([run.task.examples[row.id]], pair.vocabulary)
    (ids,) = pair.token_ids(given, max_input_len=study.max_input_len)
    (batch,) = make_batches([ids], 1, pair.target.model)
    timelines = [
        timeline.record(
            pair.decoder(
                method="speculative" if each else "autoregressive", gamma=each,
                sampling=SamplingConfig(temperature), max_decode_len=study.max_decode_len,
                seed=study.seed,
            ),
            batch,
        )
        for each in FIGURE_5_GAMMAS
        if each < study.max_decode_len
    ]  # fmt: skip
    decode_figures.figure_5(timelines, directory / FIGURES)
