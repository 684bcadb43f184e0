"""Recordings window by window: each begins where the timestamps of the one before say.

Source: Radford et al. 2022, section 3.8, and ``generate`` of Whisper in transformers 5, whose
windows, prefixes and fallbacks these are. Of several recordings the windows under way are a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from specdec.speech.listening import Listening, SpeechTokens
from specdec.speech.segments import Clock, Segment
from specdec.speech.windows import Heard, Window, Windows

# Windows of a recording whose numbers no other recording's have: a day of sound.
_MOST_WINDOWS = 4096


@dataclasses.dataclass(frozen=True)
class Opening:
    """Tokens that each output of a recording begins with.

    Attributes:
      tokens: the start token, language, task, and perhaps that there are no timestamps.
      prompt: of text that was said before; none for none.
      most_before: the most tokens of text before that a window continues.
      previous: the token before such text.
    """

    tokens: tuple[int, ...]
    prompt: tuple[int, ...]
    most_before: int
    previous: int

    def before(self, said: Sequence[int] = ()) -> tuple[int, ...]:
        """Tokens in front of it, behind these of earlier windows."""
        before = (*self.prompt, *said)[-self.most_before :]
        return (self.previous, *before) if before else ()


@dataclasses.dataclass
class Recording:
    """A recording that is followed.

    Attributes:
      index: among all that are transcribed.
      features: of all of it, of a whole window at least.
      duration: seconds of its sound.
      opening: None until its language is known.
      language: its code; None for an English-only model.
      language_probability: None where it was not asked for.
      seek: the frame at which its next window begins.
      said: tokens of its windows so far.
      continues: whether the next window continues them.
    """

    index: int
    features: Float[np.ndarray, "f m"]
    duration: float
    opening: Opening | None = None
    language: str | None = None
    language_probability: float | None = None
    seek: int = 0
    said: list[int] = dataclasses.field(default_factory=list)
    continues: bool = False
    segments: list[Segment] = dataclasses.field(default_factory=list)
    windows: list[Heard] = dataclasses.field(default_factory=list)

    def window(self, number: int, *, behind_said: bool) -> Window:
        """The window of a number; ``behind_said``: it continues what was said."""
        assert self.opening is not None
        before = self.opening.before(self.said if behind_said else ())
        return Window(before, self.opening.tokens, self.index * _MOST_WINDOWS + number)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self.seek >= len(self.features)

    def frames(self, size: int) -> Float[np.ndarray, "s m"]:
        """Features of the next window of ``size`` frames; behind the end zeros."""
        found = self.features[self.seek : self.seek + size]
        return np.pad(found, ((0, size - len(found)), (0, 0)))


def follow(
    recordings: Sequence[Recording], windows: Windows, listening: Listening, clock: Clock,
    opened: Callable[[Sequence[Recording], Windows, Sequence], None], *, continues: bool,
    advanced: Callable[[float], object],
) -> None:  # fmt: skip
    """Decodes recordings to their ends.

    Args:
      clock: times of tokens.
      opened: called with the first windows, to find what outputs begin with.
      continues: whether windows continue the text of those before.
      advanced: called with seconds that were decoded.
    """
    size = listening.frames
    while active := [each for each in recordings if not each.is_over]:
        prompts = windows.encoded([each.frames(size) for each in active])
        opened(active, windows, prompts)
        batch = [
            each.window(len(each.windows), behind_said=continues and each.continues)
            for each in active
        ]
        for each, heard in zip(active, windows.decode(batch, prompts), strict=True):
            before = each.seek
            _take(each, heard, clock, listening)
            begin, end = (min(at * listening.frame, each.duration) for at in (before, each.seek))
            advanced(end - begin)


def _take(each: Recording, heard: Heard, clock: Clock, listening: Listening) -> None:
    frames = min(listening.frames, len(each.features) - each.seek)
    each.windows.append(heard)
    each.continues = heard.is_continued
    if heard.is_silence:
        each.seek += frames
        return
    cut = clock.cut(heard.tokens, heard.log_probs, each.seek * listening.frame, frames)
    each.segments += cut.segments
    each.said += cut.said.tolist()
    each.seek += cut.frames


def tokens_behind_start(
    tokens: SpeechTokens, language: str | None, task: str, *, with_times: bool
) -> tuple[int, ...]:
    """The first tokens of an output.

    Args:
      language: its code; None for an English-only model.
    """
    found = (tokens.start,)
    if language is not None:
        found += (tokens.languages[language], tokens.tasks[task])
    return found if with_times else (*found, tokens.no_timestamps)
