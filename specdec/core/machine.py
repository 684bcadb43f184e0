"""The machine that this runs on, and the cache directory for measurements on it."""

from __future__ import annotations

import functools
import os
import platform
import zlib
from pathlib import Path

import jax
import numpy as np

from specdec.types import Params


def device_name() -> str:
    """Kind and number of the devices, such as "2 cores of AMD EPYC"."""
    devices = jax.devices()
    if devices[0].platform != "cpu":
        return f"{len(devices)} x {devices[0].device_kind}"
    return f"{num_cores()} cores of {_cpu_name()}"


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def vector_registers() -> int:
    """Number of vectors that a core keeps at once: 32 with AVX-512, else taken to be AVX2's 16."""
    return 32 if "avx512f" in _cpu_info("flags").split() else 16


def processor() -> str:
    """Eight hex digits for the kind of processor, by which programs compiled for it are kept."""
    kind = f"{platform.machine()} {_cpu_name()} {_cpu_info('flags')}"
    return f"{zlib.crc32(kind.encode()):08x}"


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(name: str) -> str:
    """Linux's entry for the first processor; empty elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def fingerprint(params: Params, *, common: bool = False) -> str:
    """Eight hex digits that change when the parameters are trained again.

    Of each array only the first entries count, on a mesh those of its first part: reading a large
    model whole takes a while.

    Args:
      common: whether only arrays count that every device holds whole.
    """
    crc = 0
    for leaf in jax.tree.leaves(params):
        if common and not leaf.is_fully_replicated:
            continue
        part = leaf.addressable_shards[0].data
        crc = zlib.crc32(np.asarray(part.reshape(-1)[:1024]).tobytes(), crc)
    return f"{crc:08x}"


def cache_directory() -> Path:
    """``$SPECDEC_CACHE``, or specdec's folder in the user's cache directory. Need not exist."""
    given = os.environ.get("SPECDEC_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"
