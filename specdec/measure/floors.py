"""The least time of a block on a mesh of devices, from shapes and public figures alone.

A block's floor is the sum of its parts' (:meth:`specdec.core.roofline.Load.floor`), as each needs
what the one before it found. ``costs.py`` measures the same parts where the devices are.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from specdec.checkpoints.architectures import Config, decode_model
from specdec.core.roofline import Collective, Hardware, Load
from specdec.drafters.shape import Tree
from specdec.measure.device_share import Beyond, DeviceShare, FewBits
from specdec.models.partitioning import DeviceMesh

_PENDING = 2  # Tokens that the first draft call of a block always feeds.


@dataclasses.dataclass(frozen=True)
class BlockPart:
    """A part of a block, which does ``work`` so many times."""

    name: str
    work: Load
    times: int = 1


def floor(parts: Sequence[BlockPart], hardware: Hardware) -> float:
    """Seconds that parts which follow one another take at least."""
    return sum(part.times * part.work.floor(hardware) for part in parts)


def _named(model: str, tokens: int) -> str:
    return f"{model}, {tokens} token{'s' * (tokens > 1)}"


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """A pair on a mesh.

    Raises:
      ValueError: the mesh does not divide a model or the batch (when it is asked for a share).
    """

    # The models' shapes; no draft if it is no model, which costs nothing here.
    target: Config
    draft: Config | None
    # Of how many devices, and how the models are cut. No device needs to be there.
    mesh: DeviceMesh
    batch_size: int  # Rows decoded together, on all devices.
    gamma: int  # Guesses in a row, the levels of a tree; 0 for plain decoding.
    # S and L, the buckets.
    input_len: int
    output_len: int
    # None for weights of the models' dtypes.
    target_bits: FewBits | None = None
    draft_bits: FewBits | None = None
    tree: Tree | None = None  # None for chains.

    @property
    def target_share(self) -> DeviceShare:
        """What a device has of the target."""
        rules = self.mesh.planned_target
        return DeviceShare(self.target, rules, self.batch_size, self.target_bits)

    @property
    def draft_share(self) -> DeviceShare | None:
        """What a device has of the draft model."""
        draft, few = self.draft, self.draft_bits
        if draft is None:
            return None
        of_target = few is not None and few.what == "of target"
        rules = self.mesh.planned_target if of_target else self.mesh.planned_draft
        return DeviceShare(draft, rules, self.batch_size, few)

    @property
    def _shares(self) -> list[DeviceShare]:
        return [share for share in (self.target_share, self.draft_share) if share is not None]

    @property
    def unplanned(self) -> list[str]:
        """Axes that are cut in ways of which only :meth:`memory` is known."""
        return [axis for share in self._shares for axis in share.unplanned]

    def memory(self) -> list[dict[str, int]]:
        """Bytes a device holds of the target, and of the draft if it is a model, by what of."""
        return [
            {"all parameters": share.weights,
             "self-attention cache": share.self_cache(cached, self.input_len),
             "cross-attention keys and values": share.own_cross_cache(self.input_len),
             "logits of one call": share.logits(width)}
            for share, cached, width in self._sides
        ]  # fmt: skip

    def beyond_windows(self, beams: int) -> list[Beyond]:
        """What the self-attention caches hold behind all windows, of target and draft."""
        return [
            share.beyond_windows(cached, self.input_len, width, beams)
            for share, cached, width in self._sides
        ]

    @property
    def _sides(self) -> Iterator[tuple[DeviceShare, int, int]]:
        """Of each model: its share, its cache's capacity, and tokens of its longest call."""
        cached = (self._cached, self._draft_cached)
        widths = (self.nodes + 1, max([_PENDING, *self._fed]))
        return zip(self._shares, cached, widths, strict=False)

    @property
    def needed(self) -> int:
        """Bytes that each device holds of both."""
        return sum(sum(held.values()) for held in self.memory())

    @property
    def step_ratio(self) -> float:
        """Weights that a step of the draft model reads over those of the target's."""
        target, draft = self._shares
        return draft.step_weights / target.step_weights

    @property
    def nodes(self) -> int:
        """Guesses a block; the target scores one token more."""
        return self.gamma if self.tree is None else self.tree.size

    @property
    def _fed(self) -> list[int]:
        """Guesses that each draft call after the first takes: of a tree, a level's inner nodes."""
        if self.tree is None:
            return [1] * (self.gamma - 1)
        topology = self.tree.topology
        if topology is None:
            return [self.tree.most_siblings] * (self.gamma - 1)
        inner = sorted(set(topology.parents) - {-1})
        return np.bincount(topology.depths()[inner]).tolist()

    @property
    def _cached(self) -> int:
        """Capacity of the target's self-attention cache."""
        return self.output_len + self.nodes + 1

    @property
    def _draft_cached(self) -> int:
        """The same of the draft's, where a tree's leaves never are."""
        if self.tree is None:
            return self._cached
        return self.output_len + sum(self._fed) + 1 + _PENDING

    def plain(self) -> list[BlockPart]:
        """One token of plain decoding."""
        return dataclasses.replace(self, gamma=0, tree=None).verifying()

    def block(self) -> list[BlockPart]:
        """One block, part by part."""
        return [*self.drafting(), *self.verifying()]

    def drafting(self) -> list[BlockPart]:
        """A block's guesses; nothing if the draft is no model."""
        share = self.draft_share
        if share is None or not self.gamma:
            return []
        lengths = self._draft_cached, self.input_len
        pending = share.call(_PENDING, *lengths, scored=1)
        parts = [BlockPart(_named("draft", _PENDING), pending)]
        for tokens, times in sorted(Counter(self._fed).items()):
            parts.append(BlockPart(_named("draft", tokens), share.call(tokens, *lengths), times))
        return parts

    def verifying(self) -> list[BlockPart]:
        """The rest of a block: the target's call, and one bool between groups of devices."""
        share, width = self.target_share, self.nodes + 1
        call = share.call(width, self._cached, self.input_len)
        parts = [BlockPart(_named("target", width), call)]
        if (onto := share.cut_over("batch")) is not None:
            devices = share.partitioning.mesh.shape[onto]
            flag = Collective("all-reduce", onto, devices, size=1, count=1)
            parts.append(BlockPart("have all rows ended", Load(collectives=(flag,))))
        return parts

    def cost_ratio(self, hardware: Hardware) -> float:
        """c of these floors: a guess over a token of plain decoding."""
        return floor(self.drafting(), hardware) / self.gamma / floor(self.plain(), hardware)

    def verify_ratio(self, hardware: Hardware) -> float:
        """v of these floors: the rest of a block over a token of plain decoding."""
        return floor(self.verifying(), hardware) / floor(self.plain(), hardware)

    def fitting_mesh(self, hardware: Hardware) -> DeviceMesh | None:
        """This mesh with the shortest model axis on which it fits in memory; None if none does."""
        sides = ((self.mesh.planned_target, self.target), (self.mesh.planned_draft, self.draft))
        cut = [
            size
            for rules, config in sides
            if config is not None
            for axis, sizes in decode_model(config, "in_out").axis_sizes.items()
            if rules.onto(axis) == "model"
            for size in sizes.values()
        ]
        longest, memory = math.gcd(*cut) or 1, hardware.memory
        for model in range(1, longest + 1):
            mesh = dataclasses.replace(self.mesh, model=model)
            if longest % model == 0 and dataclasses.replace(self, mesh=mesh).needed <= memory:
                return mesh
        return None
