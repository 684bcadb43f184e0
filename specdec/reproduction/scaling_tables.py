"""The tables of docs/scaling.md, in Markdown, from the numbers of ``scaling.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from specdec.measure.tables import markdown

Content = Mapping[str, Any]


_markdown = functools.partial(markdown, numbers=True)


def _gb(count: float) -> str:
    return f"{count / 1e9:,.2f}"


def _held(row: Content, name: str) -> str:
    return _gb(row[name]) + ("" if row["fits"] else " (too much)")


def _best(found: Content) -> str:
    best = found["best"]
    if best["speedup"] < 1:
        return "none"
    return f"{best['speedup']:.2f} (γ {best['gamma']})"


def hardware(content: Content) -> str:
    """The public figures."""
    return _markdown(
        ("", "memory, GB", "reads, GB/s", "bf16, TFLOP/s", "sends, GB/s", "operations a byte"),
        [
            [
                each["name"], f"{each['memory'] / 1e9:.1f}", f"{each['bandwidth'] / 1e9:,.0f}",
                f"{each['peak'] / 1e12:,.1f}", f"{each['interconnect'] / 1e9:.0f}",
                f"{each['ridge']:.0f}",
            ]
            for each in content["hardware"]
        ],
    )  # fmt: skip


def models(content: Content) -> str:
    """What each weighs, and the fewest devices for it alone."""
    names = [each["name"] for each in content["hardware"]]
    rows = []
    for row in content["models"]:
        layers = f"{row['num_encoder_layers']} + {row['num_decoder_layers']}"
        rows.append([
            row["model"], layers, str(row["d_model"]), str(row["num_heads"]), str(row["d_ff"]),
            _gb(row["weights"]), _gb(row["step_weights"]), f"{row['cache_per_token'] / 1e3:,.0f}",
            str(row["collectives"]), *(str(row["fitting"][name]) for name in names),
        ])  # fmt: skip
    columns = (
        "", "layers", "D", "heads", "F", "weights, GB", "read by a call, GB", "a cached token, kB",
        "collectives a call", *(f"devices: {name}" for name in names),
    )  # fmt: skip
    return _markdown(columns, rows)


def meshes(content: Content) -> str:
    """Each target, device and two meshes: c and the speedup with each draft."""
    sizes = list(content["alphas"])
    rows = []
    for row in content["meshes"]:
        drafts = row["drafts"]
        rows.append([
            row["target"], row["hardware"], "{} x {}".format(*row["mesh"]), _gb(row["memory"]),
            f"{row['token_ms']:.2f}", str(row["collectives"]), f"{row['verify_ratio']:.2f}",
            *(f"{drafts[size]['cost_ratio']:.3f}" for size in sizes),
            *(f"{drafts[size]['speedup']:.2f}" for size in sizes),
            *(_best(drafts[size]) for size in sizes),
        ])  # fmt: skip
    columns = (
        "target", "device", "mesh", "GB each", "ms a token", "collectives a token", "v",
        *(f"c {size}" for size in sizes),
        *(f"{size}, γ {content['gamma']}" for size in sizes),
        *(f"{size}, best" for size in sizes),
    )  # fmt: skip
    return _markdown(columns, rows)


def drafts(content: Content) -> str:
    """Whole drafts beside cut ones."""
    sizes = list(content["alphas"])

    def cells(row: Content, form: Callable[[Content], str]) -> list[str]:
        return [
            form(row[way][size]) if size in row[way] else "–"
            for size in sizes
            for way in ("whole", "cut")
        ]

    rows = [
        [
            str(row["model"]), f"{row['token_ms']:.2f}",
            *cells(row, lambda found: f"{found['cost_ratio']:.3f}"),
            *cells(row, _best),
        ]
        for row in content["drafts"]
    ]  # fmt: skip
    ways = [f"{size}, {way}" for size in sizes for way in ("whole", "cut")]
    columns = ("devices", "ms a token", *(f"c {way}" for way in ways), *ways)
    return _markdown(columns, rows)


def batches(content: Content) -> str:
    """Rows decoded together."""
    names = [each["name"] for each in content["hardware"]]
    rows = []
    for row in content["batches"]:
        cells = [
            row["target"], str(row["devices"]), str(row["batch"]), f"{row['intensity']:.1f}",
        ]  # fmt: skip
        for name in names:
            found = row["hardware"].get(name)
            cells += (
                ["does not fit", "", ""]
                if found is None
                else [
                    f"{found['token_ms']:.2f}",
                    f"{found['verify_ratio']:.2f} ({found['bound']})",
                    _best(found),
                ]
            )
        rows.append(cells)
    columns = ["target", "devices", "rows", "operations a byte"]
    for name in names:
        columns += [f"{name}: ms", "v", "best"]
    return _markdown(columns, rows)


def axes(content: Content) -> str:
    """Data against model axis."""
    rows = [
        [
            "{} x {}".format(*row["mesh"]), _held(row, "memory"),
            f"{row['token_ms']:.2f}", f"{row['tokens_per_second']:,.0f}",
            f"{row['cost_ratio']:.3f}", f"{row['verify_ratio']:.2f}", _best(row),
            f"{row['speculative_tokens_per_second']:,.0f}",
        ]
        for row in content["axes"]
    ]  # fmt: skip
    columns = (
        "data x model", "GB each", "ms a token", "tokens a second, plain", "c", "v", "best",
        "tokens a second, then",
    )  # fmt: skip
    return _markdown(columns, rows)


def inputs(content: Content) -> str:
    """Longer inputs."""
    rows = [
        [
            str(row["batch"]), f"{row['length']:,}",
            _held(row, "cross"),
            f"{row['share']:.0%}", f"{row['token_ms']:.2f}", f"{row['cost_ratio']:.3f}",
            f"{row['verify_ratio']:.2f}", _best(row),
        ]
        for row in content["inputs"]
    ]  # fmt: skip
    columns = (
        "rows", "input tokens", "cross keys and values, GB", "of what a token reads", "ms a token",
        "c", "v", "best",
    )  # fmt: skip
    return _markdown(columns, rows)


TABLES: Mapping[str, Callable[[Content], str]] = {
    "hardware": hardware,
    "models": models,
    "meshes": meshes,
    "drafts": drafts,
    "batches": batches,
    "axes": axes,
    "inputs": inputs,
}
