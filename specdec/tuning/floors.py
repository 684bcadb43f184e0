"""What a block takes at least on a mesh of devices, from shapes and public figures alone.

A part's floor is max(bytes read / bandwidth, operations / peak) + bytes sent / interconnect
(:meth:`specdec.core.roofline.Work.floor`); a block's is the sum of its parts', as each needs what
the one before it found. ``costs.py`` measures the same parts where the devices are.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from specdec.core.roofline import Collective, Hardware, Work
from specdec.models.partitioning import DeviceMesh, cut_by
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import axis_sizes
from specdec.models.t5.share import DeviceShare


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a block.

    Attributes:
      name: what it is.
      work: of one time.
      times: how often a block does it.
    """

    name: str
    work: Work
    times: int = 1

    def floor(self, hardware: Hardware) -> float:
        """Seconds that all times take at least."""
        return self.times * self.work.floor(hardware)


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """A pair on a mesh.

    Attributes:
      target, draft: the models' shapes; no draft if it is no model, which costs nothing here.
      mesh: of how many devices, and how the models are cut. No device needs to be there.
      batch_size: rows decoded together, on all devices.
      gamma: guesses a block; 0 for plain decoding.
      input_len, output_len: S and L, the buckets.

    Raises:
      ValueError: the mesh does not divide a model or the batch (when it is asked for a share).
    """

    target: T5Config
    draft: T5Config | None
    mesh: DeviceMesh
    batch_size: int
    gamma: int
    input_len: int
    output_len: int

    @functools.cached_property
    def target_share(self) -> DeviceShare:
        """What a device has of the target."""
        return DeviceShare(self.target, self.mesh.planned_target, self.batch_size)

    @functools.cached_property
    def draft_share(self) -> DeviceShare | None:
        """What a device has of the draft model."""
        if self.draft is None:
            return None
        return DeviceShare(self.draft, self.mesh.planned_draft, self.batch_size)

    def memory(self) -> int:
        """Bytes on each device; activations come on top."""
        return self._memory(self.target_share, self.gamma + 1) + (
            0 if self.draft_share is None else self._memory(self.draft_share, 2)
        )

    def _memory(self, share: DeviceShare, width: int) -> int:
        caches = share.cache(self._cache_len) + share.cache(self.input_len)
        return share.weights + caches + share.logits(width)

    @property
    def _cache_len(self) -> int:
        return self.output_len + self.gamma + 1

    def plain(self) -> list[Part]:
        """One token of plain decoding."""
        work = self.target_share.call(1, self.output_len + 1, self.input_len)
        return [Part("target, 1 token", work), *self._ending()]

    def block(self) -> list[Part]:
        """One block, part by part. The draft's first call always feeds two tokens."""
        if not self.gamma:
            return self.plain()
        share, lengths = self.draft_share, (self._cache_len, self.input_len)
        parts = []
        if share is not None:
            parts.append(Part("draft, 2 tokens", share.call(2, *lengths)))
            if self.gamma > 1:
                parts.append(Part("draft, 1 token", share.call(1, *lengths), self.gamma - 1))
        width = self.gamma + 1
        parts.append(Part(f"target, {width} tokens", self.target_share.call(width, *lengths)))
        return [*parts, *self._ending()]

    def _ending(self) -> list[Part]:
        """Groups of devices tell each other whether their rows have ended: one bool."""
        if self.target_share.partitioning.ways("batch") == 1:
            return []
        onto = self.target_share.partitioning.onto("batch")
        flag = Collective("all-reduce", onto, self.mesh.data, size=1, count=1)
        return [Part("have all rows ended", Work(collectives=(flag,)))]

    def cost_ratio(self, hardware: Hardware) -> float:
        """c of these floors: a guess over a token of plain decoding."""
        drafting = [part for part in self.block() if part.name.startswith("draft")]
        return floor(drafting, hardware) / self.gamma / floor(self.plain(), hardware)

    def verify_ratio(self, hardware: Hardware) -> float:
        """v of these floors: the rest of a block over a token of plain decoding."""
        rest = [part for part in self.block() if not part.name.startswith("draft")]
        return floor(rest, hardware) / floor(self.plain(), hardware)

    def fitting_mesh(self, hardware: Hardware) -> DeviceMesh | None:
        """This mesh with the shortest model axis on which it fits in memory; None if none does."""
        sizes = cut_by("model", self.mesh.target_rules, axis_sizes(self.target))
        if self.draft is not None:
            sizes += cut_by("model", self.mesh.draft_rules, axis_sizes(self.draft))
        longest = math.gcd(*sizes) or 1
        for model in range(1, longest + 1):
            mesh = dataclasses.replace(self.mesh, model=model)
            if longest % model == 0 and (
                dataclasses.replace(self, mesh=mesh).memory() <= hardware.memory
            ):
                return mesh
        return None


def floor(parts: list[Part], hardware: Hardware) -> float:
    """Seconds that parts which follow one another take at least."""
    return sum(part.floor(hardware) for part in parts)
