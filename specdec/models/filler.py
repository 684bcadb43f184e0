"""Filler behind the tokens of a call, so that calls have sizes that an accelerator likes.

See :meth:`specdec.core.platforms.Platform.tile_for`. Filler is written into the cache behind the
call's own tokens, where the next call writes, and no token that counts attends to it. Barriers keep
a compiler from leaving it out again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from specdec.core import platforms


def amount(batch: int, count: int) -> int:
    """Tokens of filler behind ``count`` tokens of each row."""
    return -count % platforms.current().tile_for(batch)


def cache_size(batch: int, tokens: int) -> int:
    """Entries of a cache for so many tokens a row, and for filler behind the last.

    A multiple of two tiles: so plain decoding and short blocks attend to equally many. On CPU they
    fill whole vectors; see ``products/sums.py``.
    """
    platform = platforms.current()
    tile = platform.tile_for(batch)
    step = 2 * tile if tile > 1 else platform.entry_step
    return -(-(tokens + tile - 1) // step) * step


def shared(tokens: int) -> int:
    """Entries that a decode loop has for inputs of so many tokens.

    They are more, so that inputs of several lengths run the same loop. What is behind is hidden.
    """
    step = platforms.current().input_step
    return -(-tokens // step) * step


def filled(x: Shaped[Array, "b t ..."], more: int) -> Shaped[Array, "b tm ..."]:
    """The tokens, or an array of theirs, with so much filler behind them."""
    if not more:
        return x
    return jax.lax.optimization_barrier(jnp.pad(x, ((0, 0), (0, more), *[(0, 0)] * (x.ndim - 2))))


def without(x: Shaped[Array, "b tm ..."], more: int) -> Shaped[Array, "b t ..."]:
    """Result of the real tokens alone."""
    return jax.lax.optimization_barrier(x)[:, :-more] if more else x
