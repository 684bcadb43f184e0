"""Compiled programs on disk: JAX's cache, in specdec's cache directory, on from the first program.

JAX's own setting wins: where it has a directory, or its cache is off, nothing is changed here.
``SPECDEC_KEEP_PROGRAMS=0`` leaves it off.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from specdec.core.machine import cache_directory, processor
from specdec.core.progress import say

VARIABLE = "SPECDEC_KEEP_PROGRAMS"
MOST_BYTES = 2**30  # Beyond it, those used longest ago are removed.
_LEAST_SECONDS = 0.1  # What compiles in less is not kept; JAX's default is 1.


@functools.cache  # Once a process.
def keep_programs() -> None:
    """Turns JAX's cache on disk on; what keeps it from that costs one line on stderr."""
    settings = jax.config.values
    if os.environ.get(VARIABLE) == "0" or not settings["jax_enable_compilation_cache"]:
        return
    if settings["jax_compilation_cache_dir"]:
        return
    # Code for one processor may not run on another, and home directories are shared.
    directory = cache_directory() / "compiled" / processor()
    if problem := _problem(directory):
        say(
            f"Compiled programs are not kept: {problem}. Set SPECDEC_CACHE to another directory, "
            f"or {VARIABLE}=0."
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    if settings["jax_compilation_cache_max_size"] == -1:
        jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    if settings["jax_persistent_cache_min_compile_time_secs"] == 1.0:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    compilation_cache.reset_cache()  # Else what was decided at the process's first program stays.


def kept() -> bool:
    """Whether programs are kept on disk."""
    settings = jax.config.values
    enabled, directory = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
    return bool(settings[enabled] and settings[directory])


def _problem(directory: Path) -> str | None:
    """The fault of a directory for programs, which are run as they are; it is made if need be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        return f"{directory} cannot be made ({error.strerror})"
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return f"{directory} cannot be written to"
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return f"{directory} is another user's"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to {directory}"
    return None
