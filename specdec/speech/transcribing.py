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
from specdec.speech.windows import Windows
from specdec.text.base import Tokenizer
from specdec.types import Prompt


@dataclasses.dataclass(frozen=True)
class Transcriber:
    """Transcribes recordings in one way.

    Raises:
      ValueError: the model has neither the language nor the task.
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

    def transcribe(
        self, recordings: Sequence[Float[np.ndarray, " n"]], *,
        progress: bool | Callable[[float], object] = False,
    ) -> Transcripts:  # fmt: skip
        """Transcripts of samples at the model's rate.

        Args:
          progress: whether seconds that are done are shown; or a function that is called with
            those that were added.
        """
        rate = self.listening.rate
        durations = [seconds(samples, rate) for samples in recordings]
        found, heard = [], [i for i, samples in enumerate(recordings) if np.any(samples)]
        features = {i: self.listening.features(recordings[i]) for i in heard}
        with_times = self.how.timestamps or any(
            len(each) > self.listening.frames for each in features.values()
        )
        windows = Windows(
            self.target, self.draft, self.listening, self.how, self.decoding, with_times=with_times
        )
        states = {i: Recording(each) for i, each in features.items()}
        # Features of a short recording are filled up to a window: its seconds are fewer.
        sound = sum(durations)
        filled = sum(len(each) for each in features.values()) * self.listening.frame
        probabilities: dict[int, float] = {}
        opened = self._opener(with_times, probabilities)
        with _shown(sound, progress) as shown:
            if states:
                self._decode(
                    [*states.values()], windows, opened, lambda more: shown(more * sound / filled)
                )
            else:
                shown(sound)
        for i, duration in enumerate(durations):
            if i not in states:
                warnings.warn(f"Recording {i} is silent: nothing was decoded.", stacklevel=3)
                found.append(Transcript("", [], None, None, duration, []))
                continue
            found.append(self._transcript(states[i], probabilities.get(id(states[i])), duration,
                                          with_times))  # fmt: skip
        return Transcripts(found)

    def _decode(
        self, recordings: list[Recording], windows: Windows, opened: Callable[..., None],
        advanced: Callable[[float], object],
    ) -> None:  # fmt: skip
        tokens, listening = self.listening.tokens, self.listening
        eos = self.target.model.eos_ids[0]
        clock = Clock(tokens.first_timestamp, eos, 2 * listening.frame)
        if self.how.windows == "overlapping":
            overlap(recordings, windows, listening, clock, opened, self.how.overlap, advanced)
        else:
            follow(
                recordings, windows, listening, clock, opened, continues=self.how.previous_text,
                advanced=advanced,
            )  # fmt: skip

    def _opener(
        self, with_times: bool, probabilities: dict[int, float]
    ) -> Callable[[Sequence[Recording], Windows, Sequence[Prompt]], None]:
        """A function that finds, by their first windows, what outputs of recordings begin with."""
        tokens, how = self.listening.tokens, self.how
        prompt: tuple[int, ...] = ()
        if how.prompt:
            prompt = tuple(self.vocabulary.encode(" " + how.prompt.strip()))
        most = self.target.model.max_positions
        assert most is not None

        def opened(
            recordings: Sequence[Recording], windows: Windows, prompts: Sequence[Prompt]
        ) -> None:
            codes: list[str | None] = [None] * len(recordings)
            if tokens.languages:
                codes = [how.language and tokens.language(how.language)] * len(recordings)
            unknown = [
                i for i, each in enumerate(recordings)
                if each.opening is None and tokens.languages and codes[i] is None
            ]  # fmt: skip
            if unknown:
                ids = np.array([*tokens.languages.values()])
                behind = windows.behind_start([prompts[i] for i in unknown])[:, ids]
                for i, each in zip(
                    unknown, behind / behind.sum(axis=1, keepdims=True), strict=True
                ):
                    codes[i] = [*tokens.languages][int(np.argmax(each))]
                    probabilities[id(recordings[i])] = float(np.max(each))
            for code, each in zip(codes, recordings, strict=True):
                if each.opening is None:
                    first = tokens_behind_start(tokens, code, how.task, with_times=with_times)
                    each.language = code
                    each.opening = Opening(first, prompt, most // 2 - 1, tokens.previous)

        return opened

    def _transcript(
        self, state: Recording, probability: float | None, duration: float, with_times: bool
    ) -> Transcript:
        segments = [each for each in state.segments if len(each.tokens)]
        if not with_times:
            segments = [dataclasses.replace(each, start=0.0, end=duration) for each in segments]
        segments = [self._worded(each) for each in segments]
        tokens = [token for each in segments for token in each.tokens.tolist()]
        text = self.vocabulary.decode(tokens).strip()
        return Transcript(text, segments, state.language, probability, duration, state.windows)

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
    """What is called with seconds of sound that are done."""
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
