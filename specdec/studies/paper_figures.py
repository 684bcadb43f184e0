"""The paper's figures: 2, 3 and 4 from theory alone, 1 and 5 from real decodes.

Each function writes ``figure_N.svg`` and ``figure_N.png``, the same bytes every time.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from specdec.core import theory
from specdec.measure import traces
from specdec.measure.kept_rows import Row
from specdec.studies import paper
from specdec.studies.measure.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, YELLOW, saved
from specdec.studies.measure.timeline import Event, Kind, Timeline
from specdec.text.base import Tokenizer

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE)
_ALPHAS = np.linspace(0, 1, 201)
_TOP = max(paper.FIGURE_GAMMAS) + 2

# Figure 1 is a grid of characters, which saves measuring texts: a fixed font of known width.
_FONT, _FONT_SIZE = "DejaVu Sans Mono", 10
_COLUMN, _LINE = 0.602 * _FONT_SIZE / 72, 1.6 * _FONT_SIZE / 72  # Inches.
_COLUMNS = 94
_INDENT, _MARGIN = 6, 2  # Of a target run's text, after its number; and of all.
_Piece = tuple[int, str, str]  # Column, text, kind.
_SPAN_COLOURS: dict[str, str] = {
    "accepted": GREEN, "rejected": VERMILION, "correction": BLUE, "bonus": BLUE,
    "plain": "black", "quiet": "#6a6a6a",
}  # fmt: skip
_SPAN_RULES = {"rejected": -0.17, "correction": 0.11, "bonus": 0.11}  # Lines below the baseline.
_LEGEND = (
    ("A line is a target run: ", "plain"), ("guesses it accepted", "accepted"), (", ", "plain"),
    ("guesses it rejected", "rejected"), (", ", "plain"), ("the token it added", "bonus"),
)  # fmt: skip

# Figure 5 has the paper's purple, blue, yellow and orange.
_CALLS: dict[Kind, tuple[str, str]] = {
    "target": (PURPLE, "target call, above it the tokens it emitted"),
    "draft": (BLUE, "guess; γ guesses are one call, divided evenly here"),
    "target_encoder": (YELLOW, "target's encoder"),
    "draft_encoder": (ORANGE, "draft's encoder"),
}
_BOX = 0.5  # Of the distance between rows.
_DIGIT = 0.009  # Of the axes' width, what one digit above a call needs.


def write_theory(directory: Path) -> None:
    """Figures 2, 3 and 4."""
    for figure in (figure_2, figure_3, figure_4):
        figure(directory)


def figure_2(directory: Path) -> None:
    """Expected tokens a block against alpha, for several gamma and without a limit (Equation 1)."""
    with saved(directory, "figure_2", (6.4, 4.4)) as figure:
        axes = figure.add_subplot(xlabel="α", ylabel="expected tokens a block")
        for gamma, colour in zip(paper.FIGURE_GAMMAS, _COLOURS, strict=True):
            tokens = [theory.expected_tokens(alpha, gamma) for alpha in _ALPHAS]
            _curve(axes, _ALPHAS, tokens, colour, f"γ = {gamma}")
        shown = np.linspace(0, 1 - 1 / _TOP, 201)
        axes.plot(shown, [theory.oracle_tokens(alpha) for alpha in shown], "--", color="black")
        axes.annotate("γ = ∞", (shown[-1], _TOP), (-8, -12), textcoords="offset points", ha="right")
        axes.set(xlim=(0, 1), ylim=(0, _TOP))


def figure_3(directory: Path) -> None:
    """The gamma that maximises Theorem 3.8 against alpha, for several c; points as in the paper."""
    alphas = np.linspace(0.4, 0.95, 2201)  # So fine that steps look upright.
    with saved(directory, "figure_3", (6.4, 4.4)) as figure:
        axes = figure.add_subplot(xlabel="α", ylabel="optimal γ")
        for (c, printed), colour in zip(paper.FIGURE_3.items(), _COLOURS, strict=False):
            best = [theory.best_gamma(alpha, c) for alpha in alphas]
            _curve(axes, alphas, best, colour, f"c = {c:g}")
            axes.plot(paper.FIGURE_3_ALPHAS, printed, "o", color=colour, clip_on=False)
        axes.plot([], [], "o", color="#333333", label="the paper's values")
        axes.legend(loc="upper left", frameon=False)
        axes.set(xlim=(alphas[0], alphas[-1]), ylim=(0, None))


def figure_4(directory: Path) -> None:
    """Speedup (Theorem 3.8) and operations (Theorem 3.11) against alpha at c = c^ = 0."""
    with saved(directory, "figure_4", (9.6, 4.4)) as figure:
        left, right = figure.subplots(1, 2)
        for gamma, colour in zip(paper.FIGURE_GAMMAS, _COLOURS, strict=True):
            name = f"γ = {gamma}"
            speeds = [theory.speedup(alpha, gamma, 0.0) for alpha in _ALPHAS]
            operations = [theory.operations_factor(alpha, gamma, 0.0) for alpha in _ALPHAS]
            _curve(left, _ALPHAS, speeds, colour, name)
            right.plot(_ALPHAS, operations, color=colour)
            right.annotate(name, (0, operations[0]), (5, 5), textcoords="offset points")
        left.set(title="speed (c = 0)", ylabel="factor over plain decoding")
        right.set(title="arithmetic operations (ĉ = 0)")
        for axes in (left, right):
            axes.set(xlabel="α", xlim=(0, 1), ylim=(0, _TOP))
            axes.axhline(1, color="#9e9e9e", linewidth=1)


def _curve(axes, alphas, values, colour: str, name: str) -> None:
    """A curve with its name where it ends, which saves a legend."""
    axes.plot(alphas, values, color=colour)
    end = (alphas[-1], values[-1])
    axes.annotate(name, end, (8, 0), textcoords="offset points", va="center")


def figure_1(rows: Sequence[Row], vocabulary: Tokenizer | None, directory: Path) -> None:
    """Decodes block by block: a numbered line for each target run, wrapped where it is long."""
    lines = list(_wrapped(_LEGEND))
    for row in rows:
        counts = f"tokens: {row.num_tokens}, target runs: {row.target_calls}"
        lines += [[], *([(0, line, "plain")] for line in textwrap.wrap(row.input, _COLUMNS))]
        lines.append([(0, counts, "quiet")])
        for number, spans in enumerate(traces.lines(row, vocabulary), start=1):
            wrapped = list(_wrapped([(span.text, span.kind) for span in spans], _INDENT))
            wrapped[0].insert(0, (0, f"{number:{_INDENT - 2}}", "quiet"))
            lines += wrapped
    columns, height = _COLUMNS + 2 * _MARGIN, len(lines) + 1
    with saved(directory, "figure_1", (columns * _COLUMN, height * _LINE)) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-_MARGIN, _COLUMNS + _MARGIN), ylim=(height, 0))
        axes.set_axis_off()
        for y, line in enumerate(lines, start=1):
            for x, text, kind in line:
                colour = _SPAN_COLOURS[kind]  # And a dollar sign is no formula.
                axes.text(x, y, text, color=colour, family=_FONT, size=_FONT_SIZE, parse_math=False)
                if kind in _SPAN_RULES:
                    axes.hlines(y + _SPAN_RULES[kind], x, x + len(text), colour, linewidth=0.9)


def _wrapped(spans: Sequence[tuple[str, str]], indent: int = 0) -> Iterator[list[_Piece]]:
    """Lines of pieces; ``spans`` are texts with their kinds."""
    kinds = (kind for text, kind in spans for _ in text)
    wrapper = textwrap.TextWrapper(
        _COLUMNS - indent, drop_whitespace=False, replace_whitespace=False, expand_tabs=False
    )  # Whose lines together are the text as it was.
    for line in wrapper.wrap("".join(text for text, _ in spans)) or [""]:
        column = indent - (len(line) - len(line.lstrip()))
        pieces = []
        for kind, characters in itertools.groupby(line, key=lambda _: next(kinds)):
            piece = "".join(characters)
            pieces.append((column + len(piece) - len(piece.lstrip()), piece.strip(), kind))
            column += len(piece)
        yield pieces


def figure_5(timelines: Sequence[Timeline], directory: Path) -> None:
    """A row of boxes for each timeline, a box for each call, against milliseconds.

    A draft's box is divided into gamma evenly, as its guesses are one call. A target call has
    its output above it, if it fits.
    """
    with saved(directory, "figure_5", (10.0, 1.3 + 0.8 * len(timelines))) as figure:
        axes = figure.add_subplot(xlabel="milliseconds")
        end = max(timeline.events[-1].end_ms for timeline in timelines)
        axes.set(xlim=(0, end), ylim=(len(timelines) - 1 + _BOX, -1.4 * _BOX))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        names = []
        for y, timeline in enumerate(timelines):
            gamma, num_tokens = timeline.gamma, len(timeline.tokens)
            setting = f"γ = {gamma}" if gamma else "plain decoding"
            names.append(f"{setting}\n{num_tokens} tokens, {timeline.total_ms:.0f} ms")
            for event in timeline.events:
                _draw_call(axes, y, event, gamma if event.kind == "draft" else 1, end)
        axes.set_yticks(range(len(timelines)), names)
        for colour, name in _CALLS.values():
            axes.barh(0, 0, color=colour, label=name)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _draw_call(axes, y: int, event: Event, parts: int, end: float) -> None:
    width = event.end_ms - event.start_ms
    starts = [event.start_ms + i * width / parts for i in range(parts)]
    look = {"color": _CALLS[event.kind][0], "edgecolor": "white", "linewidth": 0.3}
    axes.barh(y, width / parts, _BOX, starts, **look)
    count = str(event.emitted)
    if event.emitted and width >= len(count) * _DIGIT * end:
        axes.text(event.start_ms + width / 2, y - 0.55 * _BOX, count, ha="center", fontsize=8)
