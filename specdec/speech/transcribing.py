"""Recordings as transcripts: reads sound, finds languages, decodes windows, joins segments."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from specdec.core.progress import Progress
from specdec.decoding.options import Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.speech.audio import Audio, read_audio, seconds
from specdec.speech.following import Opening, Recording, follow, tokens_behind_start
from specdec.speech.listening import Listening
from specdec.speech.options import Transcription
from specdec.speech.overlapping import overlap
from specdec.speech.segments import Clock, Segment
from specdec.speech.transcript import Transcript, Transcripts
from specdec.speech.windows import Window, Windows
from specdec.text.base import Tokenizer
from specdec.types import Prompt


@dataclasses.dataclass(frozen=True)
class Transcriber:
    """Transcribes recordings in one way.

    Raises:
      ValueError: the model does not have the language or the task, or the prompt has special
        tokens.
    """

    target: LoadedTarget
    draft: OpenDraft
    vocabulary: Tokenizer
    listening: Listening
    how: Transcription
    decoding: Decoding

    def __post_init__(self):
        tokens, how = self.listening.tokens, self.how
        if not tokens.languages:
            if how.task != "transcribe":
                raise ValueError(
                    f"{self.target.source} is English-only and cannot {how.task}: choose a "
                    "multilingual model."
                )
            if how.language is not None and how.language.lower() not in ("en", "english"):
                raise ValueError(
                    f"{self.target.source} is English-only: leave language out, got "
                    f"{how.language!r}."
                )
        elif how.language is not None:
            tokens.language(how.language)
        self._prompt()

    def transcribe(
        self, recordings: Sequence[Float[np.ndarray, " n"]], *,
        progress: bool | Callable[[float], object] = False,
    ) -> Transcripts:  # fmt: skip
        """Transcripts of samples at the model's rate.

        Args:
          progress: whether seconds that are done are shown; or a function that is called with
            those that were added.
        """
        durations = [seconds(samples, self.listening.rate) for samples in recordings]
        states: dict[int, Recording] = {}
        with _shown(sum(durations), progress) as advanced:
            for i, samples in enumerate(recordings):
                if np.any(samples):
                    states[i] = Recording(i, self.listening.features(samples), durations[i])
                else:
                    warnings.warn(f"Recording {i} is silent: nothing was decoded.", stacklevel=3)
                    advanced(durations[i])
            for with_times in (False, True):
                some = [each for each in states.values() if self._has_times(each) == with_times]
                if some:
                    self._decode(some, with_times, advanced)
        return Transcripts([
            self._transcript(states[i]) if i in states
            else Transcript("", [], None, None, duration, [])
            for i, duration in enumerate(durations)
        ])  # fmt: skip

    def _has_times(self, recording: Recording) -> bool:
        return self.how.timestamps or len(recording.features) > self.listening.frames

    def _decode(
        self, recordings: list[Recording], with_times: bool, advanced: Callable[[float], object]
    ) -> None:
        """Decodes recordings that all have times, or all have none."""
        tokens, listening = self.listening.tokens, self.listening
        windows = Windows(
            self.target, self.draft, listening, self.how, self.decoding, with_times=with_times
        )
        eos = self.target.model.eos_ids[0]
        # Without times a window is one segment, even if a timestamp stands in it.
        first = tokens.first_timestamp if with_times else self.target.model.vocab_size
        clock = Clock(first, eos, 2 * listening.frame)
        if self.how.windows == "overlapping":
            overlap(recordings, windows, listening, clock, self._open, self.how.overlap, advanced)
        else:
            follow(
                recordings, windows, listening, clock, self._open,
                continues=self.how.previous_text, advanced=advanced,
            )  # fmt: skip

    def _prompt(self) -> tuple[int, ...]:
        """Tokens of the text that was said before.

        Raises:
          ValueError: there are special ones among them.
        """
        text = (self.how.prompt or "").strip()
        found = tuple(self.vocabulary.encode(" " + text)) if text else ()
        if any(token >= self.target.model.eos_ids[0] for token in found):
            raise ValueError(f"prompt must be text without special tokens, got {text!r}.")
        return found

    def _open(
        self, recordings: Sequence[Recording], windows: Windows, prompts: Sequence[Prompt]
    ) -> None:
        """Finds what outputs begin with, by the first windows of recordings that are new."""
        tokens, most = self.listening.tokens, self.target.model.max_positions
        assert most is not None
        new = [i for i, each in enumerate(recordings) if each.opening is None]
        if new and tokens.languages and self.how.language is None:
            first = [Window((), (tokens.start,), i) for i in new]
            behind = windows.behind_start(first, [prompts[i] for i in new])
            behind = behind[:, [*tokens.languages.values()]]
            for i, each in zip(new, behind / behind.sum(axis=1, keepdims=True), strict=True):
                recordings[i].language = [*tokens.languages][int(np.argmax(each))]
                recordings[i].language_probability = float(np.max(each))
        for each in (recordings[i] for i in new):
            if tokens.languages and self.how.language is not None:
                each.language = tokens.language(self.how.language)
            first = tokens_behind_start(
                tokens, each.language, self.how.task, with_times=windows.with_times
            )
            each.opening = Opening(first, self._prompt(), most // 2 - 1, tokens.previous)

    def _transcript(self, state: Recording) -> Transcript:
        segments, duration = [each for each in state.segments if len(each.tokens)], state.duration
        if not self._has_times(state):
            segments = [dataclasses.replace(each, start=0.0, end=duration) for each in segments]
        segments = [self._worded(each) for each in segments]
        tokens = [token for each in segments for token in each.tokens.tolist()]
        text = self.vocabulary.decode(tokens).strip()
        return Transcript(
            text, segments, state.language, state.language_probability, duration, state.windows
        )

    def _worded(self, segment: Segment) -> Segment:
        text = self.vocabulary.decode(segment.tokens.tolist()).strip()
        return dataclasses.replace(segment, text=text)


def read_all(
    audio: Audio | Sequence[Audio], rate: int | None, listening: Listening
) -> tuple[list[Float[np.ndarray, " n"]], bool]:
    """Samples of one or several recordings, and whether it is one.

    Raises:
      AudioError: one of them cannot be read.
    """
    if not isinstance(audio, list | tuple):
        return [read_audio(audio, rate, listening.rate)], True  # pyright: ignore[reportArgumentType]
    return [
        read_audio(each, rate, listening.rate, f"audio {i}") for i, each in enumerate(audio)
    ], False


@contextlib.contextmanager
def _shown(
    total: float, progress: bool | Callable[[float], object]
) -> Iterator[Callable[[float], object]]:
    """A function to call with seconds of sound that are done."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield lambda more: None
        return
    with sound_progress(total) as advanced:
        yield advanced


@contextlib.contextmanager
def sound_progress(total: float, done: float = 0.0) -> Iterator[Callable[[float], None]]:
    """A line of progress in seconds of sound; to be called with those that were added."""
    end = round(total)
    with Progress(end, "s of sound", done=round(done)) as bar:

        def advanced(more: float) -> None:
            nonlocal done
            before, done = done, done + more
            bar.add(min(round(done), end) - min(round(before), end))

        yield advanced
