"""Messages between the processes of JAX's distributed runtime, all of which come to each call."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

_SMALLEST_MESSAGE = 1024


class ProcessGone(Exception):
    """Another process has gone, so that nothing that all of them do can end.

    Args:
      found: JAX's error, from which it is known.
    """

    def __init__(self, found: Exception):
        super().__init__(
            "Another process of this run has gone; its own messages say why. Start all of them "
            "again with the same output directories to go on. (JAX found: "
            f"{str(found).partition(chr(10))[0]})"
        )


def exchange(mine: bytes) -> list[bytes]:
    """The bytes of each process, by index; raises ProcessGone if one has gone."""
    if jax.process_count() == 1:
        return [mine]
    try:
        sizes = multihost_utils.process_allgather(np.int32(len(mine))).tolist()
        # A power of two, so that few programs are compiled.
        longest = max(_SMALLEST_MESSAGE, 1 << (max(sizes) - 1).bit_length())
        padded = np.zeros(longest, np.uint8)
        padded[: len(mine)] = np.frombuffer(mine, np.uint8)
        given = multihost_utils.process_allgather(padded)
    except jax.errors.JaxRuntimeError as error:
        raise ProcessGone(error) from error
    return [row[:size].tobytes() for row, size in zip(given, sizes, strict=True)]
