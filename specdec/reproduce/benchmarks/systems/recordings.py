"""Recordings of a workload, as each system hears them."""

from __future__ import annotations

import numpy as np

from specdec.reproduce.benchmarks.contract import Workload
from specdec.speech.audio import read_audio

RATE = 16_000  # Whisper's samples a second.


def samples(workload: Workload, row: int) -> np.ndarray:
    """Samples of a recording at 16 kHz, as long as the workload asks."""
    heard = read_audio(workload.recordings[row], None, RATE)
    return heard if workload.seconds is None else np.resize(heard, round(workload.seconds * RATE))


def shortened(heard: np.ndarray, lengths: object) -> tuple[np.ndarray, bool]:
    """The samples of a decode; of one token only the first window is heard.

    Args:
      lengths: as ``decode`` gets it: [1] asks for one token.
    """
    first = lengths == [1]
    return (heard[: 30 * RATE] if first else heard), first
