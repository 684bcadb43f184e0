"""The kinds of device that programs are compiled for, and what is done differently for each.

Code that is traced asks :func:`current`, never JAX, which device it is for. So a decode for a TPU
can be compiled on a machine without one (:mod:`specdec.compile`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Literal

import jax

Layout = Literal["out_in", "in_out"]


@dataclasses.dataclass(frozen=True)
class Platform:
    """The platform that programs are compiled for: a kind of device, and what follows from it.

    Attributes:
      name: as JAX has it.
      layout: how a model's kernels are stored; see :mod:`specdec.models.products`.
      tile: tokens of a row's call, at least; see :meth:`tile_for`.
      tile_rows: the most tokens of a product that filler may make it.
      input_step: of the entries of inputs that a decode loop has; see
        :func:`specdec.models.filler.shared`.
      entry_step: of the entries of a cache; see :func:`specdec.models.filler.cache_size`.
      bits_a_pass: of a number that is searched by passes over a vocabulary. More are fewer passes
        of more arithmetic, which costs an accelerator less than starting them.
      heads_side_by_side: whether caches of few heads have them so; see
        :mod:`specdec.models.attention`.
      fused: whether layers have kernels of ours; see :mod:`specdec.models.products.fused`.
    """

    name: Literal["cpu", "gpu", "tpu"]
    layout: Layout
    tile: int = 1
    tile_rows: int = 0
    input_step: int = 1
    entry_step: int = 1
    bits_a_pass: int = 1
    heads_side_by_side: bool = False
    fused: bool = False

    def tile_for(self, batch: int) -> int:
        """The tile of each row's calls: their tokens are a multiple of it; 1 for no filler.

        A product of one token leaves an accelerator's matrix unit: on a TPU it is three times
        slower than one of eight, which costs no more than reading the weights, and on a GPU it is
        two kernels. And with calls of one size plain decoding, drafts and verification of up to
        seven guesses do the same arithmetic, so that greedy tokens do not depend on gamma. Many
        rows fill the unit by themselves, and filler would cost arithmetic.
        """
        return self.tile if batch * self.tile <= self.tile_rows else 1

    @property
    def without_kernels(self) -> Platform:
        """This platform without our kernels: the compiler's own operations have gradients."""
        return dataclasses.replace(self, fused=False)


CPU = Platform("cpu", "out_in", input_step=64, entry_step=16)
GPU = Platform("gpu", "in_out", tile=8, tile_rows=128, bits_a_pass=4, fused=True)
TPU = Platform("tpu", "in_out", tile=8, tile_rows=128, bits_a_pass=4, heads_side_by_side=True)
PLATFORMS = {platform.name: platform for platform in (CPU, GPU, TPU)}

_compiling: contextvars.ContextVar[Platform | None] = contextvars.ContextVar(
    "platform", default=None
)


def current() -> Platform:
    """The platform of programs: that of :func:`compiling_for`, or of JAX's default device."""
    return _compiling.get() or PLATFORMS[jax.default_backend()]


@contextlib.contextmanager
def compiling_for(platform: Platform) -> Iterator[None]:
    """Models that are made and programs that are traced while it lasts are for this platform."""
    token = _compiling.set(platform)
    try:
        yield
    finally:
        _compiling.reset(token)
