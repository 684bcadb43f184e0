"""Sound: files by soundfile, other rates by soxr, arrays as they are."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

_MOST_CHANNELS = 32  # An array with more is channels by samples.
Audio = str | os.PathLike | np.ndarray  # A file, or samples: [N], or [N, channels].
_EXTRA = 'pip install ".[speech]" from a clone installs it'


class AudioError(ValueError):
    """Sound that cannot be read or decoded; its message is one line."""


def read_audio(
    audio: Audio, rate: int | None, wanted: int, name: str = "audio"
) -> Float[np.ndarray, " n"]:
    """Samples of one channel at a rate, in [-1, 1].

    Channels are averaged. Whole numbers, int16 or int32, are divided by the largest of their type.

    Args:
      audio: a file's path, or an array.
      rate: samples a second of an array; None for a file, which says it.
      wanted: samples a second of the result.
      name: of the sound, in messages.

    Raises:
      AudioError: there is no such file, it holds no sound, the array is none of samples, has none,
        or has NaN or infinity; or the rate is missing, or no rate.
    """
    if isinstance(audio, str | os.PathLike):
        if rate is not None:
            raise AudioError(f"{audio} has its rate in the file: leave rate out, got {rate!r}.")
        name = str(audio)
        samples, rate = _read_file(Path(audio))
    else:
        samples = _checked(audio, name)
        if rate is None:
            raise AudioError(f"{name} is an array: give its rate, in samples a second.")
    if (
        isinstance(rate, bool)
        or not isinstance(rate, int | np.integer)
        or not 1000 <= rate <= 10**6
    ):
        raise AudioError(
            f"rate must be samples a second, a whole number in 1000..1000000, got {rate!r}."
        )
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    if not len(samples):
        raise AudioError(f"{name} has no samples: it lasts 0 s.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} has samples that are NaN or infinite.")
    return _resampled(samples, int(rate), wanted)


def duration(path: Path) -> float:
    """Seconds of a file by its header.

    Raises:
      AudioError: there is no such file, or it holds no sound.
    """
    with _opened(path) as file:
        return file.frames / file.samplerate


def _checked(audio: Any, name: str) -> np.ndarray:
    samples = np.asarray(audio)
    whole = samples.dtype in (np.int16, np.int32)
    shaped = samples.ndim == 1 or (samples.ndim == 2 and 0 < samples.shape[1] <= _MOST_CHANNELS)
    if not shaped or not (whole or np.issubdtype(samples.dtype, np.floating)):
        raise AudioError(
            f"{name} must be a file's path or an array of samples, [samples] or [samples, "
            f"channels], float, int16 or int32; got one of {samples.dtype} {list(samples.shape)}."
        )
    if whole:
        return samples / np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))
    return samples.astype(np.float32)


def _read_file(path: Path) -> tuple[np.ndarray, int]:
    with _opened(path) as file:
        return file.read(dtype="float32"), file.samplerate


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of sound, opened by soundfile."""
    if not path.is_file():
        raise AudioError(f"{path} is no file.")
    try:
        import soundfile
    except ImportError:
        raise ImportError(f"Audio files are read by soundfile; {_EXTRA}.") from None
    try:
        with soundfile.SoundFile(path) as file:
            yield file
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{path} is no sound that can be read ({error.error_string}): convert "
            "it to WAV, FLAC, Ogg or MP3."
        ) from None


def _resampled(samples: Float[np.ndarray, " n"], rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return np.asarray(samples, np.float32)
    try:
        import soxr
    except ImportError:
        raise ImportError(f"Sound of other rates is resampled by soxr; {_EXTRA}.") from None
    return np.asarray(soxr.resample(samples, rate, wanted), np.float32)


def seconds(samples: Float[np.ndarray, " n"], rate: int) -> float:
    """Duration, rounded up to hundredths."""
    return math.ceil(100 * len(samples) / rate) / 100
