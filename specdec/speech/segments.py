"""Segments of a recording, from the tokens of its windows.

Source: Radford et al. 2022, section 3.8, and ``generate`` of Whisper in transformers 5, whose times
and whose next window these are.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

import numpy as np

# Tokens that two windows must have in common where they overlap, to be joined there.
_LEAST_COMMON = 2


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a recording.

    Attributes:
      start, end: seconds from the recording's beginning.
      text: without spaces around it.
      tokens: [T] int32, of its text alone.
      log_probs: [T] float32, log p of each by the model with the rules that were followed.
    """

    start: float
    end: float
    tokens: np.ndarray
    log_probs: np.ndarray
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Tokens of a window in segments.

    Attributes:
      segments: of it.
      said: [N] tokens that the next window may be conditioned on, timestamps with them.
      frames: how far the next window is from this one.
    """

    segments: list[Segment]
    said: np.ndarray
    frames: int


@dataclasses.dataclass(frozen=True)
class Clock:
    """Times of a window's tokens.

    Attributes:
      first: the token of 0.00.
      eos: text is what is before it.
      step: seconds from one timestamp to the next.
      frames: frames of that many seconds.
    """

    first: int
    eos: int
    step: float
    frames: int = 2

    def cut(
        self, tokens: np.ndarray, log_probs: np.ndarray, begin: float, frames: int, *,
        whole: bool = False,
    ) -> Cut:  # fmt: skip
        """A window's tokens in segments: each pair of timestamps ends one and begins the next.

        Where the window ends inside a sentence, behind a pair, the next window begins at that pair,
        and what follows it is left out. A single timestamp at the end says that nothing more was
        said. Without any pair all is one segment.

        Args:
          tokens: [T] without EOS.
          log_probs: [T].
          begin: seconds at which the window begins.
          frames: of the window that are of the recording.
          whole: what follows the last pair is a segment, too: the next window begins elsewhere.
        """
        times = tokens >= self.first
        pairs = np.flatnonzero(times[:-1] & times[1:]) + 1  # Where the second one is.
        ends_alone = list(times[-2:]) == [False, True]
        if not len(pairs):
            shown = np.flatnonzero(times)
            last = frames // self.frames
            if len(shown) and tokens[shown[-1]] != self.first:
                last = int(tokens[shown[-1]]) - self.first
            only = self._segment(tokens, log_probs, begin, begin + last * self.step)
            return Cut([only], tokens, frames)
        ends = [*pairs.tolist(), *([len(tokens)] if ends_alone or whole else [])]
        segments, start = [], 0
        for end in ends:
            first, last = (int(tokens[i]) - self.first for i in (start, end - 1))
            if last < 0:  # Text without an end.
                last = frames // self.frames
            between = (begin + each * self.step for each in (first, last))
            part = slice(start, end)
            segments.append(self._segment(tokens[part], log_probs[part], *between))
            start = end
        if ends_alone or whole:
            return Cut(segments, tokens, frames)
        end = ends[-1]
        steps = int(tokens[end - 1]) - self.first
        return Cut(segments, tokens[:end], steps * self.frames or frames)

    def _segment(
        self, tokens: np.ndarray, log_probs: np.ndarray, start: float, end: float
    ) -> Segment:
        text = tokens < self.eos
        return Segment(start, end, tokens[text].astype(np.int32), log_probs[text])


def joined(windows: Sequence[Sequence[Segment]], begins: Sequence[float], size: float) -> list:
    """Segments of windows that overlap, as those of one recording.

    Where two windows overlap, the longest run of tokens that both have says where to go over from
    one to the other: in its middle. Where they have none in common, it is the middle of the time.

    Args:
      windows: the segments of each, in order.
      begins: seconds at which each begins.
      size: seconds of a window.
    """
    found = list(windows[0]) if windows else []
    for begin, before, segments in zip(begins[1:], begins, windows[1:], strict=False):
        found = _joined(found, list(segments), begin, before + size)
    return found


def _joined(left: list[Segment], right: list[Segment], begin: float, end: float) -> list[Segment]:
    """Two windows that overlap from ``begin`` to ``end``."""
    tail = [i for i, each in enumerate(left) if each.end > begin]
    head = [i for i, each in enumerate(right) if each.start < end]
    ours = [(i, j) for i in tail for j in range(len(left[i].tokens))]
    theirs = [(i, j) for i in head for j in range(len(right[i].tokens))]
    a, b = ([int(side[i].tokens[j]) for i, j in at] for side, at in ((left, ours), (right, theirs)))
    match = difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match()
    if match.size < _LEAST_COMMON:
        middle = (begin + end) / 2
        kept = [each for each in left if (each.start + each.end) / 2 < middle]
        return kept + [each for each in right if (each.start + each.end) / 2 >= middle]
    half = match.size // 2
    (i, j), (k, m) = ours[match.a + half], theirs[match.b + half]
    first, last = _part(left[i], slice(0, j)), _part(right[k], slice(m, None))
    both = Segment(
        first.start, max(last.end, first.start), np.concatenate([first.tokens, last.tokens]),
        np.concatenate([first.log_probs, last.log_probs]),
    )  # fmt: skip
    if not len(first.tokens):
        both = dataclasses.replace(both, start=max(last.start, left[i - 1].end if i else 0.0))
    return [*left[:i], both, *right[k + 1 :]]


def _part(segment: Segment, part: slice) -> Segment:
    return dataclasses.replace(
        segment, tokens=segment.tokens[part], log_probs=segment.log_probs[part]
    )
