"""How fast a device can be at best: bytes, operations and messages against its public figures.

The roofline model of Williams, Waterman and Patterson (2009), with one roof more for what a device
sends to others.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One device's figures; ``configs/hardware`` has those that vendors publish.

    Raises ValueError for a figure that is not set to a positive number.
    """

    name: str = "device"
    memory: float = math.nan  # Bytes it has.
    bandwidth: float = math.nan  # Bytes of it that can be read, a second.
    peak: float = math.nan  # bfloat16 operations a second; multiply and add are two.
    interconnect: float = math.nan  # Bytes it can send a second, over all its links.

    def __post_init__(self):
        for field in ("memory", "bandwidth", "peak", "interconnect"):
            value = getattr(self, field)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(
                    f"Hardware.{field} must be set to a positive number, got {value!r}."
                )


@dataclasses.dataclass(frozen=True)
class Collective:
    """Messages between the devices along one axis of a mesh."""

    kind: Literal["all-reduce", "all-gather"]  # The one sums arrays, the other joins parts.
    axis: str
    devices: int  # Along that axis.
    size: int  # Bytes of one result, which each device then holds.
    count: int

    @property
    def sent(self) -> float:
        """Bytes each device sends in a ring, which sends the fewest: 2(n-1)/n or (n-1)/n of it."""
        passes = 2 if self.kind == "all-reduce" else 1
        return self.count * self.size * passes * (self.devices - 1) / self.devices


@dataclasses.dataclass(frozen=True)
class Load:
    """What each device does in one part of a program."""

    read: float = 0  # Bytes of its memory.
    operations: float = 0  # See :attr:`Hardware.peak`.
    collectives: tuple[Collective, ...] = ()

    @property
    def sent(self) -> float:
        """Bytes sent to other devices."""
        return sum(collective.sent for collective in self.collectives)

    @property
    def num_collectives(self) -> int:
        """How often devices wait for each other."""
        return sum(collective.count for collective in self.collectives)

    def floor(self, hardware: Hardware) -> float:
        """Least seconds, max(read / bandwidth, operations / peak) + sent / interconnect.

        Reading may hide behind arithmetic; a layer's sums may not, as the next layer needs them.
        Latency is not in it, nor what is written.
        """
        times = self._times(hardware)
        return max(times["memory"], times["arithmetic"]) + times["messages"]

    def bound(self, hardware: Hardware) -> str:
        """The largest of the three: "memory", "arithmetic" or "messages"."""
        times = self._times(hardware)
        return max(times, key=lambda name: times[name])

    def _times(self, hardware: Hardware) -> dict[str, float]:
        return {
            "memory": self.read / hardware.bandwidth,
            "arithmetic": self.operations / hardware.peak,
            "messages": self.sent / hardware.interconnect,
        }
