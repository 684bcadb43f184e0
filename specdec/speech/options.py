"""How to transcribe: what is not of decoding alone, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from specdec.core.arguments import real
from specdec.core.fields import ABOVE_0, Count, Real, Share, checked


def _temperatures(name: str, given: Any) -> tuple[float, ...]:
    meaning = "temperatures, 0 or more, in rising order"
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ValueError(f"{name} must be {meaning}, such as (0.0, 0.5), got {given!r}.")
    found = tuple(real(name, each, meaning, 0) for each in given)
    if list(found) != sorted(set(found)):
        raise ValueError(f"{name} must be {meaning}, got {given!r}.")
    return found


@checked()
class Transcription:
    """How to transcribe recordings. Checked when it is made.

    Defaults are those of Radford et al. 2022, section 4.5, but for text before, which is off.

    Attributes:
      language: of what is said, by code ("en") or English name; None to detect it in the first
        window. Not of English-only models.
      task: "transcribe", or "translate" into English.
      timestamps: whether a recording that fits one window has times, too. A longer one has them in
        any case.
      windows: how a longer recording is cut. "sequential": each window begins where the timestamps
        of the one before say, as in the reference implementation. "overlapping": all begin at fixed
        times, are decoded as a batch, and are joined where they overlap; faster, and sometimes
        otherwise at the seams.
      overlap: seconds that overlapping windows have in common.
      temperatures: the first is used. Where the result looks wrong, the next is.
      compression_ratio: a result looks wrong whose tokens zlib makes smaller by more than this
        factor: it repeats itself. None for any.
      log_prob: so does one whose tokens have a smaller mean of log p than this. None for any.
      no_speech: such a window is silence if the model says so with more than this probability.
        None: no window is.
      previous_text: whether a window continues the text of those before, up to half of the model's
        positions. Not of overlapping windows. Text from above temperature 0.5 is not continued.
      prompt: text that was said before, such as names to spell right. Of a long one the end is
        read, as much as of previous text.
      max_window_tokens: of the output of a window; None for as many as the model has positions for.

    Raises:
      ValueError: naming the option that has another type or is out of range, or two that do not go
        together.
    """

    language: str | None = None
    task: Literal["transcribe", "translate"] = "transcribe"
    timestamps: bool = False
    windows: Literal["sequential", "overlapping"] = "sequential"
    overlap: Annotated[float, Real("seconds, above 0 and at most 15", ABOVE_0, 15)] = 5.0
    temperatures: Annotated[Sequence[float], _temperatures] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio: Annotated[float, Real("above 0", ABOVE_0)] | None = 1.35
    log_prob: Annotated[float, Real("0 or less", most=0)] | None = -1.0
    no_speech: Share | None = 0.6
    previous_text: bool = False
    prompt: str | None = None
    max_window_tokens: Count | None = None

    def __post_init__(self):
        for name in ("language", "prompt"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a string or None, got {value!r}.")
        if self.previous_text and self.windows == "overlapping":
            raise ValueError(
                "previous_text needs windows one after another: leave it out with "
                'windows="overlapping".'
            )
        if self.no_speech is not None and self.log_prob is None:
            raise ValueError(
                "no_speech is of windows with a low log_prob: give log_prob, or no_speech=None."
            )
