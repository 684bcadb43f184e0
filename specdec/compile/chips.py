"""Chips to compile for, with their makers' public figures, and slices of several of them."""

from __future__ import annotations

import dataclasses
import math
import re

from specdec.core.platforms import GPU, TPU, Platform

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of device.

    Attributes:
      name: by which users ask for it.
      label: its maker's name.
      platform: of its programs.
      memory: bytes it has.
      bandwidth: bytes of it that can be read, a second.
      clock: cycles a second that the compiler's estimates are in; None where it makes none.
      cores: TensorCores of a chip, which Google's names of slices count; 1 where they count chips.
      dimensions: of the torus that slices are cut from; 0 for GPUs.
    """

    name: str
    label: str
    platform: Platform
    memory: float
    bandwidth: float
    clock: float | None = None
    cores: int = 1
    dimensions: int = 0


CHIPS = {
    chip.name: chip
    for chip in (
        # https://docs.cloud.google.com/tpu/docs/v4. The clock is that at which 2 x 4
        # matrix units of 128 x 128 reach the peak.
        Chip("v4", "TPU v4", TPU, 32 * _GIB, 1.2e12, 1.05e9, 2, 3),
        # https://docs.cloud.google.com/tpu/docs/v5e. The clock: as above, of 4 matrix units.
        Chip("v5e", "TPU v5e", TPU, 16 * _GIB, 819e9, 1.5e9, 1, 2),
        # https://docs.cloud.google.com/tpu/docs/v5p. The clock: as above, of 2 x 4.
        Chip("v5p", "TPU v5p", TPU, 95 * _GIB, 2.765e12, 1.75e9, 2, 3),
        # https://docs.cloud.google.com/tpu/docs/v6e. The clock is not confirmed.
        Chip("v6e", "TPU v6e", TPU, 32 * _GIB, 1.6e12, 1.75e9, 1, 2),
        # https://www.nvidia.com/en-us/data-center/h100, SXM.
        Chip("h100", "H100", GPU, 80e9, 3.35e12),
        # https://www.nvidia.com/en-us/data-center/h200, SXM.
        Chip("h200", "H200", GPU, 141e9, 4.8e12),
    )
}
# Chips of a slice to how they stand. Whole hosts, of 4 chips; a slice of 8 in a plane is one host.
_SHAPES = {
    2: {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16),
        256: (16, 16)},
    3: {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4),
        128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8)},
}  # fmt: skip
_ONE_HOST = 8  # Chips in a plane that one host has at most; of larger slices each has four.
_NAME = re.compile(r"([a-z]\w*?)(?:-(\d+))?")
_OTHER_NAMES = {"v5litepod": "v5e"}  # Google's.


@dataclasses.dataclass(frozen=True)
class Slice:
    """Several chips that compute together."""

    name: str  # As it was asked for.
    chip: Chip
    count: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Grid of the chips of a TPU's slice; for one chip, of its host."""
        shapes = _SHAPES[self.chip.dimensions]
        return shapes[max(self.count, min(shapes))]

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Grid of the chips of one host of a TPU's slice."""
        if self.chip.dimensions == 3:
            return (2, 2, 1)
        return self.shape if math.prod(self.shape) <= _ONE_HOST else (2, 2)

    @property
    def hosts(self) -> int:
        """Hosts, each of which runs a process."""
        if self.count == 1:
            return 1
        return math.prod(self.shape) // math.prod(self.host_shape)

    def __str__(self) -> str:
        many = "" if self.count == 1 else f"{self.count} x "
        where = "" if self.hosts == 1 else f" on {self.hosts} hosts"
        return f"{many}{self.chip.label}{where}"


def find(name: str) -> Slice:
    """A chip by its name ("v4"), or a slice by Google's ("v4-8" is four chips, "v5e-8" eight on one
    host, "v5e-16" sixteen on four hosts).

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    chip = CHIPS.get(_OTHER_NAMES.get(match[1], match[1])) if match else None
    if match and chip:
        if match[2] is None:
            return Slice(name, chip)
        count, rest = divmod(int(match[2]), chip.cores)
        if not rest and count in _SHAPES.get(chip.dimensions, {}):
            return Slice(name, chip, count)
    slices = (
        f"{each.name}-{'/'.join(str(count * each.cores) for count in _SHAPES[each.dimensions])}"
        for each in CHIPS.values()
        if each.dimensions
    )
    raise ValueError(
        f"No chip or slice is called {name!r}. One chip: {', '.join(CHIPS)}. Slices "
        f"of several: {', '.join(slices)} (of v4 and v5p the number counts TensorCores, of which "
        "each chip has two)."
    )
