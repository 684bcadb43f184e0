"""What a block takes at least on a mesh of devices, from shapes and public figures alone.

A part's floor is max(bytes read / bandwidth, operations / peak) + bytes sent / interconnect
(:meth:`specdec.core.roofline.Load.floor`); a block's is the sum of its parts', as each needs what
the one before it found. ``costs.py`` measures the same parts where the devices are.
"""

from __future__ import annotations

import dataclasses
import math

from specdec.checkpoints.architectures import Config, DeviceShare, axis_sizes
from specdec.core.roofline import Collective, Hardware, Load
from specdec.models.partitioning import DeviceMesh

_PENDING = 2  # Tokens that the first draft call of a block always feeds.


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a block, which does ``work`` so many times."""

    name: str
    work: Load
    times: int = 1

    def floor(self, hardware: Hardware) -> float:
        """Seconds that all times take at least."""
        return self.times * self.work.floor(hardware)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a model on each device.

    Attributes:
      weights: all parameters, packed.
      cache, cross: the self-attention cache, and the cross-attention's keys and values.
      logits: of one call.
    """

    weights: int
    cache: int
    cross: int
    logits: int

    @property
    def total(self) -> int:
        """All but activations."""
        return self.weights + self.cache + self.cross + self.logits


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

    target: Config
    draft: Config | None
    mesh: DeviceMesh
    batch_size: int
    gamma: int
    input_len: int
    output_len: int

    @property
    def target_share(self) -> DeviceShare:
        """What a device has of the target."""
        return DeviceShare(self.target, self.mesh.planned_target, self.batch_size)

    @property
    def draft_share(self) -> DeviceShare | None:
        """What a device has of the draft model."""
        if self.draft is None:
            return None
        return DeviceShare(self.draft, self.mesh.planned_draft, self.batch_size)

    @property
    def unplanned(self) -> list[str]:
        """Axes that are cut in ways of which only :meth:`memory` is known."""
        draft = [] if self.draft_share is None else self.draft_share.unplanned
        return [*self.target_share.unplanned, *draft]

    def memory(self) -> list[Memory]:
        """What each device holds of the target, and of the draft if it is a model."""
        cached, inputs = self._cache_len, self.input_len
        return [
            Memory(share.weights, share.cache(cached), share.cache(inputs), share.logits(width))
            for share, width in ((self.target_share, self.gamma + 1), (self.draft_share, _PENDING))
            if share is not None
        ]

    @property
    def needed(self) -> int:
        """Bytes that each device holds of both."""
        return sum(memory.total for memory in self.memory())

    @property
    def _cache_len(self) -> int:
        return self.output_len + self.gamma + 1

    def plain(self) -> list[Part]:
        """One token of plain decoding."""
        work = self.target_share.call(1, self.output_len + 1, self.input_len)
        return [Part("target, 1 token", work), *self._ending()]

    def block(self) -> list[Part]:
        """One block, part by part."""
        return [*self.drafting(), *self.verifying()]

    def drafting(self) -> list[Part]:
        """A block's guesses; nothing if the draft is no model."""
        share = self.draft_share
        if share is None or not self.gamma:
            return []
        lengths = (self._cache_len, self.input_len)
        parts = [Part(f"draft, {_PENDING} tokens", share.call(_PENDING, *lengths, scored=1))]
        if self.gamma > 1:
            parts.append(Part("draft, 1 token", share.call(1, *lengths), self.gamma - 1))
        return parts

    def verifying(self) -> list[Part]:
        """The rest of a block."""
        if not self.gamma:
            return self.plain()
        width = self.gamma + 1
        work = self.target_share.call(width, self._cache_len, self.input_len)
        return [Part(f"target, {width} tokens", work), *self._ending()]

    def _ending(self) -> list[Part]:
        """Groups of devices tell each other whether their rows have ended: one bool."""
        onto = self.target_share.cut_over("batch")
        if onto is None:
            return []
        devices = self.target_share.partitioning.mesh.shape[onto]
        flag = Collective("all-reduce", onto, devices, size=1, count=1)
        return [Part("have all rows ended", Load(collectives=(flag,)))]

    def cost_ratio(self, hardware: Hardware) -> float:
        """c of these floors: a guess over a token of plain decoding."""
        return floor(self.drafting(), hardware) / self.gamma / floor(self.plain(), hardware)

    def verify_ratio(self, hardware: Hardware) -> float:
        """v of these floors: the rest of a block over a token of plain decoding."""
        return floor(self.verifying(), hardware) / floor(self.plain(), hardware)

    def fitting_mesh(self, hardware: Hardware) -> DeviceMesh | None:
        """This mesh with the shortest model axis on which it fits in memory; None if none does."""
        memory, mesh = hardware.memory, self.mesh
        sides = ((mesh.planned_target, self.target), (mesh.planned_draft, self.draft))
        cut = [
            size
            for rules, config in sides
            if config is not None
            for axis, (_, size) in axis_sizes(config).items()
            if rules.onto(axis) == "model"
        ]
        longest = math.gcd(*cut) or 1
        for model in range(1, longest + 1):
            mesh = dataclasses.replace(self.mesh, model=model)
            if longest % model == 0 and dataclasses.replace(self, mesh=mesh).needed <= memory:
                return mesh
        return None


def floor(parts: list[Part], hardware: Hardware) -> float:
    """Seconds that parts which follow one another take at least."""
    return sum(part.floor(hardware) for part in parts)
