"""A transcribing run: from a command line to transcripts of files, a group of files at a time.

Files that are left are sorted by length, so that those of a group end at about the same time. A run
that is stopped between two groups goes on with the groups that it would have had.
"""

from __future__ import annotations

import dataclasses
import datetime
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from specdec.core import files
from specdec.core.machine import fingerprint
from specdec.core.progress import say
from specdec.core.signals import stop_request
from specdec.load import load_pair
from specdec.measure import results
from specdec.measure.kept_rows import LineWriter, line_of, read_lines
from specdec.runs import gin_files
from specdec.runs.command_line import FAILURE, Given, report_error
from specdec.runs.dry_run import report
from specdec.runs.gin_bindings import configured
from specdec.runs.kept_config import CONFIG, is_of, keep, other_run
from specdec.runs.prepared_run import RESULTS, SKIPPED
from specdec.runs.transcribe_run import RecordingFile, TranscribeRun, subtitles_of
from specdec.runs.transcribed_files import TRANSCRIPTS, TranscribedFile, totals
from specdec.speech.audio import AudioError, duration, read_audio
from specdec.speech.transcribing import sound_progress
from specdec.speech.transcript import Transcript
from specdec.verifiers.base import described


class PreparedTranscription:
    """A run whose files, models and output directory were checked; nothing is written yet.

    Args:
      config: the operative gin configuration.
      directory: where to write; one that holds transcripts of the same run is continued.

    Raises:
      OSError: the directory cannot be written to.
      ValueError: see :meth:`TranscribeRun.recordings`, :func:`specdec.load_pair` and
        :meth:`specdec.Pair.transcriber`; the directory holds another run's transcripts, or those of
        files that were changed since.
    """

    def __init__(self, run: TranscribeRun, config: str, directory: Path):
        self._run, self._directory, self._path = run, directory, directory / TRANSCRIPTS
        files.check_writable(directory)
        self._files = run.recordings()
        pair = load_pair(
            target=run.target, draft=run.draft, dtype=run.dtype, weights=run.weights,
            mesh=run.mesh, generation_config=run.generation_config,
        )  # fmt: skip
        pair.target.check_batch_size(run.decoding.batch_size)
        self._transcriber = run.transcriber(pair)
        target, draft = map(fingerprint, (pair.target.params, pair.draft.weights))
        self._identity = f"# Weights: target {target}, draft {draft}\n{config}"
        self._skipped: list[dict[str, str]] = []
        self._done()

    def _lines(self) -> Iterator[TranscribedFile]:
        return read_lines(self._path, lambda fields: TranscribedFile(**fields))

    def _done(self) -> dict[str, float]:
        """Seconds of sound by the names of files that are done."""
        if not is_of(self._directory, self._identity) and next(self._lines(), None):
            raise other_run(self._directory, TRANSCRIPTS, "transcripts")
        done, known = {}, {each.name: each.path for each in self._files}
        for line in self._lines():
            path = known.get(line.name)
            if path is not None and path.is_file() and path.stat().st_size != line.bytes:
                raise ValueError(
                    f"{path} was changed since it was transcribed; choose another --output_dir or "
                    f"remove {self._path}."
                )
            done[line.name] = line.duration
        return done

    def execute(self, command: str) -> dict[str, Any]:
        """Transcribes the files that are left and writes every file.

        Returns:
          the content of ``results.json``.

        Raises:
          OSError: a file cannot be written.
          SystemExit: on SIGTERM (143) or Ctrl-C (130), when the group under way is on disk.
        """
        source = results.provenance()
        self._directory.mkdir(parents=True, exist_ok=True)
        with LineWriter(self._path) as writer:
            done = self._done()  # Again: only now no other process writes here.
            keep(self._directory, self._identity, source)
            (self._directory / SKIPPED).unlink(missing_ok=True)
            kept = self._finished(done)
            if kept is None:
                self._transcribe(writer, done)
        return kept or self._conclude(source, command)

    def _finished(self, done: dict[str, float]) -> dict[str, Any] | None:
        """The results of this run when it was finished before, and every file with it."""
        path = self._directory / RESULTS
        try:
            content = files.read_object(path) if path.is_file() else {}
        except ValueError:  # A damaged one is made again, of the lines.
            content = {}
        same = content.get("gin") == self._identity and content["num_files"] == len(done)
        return content if same and all(each.name in done for each in self._files) else None

    def _transcribe(self, writer: LineWriter, done: dict[str, float]) -> None:
        left = {}
        for file in self._files:
            if file.name not in done:
                try:
                    left[file] = duration(file.path)
                except AudioError as error:
                    self._skip(file, error)
        order = sorted(left, key=lambda file: (-left[file], file.name))
        total, before = sum(left.values()) + sum(done.values()), sum(done.values())
        say(
            f"Transcribing {len(done) + len(left)} files, {total:.0f} s of sound"
            f"{f', {len(done)} of them before' if done else ''}"
        )
        with (
            stop_request(signal.SIGINT, signal.SIGTERM) as stop,
            sound_progress(total, before) as advanced,
        ):
            for group, samples in self._groups(order):
                begin = time.perf_counter()
                found = self._transcriber.transcribe(samples, progress=advanced).transcripts
                self._write(writer, group, found, time.perf_counter() - begin)
                if stop.by is not None:
                    break
        if stop.by is not None:
            say(
                f"Stopped by {stop.by.name}: what is done is in {self._path}. Run again with the "
                "same output directory to go on."
            )
            raise SystemExit(stop.exit_code)

    def _groups(
        self, order: Sequence[RecordingFile]
    ) -> Iterator[tuple[list[RecordingFile], list[np.ndarray]]]:
        """Files that are decoded together, read."""
        size, rate = self._run.decoding.batch_size, self._transcriber.listening.rate
        group, samples = [], []
        for file in order:
            try:
                samples.append(read_audio(file.path, None, rate))
            except AudioError as error:
                self._skip(file, error)
                continue
            group.append(file)
            if len(group) == size:
                yield group, samples
                group, samples = [], []
        if group:
            yield group, samples

    def _skip(self, file: RecordingFile, error: AudioError) -> None:
        say(f"Skipped: {error}")
        self._skipped.append({"name": file.name, "reason": str(error)})
        lines = (files.to_json(each) + "\n" for each in self._skipped)
        files.write_parts(self._directory / SKIPPED, lines)

    def _write(
        self, writer: LineWriter, group: Sequence[RecordingFile], found: Sequence[Transcript],
        seconds: float,
    ) -> None:  # fmt: skip
        """A group's subtitles, and then its lines: what has a line is complete."""
        texts = {"srt": Transcript.as_srt, "vtt": Transcript.as_vtt}
        total, first = sum(each.duration for each in found), self._run.transcription.temperatures[0]
        lines = []
        for file, each in zip(group, found, strict=True):
            for kind in self._run.subtitles:
                path = self._directory / subtitles_of(file.name, kind)
                files.write_text(path, texts[kind](each))
            lines.append(
                line_of(TranscribedFile.of(file, each, first, seconds * each.duration / total))
            )
        writer.append(*lines)

    def _conclude(self, source: dict[str, Any], command: str) -> dict[str, Any]:
        run, how = self._run, self._transcriber.decoding
        content = {
            "target": run.target, "weights": run.weights, "dtype": run.dtype,
            "drafter": str(run.draft) if how.guesses else None, "method": how.method,
            "gamma": how.depth, "tree": how.tree and str(how.tree),
            "verifier": described(how.accepts), "lossless": how.accepts.lossless,
            "batch_size": how.batch_size, "seed": how.seed,
            "transcription": dataclasses.asdict(run.transcription),
            **totals(self._lines()), "num_skipped": len(self._skipped), **source,
            "gin": self._identity, "command": command,
        }  # fmt: skip
        files.write_json(self._directory / RESULTS, content)
        return content


def transcribe(
    given: Given, root: Path, *, audio: Sequence[str] = (), dry_run: bool = False
) -> int:
    """Runs a configuration and prints its totals.

    Args:
      root: where ``configs/`` is; included files are named from there.
      audio: a folder or files in place of the configuration's.
      dry_run: only print what :func:`specdec.runs.dry_run.report` prints.

    Returns:
      the exit code: 0; 1 where a file was skipped; or 2 for a mistake of the user.
    """
    try:
        replaced = [f"AUDIO = {(audio[0] if len(audio) == 1 else [*audio])!r}"] if audio else []
        gin_files.parse(given.gin_files, [*given.bindings, *replaced], root)
        run = configured(TranscribeRun)
        name = f"{Path(given.gin_files[0]).stem}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        directory = Path(given.output_dir or Path("out", name))
        config = gin.operative_config_str()
        if dry_run:
            folder = Path(given.output_dir) if given.output_dir else None
            print(_planned(run, root, folder))
            return 0
        prepared = PreparedTranscription(run, config, directory)
        content = prepared.execute(given.command)
    except ImportError as error:  # Of the extra that reads sound.
        return report_error(str(error))
    except (ValueError, OSError) as error:
        return report_error(error)
    print(_summary(content, directory))
    return FAILURE if content["num_skipped"] else 0


def _planned(run: TranscribeRun, root: Path, folder: Path | None) -> str:
    names = run.recordings()
    reads = f"{len(names)} files of sound, {names[0].name}" + (" and so on" * (len(names) > 1))
    writes = [CONFIG, TRANSCRIPTS, RESULTS, *(f"subtitles/*.{kind}" for kind in run.subtitles)]
    return gin.get_configurable(report)(
        run.planned, root, folder=folder, reads=reads, writes=writes
    )


def _summary(content: dict[str, Any], directory: Path) -> str:
    pace = content["real_time_factor"]
    lines = [
        f"{content['num_files']} files, {content['sound_seconds']:.0f} s of sound in "
        f"{content['decoding_seconds']:.1f} s"
        + (f", {pace:.3f} of real time" if pace is not None else "")
    ]
    if content["alpha"] is not None:
        lines.append(
            f"alpha {content['alpha']:.3f}, {content['block_efficiency']:.2f} tokens a call"
        )
    if content["num_skipped"]:
        lines.append(f"{content['num_skipped']} files could not be read: {SKIPPED} says why.")
    lines.append(f"Written to {directory}: {RESULTS}, {TRANSCRIPTS}, {CONFIG}")
    return "\n".join(lines)
