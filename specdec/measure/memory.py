"""How much memory a decode needs on each device, from the shapes of its models alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from specdec.checkpoints.architectures import Config, decode_model
from specdec.checkpoints.share import Beyond, DeviceShare, FewBits
from specdec.drafters.shape import Tree
from specdec.models.partitioning import DeviceMesh

_PENDING = 2  # Tokens that the first draft call of a block always feeds.


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
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

    def held(self) -> list[dict[str, int]]:
        """Bytes a device holds of the target, and of the draft if it is a model, by what of."""
        return [
            {"all parameters": share.weights,
             "self-attention cache": share.self_cache(cached, self.input_len),
             "cross-attention keys and values": share.own_cross_cache(self.input_len),
             "logits of one call": share.logits(width)}
            for share, cached, width in self._sides
        ]  # fmt: skip

    @property
    def needed(self) -> int:
        """Bytes that each device holds of both."""
        return sum(sum(held.values()) for held in self.held())

    def read(self) -> list[int]:
        """Bytes of each model's weights that a device reads in each decode step."""
        return [share.step_weights for share in self._shares]

    def beyond_windows(self, beams: int) -> list[Beyond]:
        """What the self-attention caches hold behind all windows, of target and draft."""
        return [
            share.beyond_windows(cached, self.input_len, width, beams)
            for share, cached, width in self._sides
        ]

    def fitting_mesh(self, memory: float) -> DeviceMesh | None:
        """This mesh with the shortest model axis on which each device holds at most ``memory``.

        None if there is none.
        """
        sides = ((self.mesh.planned_target, self.target), (self.mesh.planned_draft, self.draft))
        cut = [
            size
            for rules, config in sides
            if config is not None
            for axis, sizes in decode_model(config, "in_out").axis_sizes.items()
            if rules.onto(axis) == "model"
            for size in sizes.values()
        ]
        longest = math.gcd(*cut) or 1
        for model in range(1, longest + 1):
            mesh = dataclasses.replace(self.mesh, model=model)
            if longest % model == 0 and dataclasses.replace(self, mesh=mesh).needed <= memory:
                return mesh
        return None

    @property
    def _shares(self) -> list[DeviceShare]:
        target = self.mesh.planned_target
        shares = [DeviceShare(self.target, target, self.batch_size, self.target_bits)]
        if self.draft is not None:
            few = self.draft_bits
            of_target = few is not None and few.what == "of target"
            rules = target if of_target else self.mesh.planned_draft
            shares.append(DeviceShare(self.draft, rules, self.batch_size, few))
        return shares

    @property
    def _sides(self) -> Iterator[tuple[DeviceShare, int, int]]:
        """Of each model: its share, its cache's capacity, and tokens of its longest call."""
        nodes, fed = self.gamma if self.tree is None else self.tree.size, self._fed
        cached = draft_cached = self.output_len + nodes + 1
        if self.tree is not None:  # Whose leaves the draft never reads.
            draft_cached = self.output_len + sum(fed) + 1 + _PENDING
        sizes = ((cached, nodes + 1), (draft_cached, max([_PENDING, *fed])))
        for share, (capacity, width) in zip(self._shares, sizes, strict=False):
            yield share, capacity, width

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
