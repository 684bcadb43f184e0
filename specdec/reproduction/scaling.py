"""How speculation scales over devices, rows and inputs: the numbers and tables of docs/scaling.md.

All of it is floors (``floors.py``): shapes and public figures, nothing measured.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specdec.checkpoints.architectures import Config
from specdec.core.roofline import Hardware
from specdec.core.theory import expected_tokens, speedup
from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.reproduction import paper
from specdec.reproduction.floors import BlockPlan, floor

Rows = Iterator[dict[str, Any]]

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
            "models": list(self._models()),
            "meshes": list(self._meshes()),
            "drafts": list(self._drafts()),
            "batches": list(self._batches()),
            "axes": list(self._axes()),
            "inputs": list(self._inputs()),
        }

    def _plan(
        self,
        mesh: DeviceMesh,
        target: str | None = None,
        draft: str = "small",
        batch_size: int = 1,
        input_len: int = LENGTH,
    ) -> BlockPlan:
        """Of the first target, if None."""
        config = self.targets[target or next(iter(self.targets))]
        return BlockPlan(config, self.drafts[draft], mesh, batch_size, GAMMA, input_len, LENGTH)

    def _models(self) -> Rows:
        """What each model weighs alone on one device."""
        for name, config in {**self.targets, **self.drafts}.items():
            plan = BlockPlan(config, None, DeviceMesh(), 1, 0, LENGTH, LENGTH)
            share = plan.target_share
            shape = ("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff")
            meshes = {each.name: plan.fitting_mesh(each) for each in self.hardware}
            yield {
                "model": name,
                **{field: getattr(config, field) for field in shape},
                "weights": share.weights,
                "step_weights": share.step_weights,
                "cache_per_token": share.cache(1),
                "collectives": config.num_decoder_layers * 3 + 2,
                "fitting": {name: mesh and mesh.model for name, mesh in meshes.items()},
            }

    def _meshes(self) -> Rows:
        """Each target on the fewest devices that hold it, and on four times as many."""
        for target, hardware in itertools.product(self.targets, self.hardware):
            # With the largest draft, so that all drafts are compared on the same mesh.
            largest = self._plan(DeviceMesh(), target, list(self.drafts)[-1])
            smallest = largest.fitting_mesh(hardware)
            assert smallest is not None
            for model in (smallest.model, 4 * smallest.model):
                mesh = DeviceMesh(model=model)
                plans = {draft: self._plan(mesh, target, draft) for draft in self.drafts}
                (plan, *_) = plans.values()
                yield {
                    "target": target,
                    "hardware": hardware.name,
                    "mesh": [1, model],
                    "memory": plan.memory()[0].total,
                    "token_ms": _token_ms(plan, hardware),
                    "verify_ratio": plan.verify_ratio(hardware),
                    "collectives": sum(part.work.num_collectives for part in plan.plain()),
                    "drafts": {draft: _faster(p, hardware, draft) for draft, p in plans.items()},
                }

    def _drafts(self) -> Rows:
        """Drafts whole on every device, and cut as the target is."""
        hardware = self.hardware[0]
        for model in DRAFT_MESHES:
            whole = DeviceMesh(model=model)
            cut = DeviceMesh(model=model, draft_rules=T5X_RULES)
            cuttable = [name for name, d in self.drafts.items() if d.num_heads % model == 0]

            def faster(mesh: DeviceMesh, drafts: Iterable[str]) -> dict[str, Any]:
                return {d: _faster(self._plan(mesh, draft=d), hardware, d) for d in drafts}

            yield {
                "model": model,
                "whole": faster(whole, self.drafts),
                "cut": faster(cut, cuttable),
                "token_ms": _token_ms(self._plan(whole), hardware),
            }

    def _batches(self) -> Rows:
        """More rows on the same devices."""
        for place, target in enumerate(self.targets):
            mesh = DeviceMesh(model=4 * DEVICES if place else DEVICES)
            for batch in BATCHES:
                plan = self._plan(mesh, target, batch_size=batch)
                work = plan.verifying()[0].work  # The target's call of gamma + 1 tokens.
                yield {
                    "target": target,
                    "devices": mesh.model,
                    "batch": batch,
                    "hardware": {
                        hardware.name: {
                            "memory": plan.needed,
                            "token_ms": _token_ms(plan, hardware),
                            "bound": work.bound(hardware),
                            **_faster(plan, hardware),
                        }
                        for hardware in self.hardware
                        if plan.needed <= hardware.memory
                    },
                    "intensity": work.operations / work.read,
                }

    def _axes(self) -> Rows:
        """The same devices as groups of a target each."""
        hardware, batch = self.hardware[0], 64
        for data in (1, 2, 4, 8):
            plan = self._plan(DeviceMesh(data, DEVICES // data), batch_size=batch)
            found, rate = _faster(plan, hardware), batch / floor(plan.plain(), hardware)
            yield {
                "mesh": [data, DEVICES // data],
                "batch": batch,
                "memory": plan.needed,
                "fits": plan.needed <= hardware.memory,
                "token_ms": _token_ms(plan, hardware),
                "tokens_per_second": rate,
                "speculative_tokens_per_second": rate * found["best"]["speedup"],
                **found,
            }

    def _inputs(self) -> Rows:
        """Longer inputs."""
        hardware = self.hardware[0]
        for batch, length in itertools.product(INPUT_BATCHES, INPUTS):
            plan = self._plan(DeviceMesh(model=DEVICES), batch_size=batch, input_len=length)
            whole = self._plan(DeviceMesh(), batch_size=batch)
            yield {
                "batch": batch,
                "length": length,
                "cross": whole.target_share.cache(length),
                "share": plan.target_share.cache(length) / plan.plain()[0].work.read,
                "fits": plan.needed <= hardware.memory,
                "token_ms": _token_ms(plan, hardware),
                **_faster(plan, hardware),
            }


def _token_ms(plan: BlockPlan, hardware: Hardware) -> float:
    return 1e3 * floor(plan.plain(), hardware)


def _faster(plan: BlockPlan, hardware: Hardware, draft: str = "small") -> dict[str, Any]:
    """Of these floors: c, v and the speedup at the paper's gamma, and at the best one."""
    alpha = ALPHAS[draft]

    def at(gamma: int) -> dict[str, float]:
        there = dataclasses.replace(plan, gamma=gamma)
        c, v = there.cost_ratio(hardware), there.verify_ratio(hardware)
        predicted = speedup(alpha, gamma, c, v)
        return {"gamma": gamma, "cost_ratio": c, "verify_ratio": v, "speedup": predicted}

    best = max(map(at, GAMMAS), key=lambda found: found["speedup"])
    return {**at(GAMMA), "best": best, "tokens": expected_tokens(alpha, GAMMA)}
