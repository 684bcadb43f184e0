"""A decoding run: decode a task, compare with plain decoding, measure, write it all down."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from specdec.api import VERIFIER, Method, check_arguments, load_pair
from specdec.core.machine import fingerprint
from specdec.data.tasks import Example, Task, evenly, model_inputs
from specdec.decoding.autoregressive import autoregressive_decode
from specdec.decoding.batches import Batch, bucket, make_batches
from specdec.decoding.speculative import speculative_decode
from specdec.drafts import DraftSpec
from specdec.evaluation import lossless, results, speed, traces
from specdec.evaluation.decodes import Row, read_rows
from specdec.evaluation.lines import LineWriter
from specdec.models.partitioning import DeviceMesh
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier

CONFIG, DECODES, RESULTS, TRACE = (
    "operative_config.gin", "decodes.jsonl", "results.json", "trace.html",
)  # fmt: skip
ROWS_IN_PAGE = 24
_PROVENANCE_END = "# ---\n"
_PROGRESS_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class DecodeRun:
    """What to decode and how; gin's macros in ``configs/runs/decode.gin`` bind it.

    Attributes:
      task: the examples.
      target, draft, dtype, mesh: see :func:`specdec.load_pair`; a draft may be a spec.
      method, gamma, sampling, max_input_len, max_decode_len, batch_size, seed: see
        :meth:`specdec.Pair.generate`.
      num_examples: the first so many of the task; None for all.
      timing_examples: how many of those, evenly spread, are timed; 0 measures no speed.
      timing_repetitions: how often.
      stop_below, draft_sampling, verifier: see :meth:`specdec.Pair.generate`.

    Raises:
      ValueError: a value out of its range.
    """

    task: Task
    target: str
    draft: str | DraftSpec
    dtype: str
    method: Method
    gamma: int | Literal["auto"]
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
    verifier: Verifier = VERIFIER
    mesh: DeviceMesh | None = None

    def __post_init__(self):
        whole = ("seed", "batch_size", "max_input_len", "max_decode_len",
                 "timing_examples", "timing_repetitions")  # fmt: skip
        for name in whole:
            if not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}.")
        check_arguments(
            self.method, self.gamma, self.max_decode_len, self.batch_size, self.stop_below
        )
        at_least = {"max_input_len": 1, "timing_examples": 0, "timing_repetitions": 1}
        if self.num_examples is not None:
            at_least["num_examples"] = 1
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    @property
    def examples(self) -> tuple[Example, ...]:
        """Those that are decoded."""
        return self.task.examples[: self.num_examples]

    @property
    def guesses(self) -> int:
        """gamma, or 0 for plain decoding; not known while it is "auto"."""
        if self.method == "autoregressive":
            return 0
        assert self.gamma != "auto"
        return self.gamma


class PreparedRun:
    """A run whose inputs, models and output directory were found to be good.

    Nothing was written yet. Make one and call :meth:`execute`.

    Args:
      run: what to do.
      config: the operative gin configuration.
      directory: where to write; a directory that holds decodes of the same run is continued.

    Raises:
      OSError: the directory cannot be written to.
      ValueError: a text is too long, a checkpoint cannot be read (CheckpointError), target and
        draft do not share a vocabulary, the mesh does not fit the devices, the models or the
        batch, or the directory holds the decodes of another run.
    """

    def __init__(self, run: DecodeRun, config: str, directory: Path):
        check_writable(directory)
        self.run, self._directory = run, directory
        self.pair = load_pair(target=run.target, draft=run.draft, dtype=run.dtype, mesh=run.mesh)
        self.pair.target.check_batch_size(run.batch_size)
        self._ids = self.pair.token_ids(
            model_inputs(run.examples, self.pair.vocabulary),
            max_input_len=run.max_input_len,
            names=[example.origin for example in run.examples],
        )
        self._choice = None
        if run.gamma == "auto":
            self._choose_gamma()
        weights = [fingerprint(m.params) for m in (self.pair.target, self.pair.draft)]
        # With the weights: a draft trained anew under the same name is another run.
        self._identity = f"# Weights: target {weights[0]}, draft {weights[1]}\n{config}"
        if self._choice:
            self._identity = f"# Chosen gamma: {self._choice.gamma}\n{self._identity}"
        self._rows = {row.id: row for row in self._previous_rows()}

    def _choose_gamma(self) -> None:
        """Puts a number in the place of "auto"."""
        run = self.run
        if run.method == "autoregressive":
            self.run = dataclasses.replace(run, gamma=0)
            return
        say("Choosing gamma by measurement (kept for the next time)")
        choice = self.pair.choose_gamma(
            self._ids, sampling=run.sampling, max_decode_len=run.max_decode_len, seed=run.seed,
            batch_size=run.batch_size, draft_sampling=run.draft_sampling,
        )  # fmt: skip
        say(str(choice))
        method = "speculative" if choice.gamma else "autoregressive"
        self.run = dataclasses.replace(run, gamma=choice.gamma, method=method)
        self._choice = choice

    def _previous_rows(self) -> list[Row]:
        rows = read_rows(self._directory / DECODES)
        if not rows:
            return []
        saved = self._directory / CONFIG
        known = saved.is_file() and saved.read_text(encoding="utf-8").endswith(
            _PROVENANCE_END + self._identity
        )
        inputs = dict(enumerate(example.input for example in self.run.examples))
        if not known or any(inputs.get(row.id) != row.input for row in rows):
            raise ValueError(
                f"{self._directory} holds the decodes of another configuration, weights or texts "
                f"(compare its {CONFIG}); choose another --output_dir or remove {DECODES} there."
            )
        return rows

    def finished(self) -> tuple[dict[str, Any], list[Row]] | None:
        """What :meth:`execute` returned when this run was finished before, if it was."""
        try:
            content = json.loads((self._directory / RESULTS).read_text(encoding="utf-8"))
        except OSError:
            return None
        if content["gin"] != self._identity or len(self._rows) < len(self._ids):
            return None
        return content, [self._rows[i] for i in range(len(self._ids))]

    def execute(self, command: str) -> tuple[dict[str, Any], list[Row]]:
        """Decodes what is not decoded yet, measures, and writes every file.

        Returns:
          the content of ``results.json``, and all rows by id.
        """
        directory, source = self._directory, results.provenance()
        directory.mkdir(parents=True, exist_ok=True)
        header = "".join(f"# {name}: {value}\n" for name, value in source.items())
        results.write_text(directory / CONFIG, header + _PROVENANCE_END + self._identity)
        before = _num_programs()
        self._decode_rows()
        programs = _num_programs() - before
        say(f"{programs} programs compiled, for {self._num_shapes()} sizes of inputs")
        rows = [self._rows[i] for i in range(len(self._ids))]
        measured = self._measure()
        run = self.run
        names = (
            "target", "method", "gamma", "stop_below", "dtype", "batch_size", "max_input_len",
            "max_decode_len", "seed",
        )  # fmt: skip
        content = {
            "task": run.task.name,
            "drafter": str(run.draft) if run.guesses else None,
            "draft_temperature": (run.draft_sampling or run.sampling).temperature,
            "verifier": verifier_name(run.verifier),
            "lossless": run.verifier.lossless,
            "gamma_choice": self._choice and dataclasses.asdict(self._choice),
            "mesh": run.mesh and {"data": run.mesh.data, "model": run.mesh.model},
            **{name: getattr(run, name) for name in names},
            **dataclasses.asdict(run.sampling),
            **results.numbers(
                rows, run.guesses, measured, greedy=run.sampling.greedy, metrics=run.task.metrics
            ),
            "programs": programs,
            **source,
            "gin": self._identity,
            "command": command,
        }
        title = f"{run.task.name}: {run.method}, gamma {run.gamma}"
        page = traces.page(rows[:ROWS_IN_PAGE], self.pair.vocabulary, title)
        results.write_text(directory / TRACE, page)
        results.write_results(directory / RESULTS, content)
        return content, rows

    def _num_shapes(self) -> int:
        return len({bucket(len(row)) for row in self._ids})

    def _decode_rows(self) -> None:
        run = self.run
        progress = Progress(len(self._ids), done=len(self._rows))
        with LineWriter(self._directory / DECODES) as writer:
            for batch in make_batches(self._ids, run.batch_size, self.pair.target.model.pad_id):
                wanted = [int(row) for row in batch.row_ids if row >= 0 and row not in self._rows]
                if not wanted:
                    continue
                # The whole batch again even if a part is done: the same shapes and companions.
                for row in self._decode_batch(batch, wanted):
                    self._rows[row.id] = row
                    writer.append(row.to_json())
                progress.show(len(self._rows))

    def _decode_batch(self, batch: Batch, wanted: Sequence[int]) -> list[Row]:
        run = self.run

        def decode(method: Method, width: int = 1, trace: bool = False):
            return self.pair.decode(
                batch, method=method, gamma=run.guesses, sampling=run.sampling,
                max_decode_len=run.max_decode_len, seed=run.seed, trace=trace, width=width,
                stop_below=run.stop_below, draft_sampling=run.draft_sampling,
                verifier=run.verifier,
            )  # fmt: skip

        result = decode(run.method, trace=True)
        references = {}
        if run.guesses and run.sampling.greedy:
            references = {
                "mismatch": decode("autoregressive"),
                "width_matched_mismatch": decode("autoregressive", width=run.guesses + 1),
            }
        rows = []
        for place, number in enumerate(batch.row_ids):
            if number not in wanted:
                continue
            example = run.examples[number]
            row = Row.of(
                result, place, id=int(number), input=example.input, reference=example.reference
            )
            texts = self.pair.text([np.asarray(row.tokens)])
            found = {
                name: lossless.compare(
                    self.pair.target, batch.inputs[place], row.tokens,
                    reference.tokens[place, : reference.num_tokens[place]].tolist(),
                )
                for name, reference in references.items()
            }  # fmt: skip
            rows.append(dataclasses.replace(row, output=texts and texts[0], **found))
        return rows

    def _measure(self) -> speed.Speed | None:
        run = self.run
        if not run.timing_examples:
            return None
        ids = evenly(self._ids, run.timing_examples)
        say(f"Timing {len(ids)} rows, {run.timing_repetitions} repetitions")
        timings = speed.measure(
            self.pair, list(make_batches(ids, run.batch_size, self.pair.target.model.pad_id)),
            method=run.method, gamma=run.guesses, sampling=run.sampling,
            max_decode_len=run.max_decode_len, seed=run.seed, repetitions=run.timing_repetitions,
            stop_below=run.stop_below, draft_sampling=run.draft_sampling, verifier=run.verifier,
        )  # fmt: skip
        return speed.summarize(timings)


def verifier_name(verifier: Verifier) -> str:
    """Its class and settings, such as "BlockVerifier" or "LenientVerifier(lenience=0.5)"."""
    fields = [f for f in dataclasses.fields(verifier) if f.init]  # pyright: ignore[reportArgumentType]
    settings = ", ".join(f"{f.name}={getattr(verifier, f.name)!r}" for f in fields)
    return type(verifier).__name__ + (f"({settings})" if settings else "")


def _num_programs() -> int:
    return autoregressive_decode.programs + speculative_decode.programs


def say(message: str) -> None:
    """Tells the person who waits, on stderr: stdout is for results."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """Says now and then how many rows are done and how long the others will take."""

    def __init__(self, total: int, done: int):
        self._total, self._start = total, done
        self._began = self._said = time.monotonic()
        before = f", {done} of them before" if done else ""
        say(f"Decoding {total} rows{before}")

    def show(self, done: int) -> None:
        """Says something unless it did so a moment ago."""
        now = time.monotonic()
        if now - self._said < _PROGRESS_SECONDS:
            return
        self._said = now
        left = (now - self._began) / (done - self._start) * (self._total - done)
        say(f"  {done} of {self._total}, about {left:.0f} s left")


def check_writable(directory: Path) -> None:
    """Raises OSError unless files can be made in a directory, or it can be made itself.

    Leaves nothing behind.
    """
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise NotADirectoryError(f"Cannot write to {directory}: {existing} is not a directory.")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(f"Cannot write to {directory}: {existing}: {reason}.") from None
