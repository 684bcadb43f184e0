"""A decoding run: decode, compare with plain decoding, measure, write the results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import signal
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from specdec.api import Pair
from specdec.checkpoints.loading import resolve
from specdec.core import files
from specdec.core.compilation import num_programs
from specdec.core.machine import fingerprint
from specdec.core.progress import Progress, say
from specdec.core.signals import stop_request
from specdec.decoding.batches import Batch
from specdec.decoding.build import rules_of
from specdec.drafters.base import DraftSpec
from specdec.load import load_pair
from specdec.measure import alpha, results, speed, traces
from specdec.measure.kept_rows import LineWriter, Row, append_missing, read_rows
from specdec.runs.decode_run import DecodeRun
from specdec.runs.inputs import WINDOW, Inputs, Item, read
from specdec.runs.kept_config import CONFIG, is_of, keep, other_run
from specdec.runs.processes import ALONE, DECODES, Parts, Processes
from specdec.runs.written_rows import decoded_rows
from specdec.verifiers.base import described

SKIPPED = "skipped.jsonl"
RESULTS, TRACE = "results.json", "trace.html"
ROWS_IN_PAGE = 24
SHOWN_REASONS = 10
AGREEMENT_ROWS = 256  # At most, that rounded weights are compared with full ones on.


def written_files(run: DecodeRun) -> list[str]:
    """The files that a run writes into its directory."""
    skipped = [SKIPPED] if run.bad_rows == "skip" else []
    return [CONFIG, *skipped, DECODES, RESULTS, TRACE]


class PreparedRun:
    """A run whose inputs, models and output directory were checked; nothing is written yet.

    Rows are decoded and written in an order that depends on the task and the batch size alone. So
    what a stopped run wrote is the beginning of what this one writes.

    Args:
      config: the operative gin configuration.
      directory: where to write; a directory that holds decodes of the same run is continued.
      processes: those that do this run together, each with a part of the batches.

    Raises:
      OSError: the directory cannot be written to.
      ValueError: a row is bad and the run's rule is "fail", or none is left; a checkpoint cannot be
        read (CheckpointError), target and draft do not share a vocabulary, the mesh does not fit
        the devices, the models or the batch, or the directory holds the decodes of another run;
        or several processes were to choose gamma; or the verifier cannot verify the draft.
    """

    def __init__(self, run: DecodeRun, config: str, directory: Path, processes: Processes = ALONE):
        self._directory, self._processes, self._choice = directory, processes, None
        with processes.sharing_batches.together():
            processes.sharing_target.first(lambda: files.check_writable(directory))
        with processes.together():
            self._open(run)
        if self.run.decoding.to_choose:
            self._choose()
        weights = self.pair.target.params, self.pair.draft.weights
        # Of those that share a target each holds other parts.
        target, draft = processes.sharing_target.agreed([*map(fingerprint, weights)])
        # With the weights: a draft trained again under the same name is another run.
        self._identity = f"# Weights: target {target}, draft {draft}\n{config}"
        if self.pair.follows(self.run.decoding):  # They are not in the rows on disk.
            texts = f"{self._inputs.checksum:08x}"
            self._identity = f"# Rows with their texts: {texts}\n{self._identity}"
        if self._choice:
            chosen = self.run.decoding.shape or "gamma 0"
            self._identity = f"# Chosen: {chosen}\n{self._identity}"
        with processes.sharing_batches.together():
            how = self.run.decoding
            self._parts = Parts(
                processes.sharing_batches, directory,
                lambda: (len(members) for _, members in self._inputs.batches(how.batch_size)),
            )  # fmt: skip
            if not how.searches:
                self._check_verifier()
            self._num_done = processes.sharing_target.first(self._count_previous_rows)

    def _open(self, run: DecodeRun) -> None:
        """Work of each process by itself: loads the models, checks them, reads all rows."""
        # Loading can take minutes; only lengths are checked after it.
        rows = read(run.task, run.num_examples, run.bad_rows)
        self.run = run
        self.pair = self._load(run.draft)
        how = run.decoding.fitted(self.pair.draft.most_guesses)
        self.run = run = dataclasses.replace(run, decoding=how)
        self.pair.target.check_batch_size(how.batch_size)
        # A draft or verifier that cannot do it says so.
        if how.searches:
            run.searcher(self.pair)
        elif not how.to_choose:
            run.decoder(self.pair)
        sizes = {"max_input_len": how.max_input_len, "max_decode_len": how.max_decode_len}
        (prefix,) = self.pair.prefix_ids(run.prefix, 1, **sizes)
        self._inputs = found = Inputs(
            rows, run.task.name, self.pair, bad_rows=run.bad_rows, prefix=prefix.tolist(),
            truncate=how.truncate, follows=self.pair.follows(how), **sizes,
        )  # fmt: skip
        for row in islice(found.skipped(), SHOWN_REASONS):
            say(f"Skipped: {row.reason}")
        if found.num_skipped > SHOWN_REASONS:
            say(f"  and {found.num_skipped - SHOWN_REASONS} more, in {SKIPPED}")

    @classmethod
    def without_gin(cls, run: DecodeRun, directory: Path) -> PreparedRun:
        """A prepared run whose configuration is its own fields."""
        fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name != "task"}
        settings = "".join(f"{name} = {value}\n" for name, value in fields.items())
        return cls(run, f"task = {run.task.name}\n{settings}", directory)

    @property
    def identity(self) -> str:
        """Text that is the same in all processes of one run: configuration, weights and texts."""
        rows = f"{self._inputs.num_rows} rows with the checksum {self._inputs.checksum:08x}"
        weights = self.pair.target.params, self.pair.draft.weights
        common = f"weights that every device holds: {fingerprint(weights, common=True)}"
        return f"{self._identity}\n{rows}\n{common}"

    def _check_verifier(self) -> None:
        """Refuses a draft that the verifier cannot verify."""
        batch, _ = next(iter(self._inputs.batches(self.run.decoding.batch_size)))
        self.run.decoder(self.pair).check(batch, trace=True)

    def _choose(self) -> None:
        """Replaces "auto" by a number or a tree."""
        how = self.run.decoding
        say(f"Choosing {'gamma' if how.gamma else 'tree'} by measurement (kept for the next time)")
        items = list(islice(self._inputs.items(), WINDOW * how.batch_size))
        some, given = [item.tokens for item in items], self._inputs.given(items)
        processes = self._processes.sharing_batches
        choice = None
        with processes.together():
            if not processes.index:
                prefixes = self._inputs.prefixes(len(some))
                choice = self.pair.choose(some, how, prefixes=prefixes, given=given)
        choice = processes.agreed(choice)
        assert choice is not None
        say(str(choice))
        self.run = dataclasses.replace(self.run, decoding=how.with_shape(choice.shape))
        self._choice = choice

    def _batches(self) -> Iterator[tuple[Batch, list[Item]]]:
        """Batches of this process, with their rows."""
        return self._parts.mine(self._inputs.batches(self.run.decoding.batch_size))

    def _count_previous_rows(self) -> int:
        """Rows that this process has on disk, found to be its first ones of this run."""
        path, known = self._parts.path, is_of(self._directory, self._identity)
        # Of several processes, the first would also replace what one alone has decoded there.
        for decodes in (path, self._directory / DECODES):
            if not known and next(read_rows(decodes), None):
                raise other_run(self._directory, decodes.name)
        count, task = 0, self.run.task.name
        items = (item for _, members in self._batches() for item in members)
        for count, row in enumerate(read_rows(path), start=1):
            item = next(items, None)
            expected = item and (item.id, item.example.input, item.example.reference)
            if (row.id, row.input, row.reference) != expected:
                raise ValueError(
                    f"{path}:{count} is not the row that this run has there: the rows of "
                    f"{task} or that file were changed since; choose another --output_dir or "
                    f"remove {path.name} there."
                )
        return count

    def rows(self) -> Iterator[Row]:
        """The rows on disk, in one process's order of decoding."""
        return read_rows(self._directory / DECODES)

    def first_rows(self, count: int) -> list[Row]:
        """The rows with the lowest ids, at most as many as there are in a window."""
        window = islice(self.rows(), WINDOW * self.run.decoding.batch_size)
        return heapq.nsmallest(count, window, key=lambda row: row.id)

    def finished(self) -> dict[str, Any] | None:
        """Result of :meth:`execute` when this run was finished before, if it was."""
        path = self._directory / RESULTS
        try:
            content = files.read_object(path) if path.is_file() else {}
        except ValueError:  # A damaged one is made again, of the rows.
            content = {}
        done = content.get("gin") == self._identity and self._num_done >= self._parts.num_mine
        return content if done else None

    def execute(self, command: str) -> dict[str, Any]:
        """Decodes the rows that are left, measures, and writes every file.

        Returns:
          the content of ``results.json``; nothing in other processes than 0, which measures alone.

        Raises:
          OSError: a file cannot be written, here or (ProcessError) in another process.
          SystemExit: on SIGTERM (143) or Ctrl-C (130), when the batch under way is on disk.
        """
        source, before = results.provenance(), num_programs()
        batches = self._processes.sharing_batches
        writer = LineWriter(self._parts.path)
        with batches.together(), contextlib.ExitStack() as open_files:

            def begin() -> int:
                self._directory.mkdir(parents=True, exist_ok=True)
                open_files.enter_context(writer)
                return self._begin(source)

            done = self._processes.sharing_target.first(begin)
            self._decode_rows(writer, done)
        programs = num_programs() - before
        say(f"{programs} programs compiled, for {self._inputs.num_shapes} sizes of inputs")
        self._parts.gather()
        with batches.together():
            if batches.index:
                return {}
            return self._conclude({"programs": programs, **source}, command)

    def _begin(self, source: Mapping[str, Any]) -> int:
        """Writes the run's files before its first row; returns the number of rows done before."""
        done = self._count_previous_rows()  # Again: only now no other process writes here.
        keep(self._directory, self._identity, source)
        if self.run.bad_rows == "skip":
            skipped = map(dataclasses.asdict, self._inputs.skipped())
            lines = (files.to_json(row) + "\n" for row in skipped)
            files.write_parts(self._directory / SKIPPED, lines)
        return done

    def _conclude(self, about: dict[str, Any], command: str) -> dict[str, Any]:
        """Measures, and writes the results."""
        run, how, measured = self.run, self.run.decoding, None
        first = self._processes.sharing_target.first  # It alone has the rows, and writes.
        batches = self._to_time()
        if batches:
            make: Any = run.searcher if how.searches else run.decoder
            fast = make(self.pair) if how.guesses else None
            plain = make(self.pair, plain=True)
            measured = speed.measure(plain, fast, batches, run.timing_repetitions)
        numbers = first(
            lambda: results.numbers(
                self.rows(), how.depth, measured, checked=run.checked, metrics=run.task.metrics
            )
        )
        names = ("num_return", "draft_beams", "method", "stop_below", "batch_size",
                 "max_input_len", "max_decode_len", "seed")  # fmt: skip
        content = {
            "task": run.task.name,
            "target": run.target,
            "weights": run.weights,
            "dtype": run.dtype,
            "drafter": str(run.draft) if how.guesses else None,
            "draft_temperature": (how.draft_sampling or how.sampling).temperature,
            "gamma": how.depth,
            "tree": how.tree and str(how.tree),
            "beam": how.beam and dataclasses.asdict(how.beam),
            "topology": self._topology(),
            "rules": [str(rule) for rule in rules_of(self.pair.target, how)],
            "verifier": described(how.accepts),
            "lossless": how.accepts.lossless,
            "gamma_choice": self._choice and dataclasses.asdict(self._choice),
            "mesh": run.mesh and {"data": run.mesh.data, "model": run.mesh.model},
            **{name: getattr(how, name) for name in names},
            **dataclasses.asdict(how.sampling),
            **numbers,
            "checked": run.checked,
            "agreement": self._agreement() if run.weights else None,
            "num_skipped": self._inputs.num_skipped,
            **about,
            "gin": self._identity,
            "command": command,
        }
        first(lambda: self._write(content))
        return {} if self._processes.index else content

    def _write(self, content: dict[str, Any]) -> None:
        """The results, and a page of some rows."""
        how = self.run.decoding
        title = f"{self.run.task.name}: {how.method}, {how.tree or f'gamma {how.depth}'}"
        page = traces.page(self.first_rows(ROWS_IN_PAGE), self.pair.vocabulary, title)
        files.write_text(self._directory / TRACE, page)
        files.write_json(self._directory / RESULTS, content)

    def _topology(self) -> dict[str, int]:
        """Nodes of a block; of speculative beams, tokens of a call."""
        if self.run.decoding.method == "speculative_beam":
            searcher = self.run.searcher(self.pair)
            return {"nodes": searcher.engine.nodes, "siblings": searcher.draft_beams}
        engine = self.run.decoder(self.pair).engine
        return {"nodes": engine.nodes, "siblings": engine.topology.siblings}

    def _to_time(self) -> list[Batch]:
        run = self.run
        if not run.timing_examples:
            return []
        items = self._inputs.sample(run.timing_examples)
        say(f"Timing {len(items)} rows, {run.timing_repetitions} repetitions")
        return list(self._inputs.batches_of(items, run.decoding.batch_size))

    def _load(self, draft: str | DraftSpec) -> Pair:
        run = self.run
        return load_pair(
            target=run.target, draft=draft, dtype=run.dtype, weights=run.weights, mesh=run.mesh,
            generation_config=run.generation_config, source_language=run.source_language,
            target_language=run.target_language,
        )  # fmt: skip

    def _agreement(self) -> dict[str, Any]:
        """Agreement of the rounded target and its full weights, along some of the outputs.

        The full weights take the part of a draft: at temperature 0 alpha is the share of tokens
        that they would have generated too, above it 1 less the distance of the distributions.
        """
        run, how = self.run, self.run.decoding
        say(f"Comparing the {run.weights} weights with the full ones")
        full = self._load(resolve(run.target, "target"))
        decoder = full.decoder(
            gamma=1,
            rules=how.rules,
            sampling=how.sampling,
            max_decode_len=how.max_decode_len,
            seed=how.seed,
        )
        items = self._inputs.sample(AGREEMENT_ROWS)
        ids = {item.id for item in items}
        texts = self._processes.sharing_target.first(
            lambda: {row.id: row.tokens for row in self.rows() if row.id in ids}
        )
        found = []
        for batch in self._inputs.batches_of(items, how.batch_size):
            rows = {index: items[row].id for index, row in enumerate(batch.row_ids) if row >= 0}
            given = {index: texts[row] for index, row in rows.items()}
            found += alpha.replayed(decoder, batch, given)
        summary = alpha.summary(found)
        return {name: summary[name] for name in ("num_texts", "alpha", "alpha_interval")}

    def _decode_rows(self, writer: LineWriter, done: int) -> None:
        """Appends the rows that follow the first `done` ones."""
        path, total = self._parts.path, self._parts.num_mine

        def append(*lines: str) -> None:
            self._processes.sharing_target.first(lambda: writer.append(*lines))

        say(f"Decoding {total} rows{f', {done} of them before' if done else ''}")
        # A signal for this process alone; of several, JAX notes SIGTERM for all.
        signals = [signal.SIGINT, signal.SIGTERM][: 2 if self._processes.count == 1 else 1]
        with stop_request(*signals) as stop, Progress(total, "rows", done=done) as progress:
            decoded = functools.partial(decoded_rows, self.run, self.pair)
            for number, batch, rows in append_missing(append, self._batches(), done, decoded):
                done += len(rows)
                tokens = sum(row.num_tokens for row in rows)
                progress.add(len(rows), kind=batch.shape, tokens=tokens)
                stop.by = self._processes.stopped(number, stop.by)
                if stop.by is not None:
                    break
        if stop.by is not None:
            where = "done" if self._processes.sharing_target.index else f"in {path}"
            say(
                f"Stopped by {stop.by.name}: {done} of {total} rows are {where}. Run again with "
                "the same output directory to go on."
            )
            raise SystemExit(stop.exit_code)
