"""Transcribed files as lines of ``transcripts.jsonl``, and sums over them."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

from specdec.core.stats import RunStats
from specdec.runs.transcribe_run import RecordingFile
from specdec.speech.transcript import Transcript

TRANSCRIPTS = "transcripts.jsonl"


@dataclasses.dataclass(frozen=True)
class TranscribedFile:
    """A transcribed file; an object of ``transcripts.jsonl`` has these keys.

    Attributes:
      name: the file's.
      bytes: its size.
      text, language, language_probability, duration, segments: see
        :class:`specdec.speech.transcript.Transcript`.
      windows: how many were decoded.
      fallbacks: those whose output is of a temperature above the first.
      seconds: that decoding took: of its group's, its share by duration.
      counts: of :class:`specdec.core.stats.RunStats`; None where nothing was decoded.
    """

    name: str
    bytes: int
    text: str
    language: str | None
    language_probability: float | None
    duration: float
    segments: list[dict[str, Any]]
    windows: int
    fallbacks: int
    seconds: float
    counts: dict[str, Any] | None

    @classmethod
    def of(
        cls, file: RecordingFile, found: Transcript, first_temperature: float, seconds: float
    ) -> TranscribedFile:
        """The line of a transcript."""
        again = sum(each.temperature > first_temperature for each in found.windows)
        stats = found.stats
        return cls(
            file.name, file.path.stat().st_size, **found.as_json(), windows=len(found.windows),
            fallbacks=again, seconds=seconds, counts=stats and dataclasses.asdict(stats),
        )  # fmt: skip

    @property
    def stats(self) -> RunStats | None:
        """Counts of the file, to be added to others'."""
        given = self.counts
        if given is None:
            return None
        lists: dict[str, Any] = {
            name: tuple(given[name]) for name in ("accepted_histogram", "accepted_by_rank")
        }
        return RunStats(**given | lists)


def totals(lines: Iterable[TranscribedFile]) -> dict[str, Any]:
    """Sums over files, for ``results.json``."""
    count, parts = 0, []
    sums = dict.fromkeys(("duration", "seconds", "windows", "fallbacks"), 0.0)
    for line in lines:
        count += 1
        parts += [] if line.stats is None else [line.stats]
        sums = {name: value + getattr(line, name) for name, value in sums.items()}
    stats = functools.reduce(operator.add, parts) if parts else None
    rates = ("alpha", "acceptance_rate", "draft_utilization", "block_efficiency")
    return {
        "num_files": count, "sound_seconds": round(sums["duration"], 2),
        "decoding_seconds": round(sums["seconds"], 3),
        "real_time_factor": sums["seconds"] / sums["duration"] if count else None,
        "num_windows": int(sums["windows"]), "num_fallbacks": int(sums["fallbacks"]),
        "num_tokens": stats.emitted if stats else 0,
        "target_calls": stats.target_calls if stats else 0,
        **{name: stats and getattr(stats, name) for name in rates},
    }  # fmt: skip
