"""Transcripts of recordings, and the files that they are written as."""

from __future__ import annotations

import dataclasses
import functools
import html
import operator
from collections.abc import Iterable
from typing import Any

from specdec.core.stats import RunStats
from specdec.speech.segments import Segment
from specdec.speech.windows import Heard


@dataclasses.dataclass(frozen=True)
class Transcript:
    """The transcript of a recording.

    Attributes:
      text: of all segments.
      segments: with times; one of the whole recording where there are no timestamps.
      language: its code; None for an English-only model.
      language_probability: by the first window; None where the language was given.
      duration: seconds of the recording.
      windows: what was decoded of each window.
    """

    text: str
    segments: list[Segment]
    language: str | None
    language_probability: float | None
    duration: float
    windows: list[Heard]

    @property
    def stats(self) -> RunStats | None:
        """Counts of all decodes, those at other temperatures with them; None without any."""
        return _total(each.stats for each in self.windows)

    def as_json(self) -> dict[str, Any]:
        """Fields for a line of JSON, without windows."""
        return {
            "text": self.text, "language": self.language,
            "language_probability": self.language_probability, "duration": self.duration,
            "segments": [
                {
                    "start": round(each.start, 2), "end": round(each.end, 2), "text": each.text,
                    "tokens": each.tokens.tolist(),
                    "log_probs": [round(float(one), 5) for one in each.log_probs],
                }
                for each in self.segments
            ],
        }  # fmt: skip

    def as_srt(self) -> str:
        """SubRip's text."""
        return "".join(
            f"{number}\n{_clock(each.start, ',')} --> {_clock(each.end, ',')}\n"
            f"{_line(each).replace('-->', '→')}\n\n"  # An arrow is of times.
            for number, each in enumerate(self._shown(), start=1)
        )

    def as_vtt(self) -> str:
        """WebVTT's text."""
        cues = (
            f"{_clock(each.start, '.')} --> {_clock(each.end, '.')}\n"
            f"{html.escape(_line(each), quote=False)}\n\n"
            for each in self._shown()
        )
        return "WEBVTT\n\n" + "".join(cues)

    def _shown(self) -> Iterable[Segment]:
        return (each for each in self.segments if each.text)


@dataclasses.dataclass(frozen=True)
class Transcripts:
    """Transcripts of several recordings, and counts over all of them."""

    transcripts: list[Transcript]

    @property
    def stats(self) -> RunStats | None:
        """Counts of all decodes, those at other temperatures with them; None without any."""
        return _total(each.stats for each in self.transcripts)


def _total(parts: Iterable[RunStats | None]) -> RunStats | None:
    found = [each for each in parts if each is not None]
    return functools.reduce(operator.add, found) if found else None


def _line(segment: Segment) -> str:
    """Text in one line: an empty one would end its cue."""
    return " ".join(segment.text.split())


def _clock(seconds: float, mark: str) -> str:
    whole = round(1000 * seconds)
    hours, rest = divmod(whole, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
