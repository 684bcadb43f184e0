"""How speculation scales over devices, rows and inputs: the numbers and tables of docs/scaling.md.

All of it is floors (``floors.py``): shapes and public figures, nothing measured.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec.checkpoints.architectures import Config
from specdec.core.roofline import Hardware
from specdec.core.theory import expected_tokens, speedup
from specdec.measure.floors import BlockPlan, floor
from specdec.measure.tables import table
from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.studies import paper

Rows = Iterator[dict[str, Any]]
Content = Mapping[str, Any]
Columns = list[tuple[str, str | Callable[[Any], str]]]

LENGTH = 256  # Of inputs and outputs, as T5X's WMT recipe has them.
GAMMA = 7  # The paper's for English to German at temperature 0.
GAMMAS = range(1, 17)
BATCHES = (1, 4, 16, 64, 256, 1024)
INPUTS, INPUT_BATCHES = (128, 512, 2048, 8192), (1, 32)
DRAFT_MESHES = (1, 2, 4, 8, 16, 32)
DEVICES = 8  # Of the tables that vary something else.
# Alpha of a draft of this size under T5-XXL, English to German, temperature 0: the paper's Table 4.
_ENDE = [row for row in paper.TABLE_4 if (row.task, row.temperature) == ("EnDe", 0)]
ALPHAS = {row.draft.removeprefix("T5-"): row.alpha for row in _ENDE}


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """What the tables are of: targets by name, drafts by size as in :data:`ALPHAS`, and devices.

    Tables that vary something else have the first device.
    """

    targets: Mapping[str, Config]
    drafts: Mapping[str, Config]
    hardware: Sequence[Hardware]

    def run(self) -> dict[str, Any]:
        """All numbers, for ``summary.json``."""
        devices = [{**dataclasses.asdict(each), "ridge": each.ridge} for each in self.hardware]
        return {
            "gamma": GAMMA, "length": LENGTH, "alphas": ALPHAS, "hardware": devices,
            "models": list(self._models()), "meshes": list(self._meshes()),
            "drafts": list(self._drafts()), "batches": list(self._batches()),
            "axes": list(self._axes()), "inputs": list(self._inputs()),
        }  # fmt: skip

    def _plan(
        self, model: int = 1, *, data: int = 1, target: str = "", draft: str = "small",
        batch_size: int = 1, input_len: int = LENGTH,
    ) -> BlockPlan:  # fmt: skip
        """Of the first target, if it has no name."""
        config, mesh = self.targets[target or next(iter(self.targets))], DeviceMesh(data, model)
        return BlockPlan(config, self.drafts[draft], mesh, batch_size, GAMMA, input_len, LENGTH)

    def _models(self) -> Rows:
        """What each model weighs alone on one device."""
        for name, config in {**self.targets, **self.drafts}.items():
            plan = BlockPlan(config, None, DeviceMesh(), 1, 0, LENGTH, LENGTH)
            share = plan.target_share
            shape = ("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff")
            meshes = {each.name: plan.fitting_mesh(each) for each in self.hardware}
            yield {
                "model": name, **{field: getattr(config, field) for field in shape},
                "weights": share.weights, "step_weights": share.step_weights,
                "cache_per_token": share.cache(1),
                "collectives": config.num_decoder_layers * 3 + 2,
                "fitting": {name: mesh and mesh.model for name, mesh in meshes.items()},
            }  # fmt: skip

    def _meshes(self) -> Rows:
        """Each target on the fewest devices that hold it, and on four times as many."""
        for target, hardware in itertools.product(self.targets, self.hardware):
            # With the largest draft, so that all drafts are compared on the same mesh.
            largest = self._plan(target=target, draft=list(self.drafts)[-1])
            smallest = largest.fitting_mesh(hardware)
            assert smallest is not None
            for model in (smallest.model, 4 * smallest.model):
                plans = {d: self._plan(model, target=target, draft=d) for d in self.drafts}
                (plan, *_) = plans.values()
                yield {
                    "target": target, "hardware": hardware.name, "mesh": [1, model],
                    "memory": sum(plan.memory()[0].values()), "token_ms": _token_ms(plan, hardware),
                    "verify_ratio": plan.verify_ratio(hardware),
                    "collectives": sum(part.work.num_collectives for part in plan.plain()),
                    "drafts": {draft: _faster(p, hardware, draft) for draft, p in plans.items()},
                }  # fmt: skip

    def _drafts(self) -> Rows:
        """Drafts whole on every device, and cut as the target is."""
        hardware = self.hardware[0]
        for model in DRAFT_MESHES:
            found: dict[str, dict[str, Any]] = {"whole": {}, "cut": {}}
            for draft, config in self.drafts.items():
                plan = self._plan(model, draft=draft)
                mesh = dataclasses.replace(plan.mesh, draft_rules=T5X_RULES)
                found["whole"][draft] = _faster(plan, hardware, draft)
                if config.num_heads % model == 0:
                    cut = dataclasses.replace(plan, mesh=mesh)
                    found["cut"][draft] = _faster(cut, hardware, draft)
            yield {"model": model, **found, "token_ms": _token_ms(self._plan(model), hardware)}

    def _batches(self) -> Rows:
        """More rows on the same devices."""
        for index, target in enumerate(self.targets):
            devices = 4 * DEVICES if index else DEVICES
            for batch in BATCHES:
                plan = self._plan(devices, target=target, batch_size=batch)
                work = plan.verifying()[0].work  # The target's call of gamma + 1 tokens.
                found = {
                    hardware.name: {
                        "memory": plan.needed, "token_ms": _token_ms(plan, hardware),
                        "bound": work.bound(hardware), **_faster(plan, hardware),
                    }
                    for hardware in self.hardware
                    if plan.needed <= hardware.memory
                }  # fmt: skip
                yield {
                    "target": target, "devices": devices, "batch": batch, "hardware": found,
                    "intensity": work.operations / work.read,
                }  # fmt: skip

    def _axes(self) -> Rows:
        """The same devices as groups of a target each."""
        hardware, batch = self.hardware[0], 64
        for data in (1, 2, 4, 8):
            plan = self._plan(DEVICES // data, data=data, batch_size=batch)
            found, rate = _faster(plan, hardware), batch / floor(plan.plain(), hardware)
            yield {
                "mesh": [data, DEVICES // data], "batch": batch, "memory": plan.needed,
                "fits": plan.needed <= hardware.memory, "token_ms": _token_ms(plan, hardware),
                "tokens_per_second": rate,
                "speculative_tokens_per_second": rate * found["best"]["speedup"], **found,
            }  # fmt: skip

    def _inputs(self) -> Rows:
        """Longer inputs."""
        hardware = self.hardware[0]
        for batch, length in itertools.product(INPUT_BATCHES, INPUTS):
            plan = self._plan(DEVICES, batch_size=batch, input_len=length)
            whole = self._plan(batch_size=batch)
            yield {
                "batch": batch, "length": length, "cross": whole.target_share.cache(length),
                "share": plan.target_share.cache(length) / plan.plain()[0].work.read,
                "fits": plan.needed <= hardware.memory, "token_ms": _token_ms(plan, hardware),
                **_faster(plan, hardware),
            }  # fmt: skip


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


_MS = ("ms a token", "{token_ms:.2f}")
_C = ("c", "{cost_ratio:.3f}")
_V = ("v", "{verify_ratio:.2f}")


def section(content: Content, name: str) -> str:
    """A table of ``summary.json``, in Markdown, by its name in :meth:`ScalingPlan.run`."""
    names = [each["name"] for each in content["hardware"]]
    gamma, sizes = content["gamma"], list(content["alphas"])
    ways = [(size, way) for size in sizes for way in ("whole", "cut")]
    columns: dict[str, Columns] = {
        "hardware": [
            ("", "{name}"), ("memory, GB", lambda row: f"{row['memory'] / 1e9:.1f}"),
            ("reads, GB/s", lambda row: f"{row['bandwidth'] / 1e9:,.0f}"),
            ("bf16, TFLOP/s", lambda row: f"{row['peak'] / 1e12:,.1f}"),
            ("sends, GB/s", lambda row: f"{row['interconnect'] / 1e9:.0f}"),
            ("operations a byte", "{ridge:.0f}"),
        ],
        "models": [
            ("", "{model}"), ("layers", "{num_encoder_layers} + {num_decoder_layers}"),
            ("D", "{d_model}"), ("heads", "{num_heads}"), ("F", "{d_ff}"),
            ("weights, GB", lambda row: _gb(row["weights"])),
            ("read by a call, GB", lambda row: _gb(row["step_weights"])),
            ("a cached token, kB", lambda row: f"{row['cache_per_token'] / 1e3:,.0f}"),
            ("collectives a call", "{collectives}"),
            *((f"devices: {name}", f"{{fitting[{name}]}}") for name in names),
        ],
        "meshes": [
            ("target", "{target}"), ("device", "{hardware}"), ("mesh", "{mesh[0]} x {mesh[1]}"),
            ("GB each", lambda row: _gb(row["memory"])), _MS,
            ("collectives a token", "{collectives}"), _V,
            *((f"c {size}", f"{{drafts[{size}][cost_ratio]:.3f}}") for size in sizes),
            *((f"{size}, γ {gamma}", f"{{drafts[{size}][speedup]:.2f}}") for size in sizes),
            *((f"{size}, best", _best("drafts", size)) for size in sizes),
        ],
        "drafts": [
            ("devices", "{model}"), _MS,
            *((f"c {size}, {way}", _at(_C[1].format_map, way, size)) for size, way in ways),
            *((f"{size}, {way}", _best(way, size)) for size, way in ways),
        ],
        "batches": [
            ("target", "{target}"), ("devices", "{devices}"), ("rows", "{batch}"),
            ("operations a byte", "{intensity:.1f}"),
            *(column for name in names for column in (
                (f"{name}: ms",
                 _at(_MS[1].format_map, "hardware", name, missing="does not fit")),
                ("v", _at("{verify_ratio:.2f} ({bound})".format_map, "hardware", name, missing="")),
                ("best", _best("hardware", name, missing="")),
            )),
        ],
        "axes": [
            ("data x model", "{mesh[0]} x {mesh[1]}"), ("GB each", _held("memory")), _MS,
            ("tokens a second, plain", "{tokens_per_second:,.0f}"), _C, _V, ("best", _best()),
            ("tokens a second, then", "{speculative_tokens_per_second:,.0f}"),
        ],
        "inputs": [
            ("rows", "{batch}"), ("input tokens", "{length:,}"),
            ("cross keys and values, GB", _held("cross")),
            ("of what a token reads", "{share:.0%}"), _MS, _C, _V, ("best", _best()),
        ],
    }  # fmt: skip
    return table(columns[name], content[name], numbers=True)


def _gb(count: float) -> str:
    return f"{count / 1e9:,.2f}"


def _held(name: str) -> Callable[[Content], str]:
    return lambda row: _gb(row[name]) + ("" if row["fits"] else " (too much)")


def _at(form: Callable[[Content], str], *path: str, missing: str = "–") -> Callable[[Content], str]:
    """``form`` of what stands at a path in the row."""

    def cell(row: Content) -> str:
        for key in path:
            if key not in row:
                return missing
            row = row[key]
        return form(row)

    return cell


def _best(*path: str, missing: str = "–") -> Callable[[Content], str]:
    def form(found: Content) -> str:
        best = found["best"]
        return "none" if best["speedup"] < 1 else "{speedup:.2f} (γ {gamma})".format_map(best)

    return _at(form, *path, missing=missing)
