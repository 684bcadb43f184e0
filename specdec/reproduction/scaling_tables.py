"""The tables of docs/scaling.md, in Markdown, from the numbers of ``scaling.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specdec.measure.tables import table

Content = Mapping[str, Any]
Columns = list[tuple[str, str | Callable[[Any], str]]]

_MS = ("ms a token", "{token_ms:.2f}")
_C = ("c", "{cost_ratio:.3f}")
_V = ("v", "{verify_ratio:.2f}")


def section(content: Content, name: str) -> str:
    """A table: "hardware", "models", "meshes", "drafts", "batches", "axes" or "inputs"."""
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
            *(column for name in names for column in _fitting(name)),
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


def _fitting(name: str) -> Columns:
    """A device's columns, where rows may not fit."""
    path = ("hardware", name)
    return [
        (f"{name}: ms", _at(_MS[1].format_map, *path, missing="does not fit")),
        ("v", _at("{verify_ratio:.2f} ({bound})".format_map, *path, missing="")),
        ("best", _best(*path, missing="")),
    ]
