"""The tables of docs/trees.md, from the results of siblings and trees."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specdec.measure.tables import markdown
from specdec.studies.pages.files import BEFORE, PageError, Result, read_study, sources

_SIBLINGS, _TREE_RUNS = "siblings", "trees"
# Where results are, the drafts in them, and what tables call these. The last is the bundled draft
# with the target, both before mutual learning.
_PAIRS = (
    ("results", "quickstart", "bundled draft"),
    ("results", "quickstart/draft_small", "small draft"),
    (BEFORE, "runs/before_mutual/draft", "before mutual learning"),
)
_SIBLING_RULES = {
    "recursive": "recursive, without replacement (default); traversal",
    "optimum": "**at most, without replacement**",
    "recursive_independent": "recursive, independent",
    "kseq": "K-SEQ, independent",
    "optimum_independent": "**at most, independent**",
    "likeliest": "point masses, the K likeliest tokens",
}
_TYPICAL = {
    "typical_independent": "drawn, independent",
    "typical_likeliest": "the K likeliest tokens",
}
_SIBLING_RANKS = (
    ("1", "recursive", "without replacement, temperature 1"),
    ("1", "likeliest", "point masses, temperature 1"),
    ("0", "likeliest", "point masses, temperature 0"),
)


@dataclasses.dataclass(frozen=True)
class _Study:
    """What a configuration of ``configs/reproduce`` measured of one pair."""

    title: str
    found: Result  # By temperature for siblings; of one draft for trees.
    directory: str
    content: Result


def _studies(root: Path, kind: str) -> list[_Study]:
    """Those of "siblings" or "trees", one for each pair.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = []
    for parent, draft, title in _PAIRS:
        directory = f"{parent}/{kind}"
        content = read_study(root, directory)
        try:
            found = content[kind]["EnDe"]
            if kind == _SIBLINGS:
                found = {t: each["drafts"][draft] for t, each in found.items()}
            else:
                found = found[draft.replace("/", "_")]
        except KeyError as error:
            raise PageError(f"{directory} has no {error}.") from None
        studies.append(_Study(title, found, directory, content))
    return studies


def _sources(studies: Iterable[_Study]) -> str:
    contents = {study.directory: study.content for study in studies}
    return sources(contents, contents.values())


def one_position(root: Path) -> str:
    """Acceptance of 1, 2, 4 and 8 guesses of one position by rule, beside the bounds.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = _studies(root, _SIBLINGS)
    found = [study.found["t1"] for study in studies]
    counts = list(found[0]["acceptance"]["recursive"])
    columns = [f"{study.title}, K = {k}" for study in studies for k in counts]
    rows = [
        [name, *(f"{each['acceptance'][rule][k]['mean']:.3f}" for each in found for k in counts)]
        for rule, name in _SIBLING_RULES.items()
    ]
    of_best = [each["of_optimum"][k]["mean"] for each in found for k in counts]
    rows.insert(2, ["default, of the most", *(f"{100 * share:.1f} %" for share in of_best)])
    halves = [
        (shown["interval"][1] - shown["interval"][0]) / 2
        for each in found for by_count in each["acceptance"].values() for shown in by_count.values()
    ]  # fmt: skip
    tokens = dict.fromkeys(f"{each['num_tokens']:,}" for each in found)
    return (
        f"{markdown(['rule', *columns], rows, numbers=True)}\n\n"
        f"Temperature 1, {' and '.join(tokens)} tokens of {found[0]['num_texts']} texts that each "
        f"target generated. Intervals of 95 %, clustered by text, are at most "
        f"±{max(halves):.3f}. From {_sources(studies)}"
    )


def by_rank(root: Path) -> str:
    """How likely guess k of a position is accepted where the earlier ones were rejected.

    Raises:
      PageError: the results are missing or damaged.
    """
    rows = [
        [f"{study.title}, {title}", *(f"{rank['mean']:.3f}" for rank in ranks)]
        for study in _studies(root, _SIBLINGS)
        for temperature, rule, title in _SIBLING_RANKS
        for ranks in [study.found[f"t{temperature}"]["by_rank"][rule]]
    ]
    most = max(len(row) for row in rows) - 1
    rows = [row + ["–"] * (most + 1 - len(row)) for row in rows]
    return markdown(["guess", *map(str, range(1, most + 1))], rows, numbers=True)


_TEMPERATURES = (0, 1)


def _best_of(shapes: Result, chains: bool) -> Result:
    kinds = [each for name, each in shapes.items() if name.startswith("chain") == chains]
    return max(kinds, key=lambda each: each["block_efficiency"])


def tree_shapes(root: Path) -> str:
    """Tokens a target call by shape, draft and temperature.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = _studies(root, _TREE_RUNS)
    settings = [(study, t) for study in studies for t in _TEMPERATURES]
    found = [study.found[f"t{t}"]["shapes"] for study, t in settings]
    rows = []
    for name in dict.fromkeys(name for shapes in found for name in shapes):
        cells = [
            f"{shapes[name]['block_efficiency']:.2f} "
            f"({shapes[name]['interval'][0]:.2f} to {shapes[name]['interval'][1]:.2f})"
            if name in shapes
            else "–"
            for shapes in found
        ]
        nodes = next(shapes[name]["nodes"] for shapes in found if name in shapes)
        rows.append([name, str(nodes), *cells])
    ratios = [
        _best_of(shapes, False)["block_efficiency"] / _best_of(shapes, True)["block_efficiency"]
        for shapes in found
    ]
    rows.append(["**best tree over best chain**", "", *(f"**{ratio:.2f}**" for ratio in ratios)])
    columns = [f"{study.title}, temperature {t}" for study, t in settings]
    return (
        f"{markdown(['shape', 'guesses', *columns], rows, numbers=True)}\n\n"
        f"Intervals of 95 %, by text. From {_sources(studies)}"
    )


def tree_costs(root: Path) -> str:
    """What calls cost by their tokens, and the speedups that follow; compilation.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = _studies(root, _TREE_RUNS)
    costs = studies[0].found["costs"]  # Calls of both targets have the same shapes.
    verify = {int(size): each["median"] for size, each in costs["verify_ratio"].items()}
    rows = [["v", *(f"{v:.2f}" for v in verify.values())]]
    table = markdown(["tokens of a call", *map(str, verify)], rows, numbers=True)
    level = {name: each["median"] for name, each in costs["level"].items()}
    lines = []
    for study, t in itertools.product(studies, _TEMPERATURES):
        for chains in (True, False):
            best = _best_of(study.found[f"t{t}"]["shapes"], chains)
            c = max(0.0, level["chain" if chains else "tree 4-1-1-1"])
            v = float(np.interp(best["nodes"] + 1, list(verify), list(verify.values())))
            tokens, drafts = best["block_efficiency"], best["depth"] * c
            # Where calls are flat, so are the draft's: a level is a step.
            flat = best["depth"] * max(0.0, level["chain"])
            lines.append([
                f"{study.title}, temperature {t}, best {'chain' if chains else 'tree'}",
                f"{tokens:.2f}", f"{tokens / (v + drafts):.2f}", f"{tokens / (1 + flat):.2f}",
            ])  # fmt: skip
    computed = markdown(["", "tokens a call", "here", "v = 1"], lines, numbers=True)
    seconds = ", ".join(
        f"{name} {sorted(each)[len(each) // 2]:.1f}"
        for name, each in costs["compile_seconds"].items()
    )
    return f"{table}\n\n{computed}\n\nSeconds to compile a decode: {seconds}."


def typical(root: Path) -> str:
    """How far typical acceptance is from the target's distribution, at one position.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = _studies(root, _SIBLINGS)
    found = [study.found["t1"]["distance"] for study in studies]
    counts = list(found[0]["typical_likeliest"])
    columns = [f"{study.title}, K = {k}" for study in studies for k in counts]
    rows = [
        [title, *(f"{each[rule][k]['mean']:.3f}" for each in found for k in counts)]
        for rule, title in _TYPICAL.items()
    ]
    return markdown(["guesses", *columns], rows, numbers=True)


def traversal(root: Path) -> str:
    """Tokens a block by recursive and by traversal verification, on the same blocks.

    Raises:
      PageError: the results are missing or damaged.
    """
    rows = [
        [
            f"{study.title}, {shape}", f"{each['num_blocks']:,}",
            f"{each['recursive']:.3f}", f"{each['traversal']:.3f}",
            f"{each['difference']:+.4f} ({each['interval'][0]:+.4f} to {each['interval'][1]:+.4f})",
        ]
        for study in _studies(root, _TREE_RUNS)
        for shape, each in study.found["verifiers"]["shapes"].items()
    ]  # fmt: skip
    columns = ["", "blocks", "recursive", "traversal", "difference"]
    return markdown(columns, rows, numbers=True)


def auto(root: Path) -> str:
    """What ``tree="auto"`` chose, beside other settings on other rows.

    Raises:
      PageError: the results are missing or damaged.
    """
    rows, rest = [], []
    for study, t in itertools.product(_studies(root, _TREE_RUNS), _TEMPERATURES):
        found, name = study.found[f"auto_t{t}"], f"{study.title}, temperature {t}"
        speedups = found["speedups"]
        chosen, best = (speedups[found[which]] for which in ("chosen", "best"))
        rows.append([
            name, found["chosen"], f"{chosen:.2f}", found["best"], f"{best:.2f}",
            f"{100 * (best / chosen - 1):.1f} %",
        ])  # fmt: skip
        others = sorted(speedups.items(), key=lambda pair: -pair[1])
        rest.append(f"- {name}: " + ", ".join(f"{way} {each:.2f}" for way, each in others))
    columns = ["", "chosen", "speedup", "fastest of all", "speedup", "chosen is slower by"]
    return markdown(columns, rows, numbers=True) + "\n\n" + "\n".join(rest)


SECTIONS = {
    "one-position": one_position,
    "by-rank": by_rank,
    "shapes": tree_shapes,
    "costs": tree_costs,
    "typical": typical,
    "traversal": traversal,
    "auto": auto,
}
