"""The tables of docs/trees.md, from the results of siblings and trees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specdec.measure.tables import Columns, Formatter
from specdec.studies.pages.files import Result
from specdec.studies.pages.tables import SOURCE, Section, Table, grid, leaves

# The studies' names of drafts, and the tables'.
_DRAFTS = {
    "quickstart": "bundled draft", "quickstart/draft_small": "small draft",
    "quickstart_draft_small": "small draft",
}  # fmt: skip
_SETTING = "{draft}, temperature {t}"
_RANKS = (
    ("t1", "recursive", "without replacement, temperature 1"),
    ("t1", "likeliest", "point masses, temperature 1"),
    ("t0", "likeliest", "point masses, temperature 0"),
)


def _guesses(content: Result) -> Iterator[Result]:
    """A draft's numbers with K guesses: the means, by rule."""
    for found in leaves(content, "siblings/EnDe/t1/drafts/{draft}", _DRAFTS):
        rules = found["acceptance"] | found["distance"] | {"of_optimum": found["of_optimum"]}
        for k in found["of_optimum"]:
            yield {**found, "K": k, **{rule: each[k]["mean"] for rule, each in rules.items()}}


def _measured(content: Result) -> str:
    found = leaves(content, "siblings/EnDe/t1/drafts/{draft}/acceptance/{rule}/{k}", _DRAFTS)
    most = max(high - low for each in found for low, high in [each["interval"]]) / 2
    draft = "siblings[EnDe][t1][drafts][quickstart]"
    text = f"Temperature 1, {{{draft}[num_tokens]:,}} tokens of {{{draft}[num_texts]}} texts that "
    text += f"the target generated. Intervals of 95 %, clustered by text, are at most ±{most:.3f}. "
    return Formatter().of(text + "From " + SOURCE, content)


def _ranks(content: Result) -> Iterator[Result]:
    for draft in ("quickstart", "quickstart/draft_small"):
        for temperature, rule, how in _RANKS:
            found = content["siblings"]["EnDe"][temperature]["drafts"][draft]["by_rank"][rule]
            yield {"name": f"{_DRAFTS[draft]}, {how}", "ranks": found}


def _settings(content: Result) -> list[dict[str, Result]]:
    return list(leaves(content, "trees/EnDe/{draft}/t{t}", _DRAFTS))


def _best(shapes: Result, kind: str) -> Result:
    """Of chains, or of trees."""
    kinds = [each for name, each in shapes.items() if name.startswith("chain") == (kind == "chain")]
    return max(kinds, key=lambda each: each["block_efficiency"])


def _shapes(content: Result) -> str:
    settings = _settings(content)
    found = [setting["shapes"] for setting in settings]
    form = "{0[block_efficiency]:.2f} ({0[interval][0]:.2f} to {0[interval][1]:.2f})"
    rows = []
    for name in dict.fromkeys(name for shapes in found for name in shapes):
        nodes = next(shapes[name]["nodes"] for shapes in found if name in shapes)
        cells = [form.format(each[name]) if name in each else "–" for each in found]
        rows.append((name, str(nodes), *cells))
    best = ([_best(each, kind)["block_efficiency"] for kind in ("tree", "chain")] for each in found)
    ratios = (f"**{tree / chain:.2f}**" for tree, chain in best)
    rows.append(("**best tree over best chain**", "", *ratios))
    return grid(("shape", "guesses", *map(_SETTING.format_map, settings)), rows)


def _costs(content: Result) -> tuple[Result, dict[int, float]]:
    """Of calls, whose shapes are the same for both drafts; and v by the tokens of a call."""
    costs = content["trees"]["EnDe"]["quickstart"]["costs"]
    return costs, {int(n): each["median"] for n, each in costs["verify_ratio"].items()}


def _v(content: Result) -> Columns:
    return [
        ("tokens of a call", "v"),
        *((f"{n}", f"{v:.2f}") for n, v in _costs(content)[1].items()),
    ]


def _computed(content: Result) -> Iterator[Result]:
    """The best chain's and the best tree's speedups by what calls cost."""
    costs, verify = _costs(content)
    levels = (("chain", "chain"), ("tree", "tree 4-1-1-1"))
    c = {kind: max(0.0, costs["level"][name]["median"]) for kind, name in levels}
    for setting in _settings(content):
        for kind in c:
            best = _best(setting["shapes"], kind)
            v = np.interp(best["nodes"] + 1, list(verify), list(verify.values()))
            tokens, depth = best["block_efficiency"], best["depth"]
            # Where calls are flat, so are the draft's: a level is a step.
            here, flat = tokens / (v + depth * c[kind]), tokens / (1 + depth * c["chain"])
            yield {**setting, "kind": kind, "tokens": tokens, "here": here, "flat": flat}


def _seconds(content: Result) -> str:
    seconds = _costs(content)[0]["compile_seconds"].items()
    medians = (f"{name} {sorted(each)[len(each) // 2]:.1f}" for name, each in seconds)
    return f"Seconds to compile a decode: {', '.join(medians)}."


def _autos(content: Result) -> Iterator[Result]:
    for row in leaves(content, "trees/EnDe/{draft}/auto_t{t}", _DRAFTS):
        speedups = row["speedups"]
        chosen, best = speedups[row["chosen"]], speedups[row["best"]]
        ways = sorted(speedups.items(), key=lambda pair: -pair[1])
        others = ", ".join(f"{way} {each:.2f}" for way, each in ways)
        yield {**row, "of": (chosen, best), "slower": best / chosen - 1, "others": others}


_SIBLINGS, _TREES = ["results/siblings/summary.json"], ["results/trees/summary.json"]
SECTIONS = {
    "one-position": Section(_SIBLINGS, [
        Table(_guesses, [
            ("rule", "{draft}, K = {K}"),
            ("recursive, without replacement (default); traversal", "{recursive:.3f}"),
            ("**at most, without replacement**", "{optimum:.3f}"),
            ("default, of the most", "{of_optimum:.1 %}"),
            ("recursive, independent", "{recursive_independent:.3f}"),
            ("K-SEQ, independent", "{kseq:.3f}"),
            ("**at most, independent**", "{optimum_independent:.3f}"),
            ("point masses, the K likeliest tokens", "{likeliest:.3f}"),
        ], across=True),
        _measured,
    ]),
    "by-rank": Section(_SIBLINGS, [Table(_ranks, [
        ("guess", "{name}"), *((f"{k + 1}", f"{{ranks[{k}][mean]:.3f}}") for k in range(8)),
    ])]),
    "typical": Section(_SIBLINGS, [Table(_guesses, [
        ("guesses", "{draft}, K = {K}"), ("drawn, independent", "{typical_independent:.3f}"),
        ("the K likeliest tokens", "{typical_likeliest:.3f}"),
    ], across=True)]),
    "shapes": Section(_TREES, [_shapes, "Intervals of 95 %, by text. From " + SOURCE]),
    "costs": Section(_TREES, [
        Table(lambda content: [{}], _v),
        Table(_computed, [
            ("", _SETTING + ", best {kind}"), ("tokens a call", "{tokens:.2f}"),
            ("here", "{here:.2f}"), ("v = 1", "{flat:.2f}"),
        ]),
        _seconds,
    ]),
    "traversal": Section(_TREES, [Table("trees/EnDe/{draft}/verifiers/shapes/{shape}", [
        ("", "{draft}, {shape}"), ("blocks", "{num_blocks:,}"), ("recursive", "{recursive:.3f}"),
        ("traversal", "{traversal:.3f}"),
        ("difference", "{difference:+.4f} ({interval[0]:+.4f} to {interval[1]:+.4f})"),
    ], names=_DRAFTS)]),
    "auto": Section(_TREES, [
        Table(_autos, [
            ("", _SETTING), ("chosen", "{chosen}"), ("speedup", "{of[0]:.2f}"),
            ("fastest of all", "{best}"), ("speedup", "{of[1]:.2f}"),
            ("chosen is slower by", "{slower:.1 %}"),
        ]),
        Table(_autos, f"- {_SETTING}: {{others}}"),
    ]),
}  # fmt: skip
