"""Compiled programs are kept between runs of the scripts."""

from __future__ import annotations

import os

import jax

from specdec.core.machine import cache_directory


def use_compilation_cache() -> None:
    """Turns on JAX's persistent cache, in specdec's cache directory unless JAX was told another.

    ``JAX_ENABLE_COMPILATION_CACHE=false`` turns it off again.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "programs"))
