"""Recordings cut at once into windows that overlap, which are decoded as a batch and joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec.speech.following import Recording
from specdec.speech.listening import Listening
from specdec.speech.segments import Clock, joined
from specdec.speech.windows import Windows
from specdec.types import Prompt


def overlap(
    recordings: Sequence[Recording], windows: Windows, listening: Listening, clock: Clock,
    opened: Callable[[Sequence[Recording], Windows, Sequence[Prompt]], None], seconds: float,
    advanced: Callable[[float], object],
) -> None:  # fmt: skip
    """Decodes recordings to their ends.

    Args:
      seconds: that two windows have in common.
      opened, advanced: see :func:`specdec.speech.following.follow`.
    """
    size = listening.frames
    step = size - round(seconds / listening.frame)
    begins = [_begins(len(each.features), size, step) for each in recordings]
    features = []
    for each, its in zip(recordings, begins, strict=True):
        for begin in its:
            each.seek = begin
            features.append(each.frames(size))
    prompts = windows.encoded(features)
    firsts, count = [], 0
    for its in begins:
        firsts.append(prompts[count])
        count += len(its)
    opened(recordings, windows, firsts)
    batch = [
        each.window(number, behind_said=False)
        for each, its in zip(recordings, begins, strict=True)
        for number in range(len(its))
    ]
    heard = iter(windows.decode(batch, prompts))
    for each, its in zip(recordings, begins, strict=True):
        each.windows = [next(heard) for _ in its]
        found = []
        for begin, one in zip(its, each.windows, strict=True):
            frames = min(size, len(each.features) - begin)
            at = begin * listening.frame
            found.append(clock.cut(one.tokens, one.log_probs, at, frames, whole=True).segments)
        at = [begin * listening.frame for begin in its]
        each.segments = joined(found, at, size * listening.frame)
        each.seek = len(each.features)
        advanced(each.duration)


def _begins(frames: int, size: int, step: int) -> list[int]:
    """Where windows begin that cover all frames."""
    found = [0]
    while found[-1] + size < frames:
        found.append(found[-1] + step)
    return found
