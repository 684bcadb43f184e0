"""How speculation scales over devices, rows and inputs: the numbers and tables of docs/scaling.md.

All of it is floors (``floors.py``): shapes and public figures, nothing measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.checkpoints.architectures import Config
from specdec.core.roofline import Hardware
from specdec.core.theory import expected_tokens, speedup
from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.reproduction import paper
from specdec.reproduction.floors import BlockPlan, floor

Rows = list[dict[str, Any]]

LENGTH = 256  # Of inputs and outputs, as T5X's WMT recipe has them.
GAMMA = 7  # The paper's for English to German at temperature 0.
GAMMAS = range(1, 17)
BATCHES = (1, 4, 16, 64, 256, 1024)
INPUTS = (128, 512, 2048, 8192)
INPUT_BATCHES = (1, 32)
DRAFT_MESHES = (1, 2, 4, 8, 16, 32)
DEVICES = 8  # Of the tables that vary something else.
# Alpha of a draft of this size under T5-XXL, English to German, temperature 0: the paper's Table 4.
ALPHAS = {
    row.draft.removeprefix("T5-"): row.alpha
    for row in paper.TABLE_4
    if (row.task, row.temperature) == ("EnDe", 0)
}


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """What the tables are of.

    Attributes:
      targets: by name.
      drafts: by size, as in :data:`ALPHAS`.
      hardware: the devices compared; tables that vary something else have the first.
    """

    targets: Mapping[str, Config]
    drafts: Mapping[str, Config]
    hardware: Sequence[Hardware]

    def run(self) -> dict[str, Any]:
        """All numbers, for ``summary.json``."""
        return {
            "gamma": GAMMA,
            "length": LENGTH,
            "alphas": ALPHAS,
            "hardware": [
                {**dataclasses.asdict(each), "ridge": each.ridge} for each in self.hardware
            ],
            "models": self._models(),
            "meshes": self._meshes(),
            "drafts": self._drafts(),
            "batches": self._batches(),
            "axes": self._axes(),
            "inputs": self._inputs(),
        }

    def _plan(self, target: str, draft: str, mesh: DeviceMesh, **settings: Any) -> BlockPlan:
        plan = BlockPlan(
            self.targets[target], self.drafts[draft], mesh,
            batch_size=1, gamma=GAMMA, input_len=LENGTH, output_len=LENGTH,
        )  # fmt: skip
        return dataclasses.replace(plan, **settings)

    def _models(self) -> Rows:
        """What each model weighs alone on one device."""
        rows = []
        for name, config in {**self.targets, **self.drafts}.items():
            plan = BlockPlan(config, None, DeviceMesh(), 1, 0, LENGTH, LENGTH)
            share = plan.target_share
            shape = ("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff")
            fitting = {
                hardware.name: _devices(plan.fitting_mesh(hardware)) for hardware in self.hardware
            }
            rows.append({
                "model": name,
                **{field: getattr(config, field) for field in shape},
                "weights": share.weights,
                "step_weights": share.step_weights,
                "cache_per_token": share.cache(1),
                "collectives": config.num_decoder_layers * 3 + 2,
                "fitting": fitting,
            })  # fmt: skip
        return rows

    def _meshes(self) -> Rows:
        """Each target on the fewest devices that hold it, and on four times as many."""
        rows = []
        for target in self.targets:
            for hardware in self.hardware:
                # With the largest draft, so that all drafts are compared on the same mesh.
                largest = self._plan(target, list(self.drafts)[-1], DeviceMesh())
                smallest = largest.fitting_mesh(hardware)
                assert smallest is not None
                for model in (smallest.model, 4 * smallest.model):
                    rows.append(self._mesh_row(target, hardware, DeviceMesh(model=model)))
        return rows

    def _mesh_row(self, target: str, hardware: Hardware, mesh: DeviceMesh) -> dict[str, Any]:
        plans = {draft: self._plan(target, draft, mesh) for draft in self.drafts}
        (plan, *_) = plans.values()
        return {
            "target": target,
            "hardware": hardware.name,
            "mesh": [mesh.data, mesh.model],
            "memory": plan.memory()[0].total,
            "token_ms": 1e3 * floor(plan.plain(), hardware),
            "verify_ratio": plan.verify_ratio(hardware),
            "collectives": sum(part.work.num_collectives for part in plan.plain()),
            "drafts": {draft: _faster(each, hardware, draft) for draft, each in plans.items()},
        }

    def _drafts(self) -> Rows:
        """Drafts whole on every device, and cut as the target is."""
        hardware, rows = self.hardware[0], []
        (target, *_) = self.targets
        for model in DRAFT_MESHES:
            row: dict[str, Any] = {"model": model, "whole": {}, "cut": {}}
            for draft, config in self.drafts.items():
                whole = self._plan(target, draft, DeviceMesh(model=model))
                row["token_ms"] = 1e3 * floor(whole.plain(), hardware)
                row["whole"][draft] = _faster(whole, hardware, draft)
                if config.num_heads % model == 0:
                    cut = DeviceMesh(model=model, draft_rules=T5X_RULES)
                    row["cut"][draft] = _faster(self._plan(target, draft, cut), hardware, draft)
            rows.append(row)
        return rows

    def _batches(self) -> Rows:
        """More rows on the same devices."""
        rows = []
        for target in self.targets:
            mesh = DeviceMesh(model=DEVICES if target == next(iter(self.targets)) else 4 * DEVICES)
            for batch in BATCHES:
                found = {}
                for hardware in self.hardware:
                    plan = self._plan(target, "small", mesh, batch_size=batch)
                    needed = sum(memory.total for memory in plan.memory())
                    if needed <= hardware.memory:
                        work = plan.verifying()[0].work
                        found[hardware.name] = {
                            "memory": needed,
                            "token_ms": 1e3 * floor(plan.plain(), hardware),
                            "bound": work.bound(hardware),
                            **_faster(plan, hardware, "small"),
                        }
                row = {"target": target, "devices": mesh.model, "batch": batch, "hardware": found}
                # The target's call of gamma + 1 tokens.
                work = self._plan(target, "small", mesh, batch_size=batch).verifying()[0].work
                rows.append({**row, "intensity": work.operations / work.read})
        return rows

    def _axes(self) -> Rows:
        """The same devices as groups of a target each."""
        hardware, rows = self.hardware[0], []
        (target, *_) = self.targets
        for data in (1, 2, 4, 8):
            mesh, batch = DeviceMesh(data, DEVICES // data), 64
            plan = self._plan(target, "small", mesh, batch_size=batch)
            found = _faster(plan, hardware, "small")
            token = floor(plan.plain(), hardware)
            rows.append({
                "mesh": [data, DEVICES // data],
                "batch": batch,
                "memory": sum(memory.total for memory in plan.memory()),
                "fits": sum(memory.total for memory in plan.memory()) <= hardware.memory,
                "token_ms": 1e3 * token,
                "tokens_per_second": batch / token,
                "speculative_tokens_per_second": batch / token * found["best"]["speedup"],
                **found,
            })  # fmt: skip
        return rows

    def _inputs(self) -> Rows:
        """Longer inputs."""
        hardware, rows = self.hardware[0], []
        (target, *_) = self.targets
        mesh = DeviceMesh(model=DEVICES)
        for batch in INPUT_BATCHES:
            for length in INPUTS:
                plan = self._plan(target, "small", mesh, batch_size=batch, input_len=length)
                read = plan.plain()[0].work.read
                rows.append({
                    "batch": batch,
                    "length": length,
                    "cross": self._plan(target, "small", DeviceMesh(), batch_size=batch)
                    .target_share.cache(length),
                    "share": plan.target_share.cache(length) / read,
                    "fits": sum(m.total for m in plan.memory()) <= hardware.memory,
                    "token_ms": 1e3 * floor(plan.plain(), hardware),
                    **_faster(plan, hardware, "small"),
                })  # fmt: skip
        return rows


def _devices(mesh: DeviceMesh | None) -> int | None:
    return None if mesh is None else mesh.data * mesh.model


def _faster(plan: BlockPlan, hardware: Hardware, draft: str) -> dict[str, Any]:
    """Of these floors: c, v and the speedup at the paper's gamma, and at the best one."""
    alpha = ALPHAS[draft]

    def at(gamma: int) -> dict[str, float]:
        there = dataclasses.replace(plan, gamma=gamma)
        c, v = there.cost_ratio(hardware), there.verify_ratio(hardware)
        return {
            "gamma": gamma,
            "cost_ratio": c,
            "verify_ratio": v,
            "speedup": speedup(alpha, gamma, c, v),
        }

    best = max(map(at, GAMMAS), key=lambda found: found["speedup"])
    return {**at(GAMMA), "best": best, "tokens": expected_tokens(alpha, GAMMA)}
