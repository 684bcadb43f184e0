"""The paper's Figures 1 and 5, drawn from real decodes.

Each function writes ``figure_N.svg`` and ``figure_N.png`` into a directory, which it makes if need
be; the same bytes for the same decodes.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from specdec.data.tokenizer import Tokenizer
from specdec.measure import traces
from specdec.measure.decodes import Row
from specdec.measure.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, YELLOW, saved
from specdec.measure.timeline import Event, Kind, Timeline

_GREY = "#6a6a6a"

# Figure 1 is a grid of characters, which saves measuring texts: a fixed font of known width.
_FONT, _FONT_SIZE = "DejaVu Sans Mono", 10
_COLUMN, _LINE = 0.602 * _FONT_SIZE / 72, 1.6 * _FONT_SIZE / 72  # Inches.
_COLUMNS = 94
_INDENT = 6  # Of a target run's text, after its number.
_MARGIN = 2
_STRIKE, _UNDERLINE = -0.17, 0.11  # Lines below a text's baseline.
_SPAN_COLOURS: dict[str, str] = {
    "accepted": GREEN, "rejected": VERMILION, "correction": BLUE, "bonus": BLUE,
    "plain": "black", "quiet": _GREY,
}  # fmt: skip
_SPAN_RULES = {"rejected": _STRIKE, "correction": _UNDERLINE, "bonus": _UNDERLINE}
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
_WIDTH = 10.0  # Inches.
_BOX = 0.5  # Of the distance between rows.
_DIGIT = 0.009  # Of the axes' width, what one digit above a call needs.


def figure_1(rows: Sequence[Row], vocabulary: Tokenizer | None, directory: Path) -> None:
    """Decodes block by block: a numbered line for each target run, wrapped where it is long.

    Characters that the font has not are drawn as boxes, with matplotlib's warning.
    """
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
                colour = _SPAN_COLOURS[kind]
                # A dollar sign is no formula.
                axes.text(x, y, text, color=colour, family=_FONT, size=_FONT_SIZE, parse_math=False)
                if kind in _SPAN_RULES:
                    axes.hlines(y + _SPAN_RULES[kind], x, x + len(text), colour, linewidth=0.9)


def _wrapped(
    spans: Sequence[tuple[str, str]], indent: int = 0
) -> Iterator[list[tuple[int, str, str]]]:
    """Lines of (column, text, kind); ``spans`` are texts with their kinds."""
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

    A draft's box is divided into gamma; its guesses are one call, so where one ends and the next
    begins was not measured. Above a target call, where there is room, stands what it emitted.
    """
    with saved(directory, "figure_5", (_WIDTH, 1.3 + 0.8 * len(timelines))) as figure:
        axes = figure.add_subplot(xlabel="milliseconds")
        end = max(timeline.events[-1].end_ms for timeline in timelines)
        axes.set(xlim=(0, end), ylim=(len(timelines) - 1 + _BOX, -1.4 * _BOX))
        names = [
            (f"γ = {t.gamma}" if t.gamma else "plain decoding")
            + f"\n{len(t.tokens)} tokens, {t.total_ms:.0f} ms"
            for t in timelines
        ]
        axes.set_yticks(range(len(timelines)), names)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        for y, timeline in enumerate(timelines):
            for event in timeline.events:
                _draw_call(axes, y, event, timeline.gamma if event.kind == "draft" else 1, end)
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
