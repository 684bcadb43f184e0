"""Figures 1 and 5 as their files have them: what is drawn, in which colour, and where."""

import dataclasses
import html
import re
from collections import defaultdict

import numpy as np
import pytest

from specdec.decoding.blocks import Block
from specdec.reproduce import paper_figures
from specdec.reproduce.measure.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, YELLOW
from specdec.reproduce.measure.timeline import Event, Timeline
from tests.measure.test_kept_rows import ROW

TIMELINES = [
    Timeline(
        2,
        (
            Event("target_encoder", 0, 20), Event("draft_encoder", 20, 24),
            Event("draft", 25, 29), Event("target", 30, 42, 3),
            Event("draft", 42, 48), Event("target", 48, 58, 1),
        ),
        np.arange(4),
    ),
    Timeline(
        0,
        (
            Event("target_encoder", 0, 20), Event("target", 20, 30, 1), Event("target", 30, 70, 1),
            Event("target", 70, 70.5, 7), Event("target", 71, 72, 12), Event("target", 72, 80, 1),
        ),
        np.arange(22),
    ),
]  # fmt: skip
PIECES = [" Ein", None, "es", " $a_1$", " <b>", " $5", ".", " langes", "~" * 120]
ROWS = [
    dataclasses.replace(
        ROW, input="From $5 to $6 & more", num_tokens=7, target_calls=3,
        blocks=[Block([0], [4, 1], 2), Block([3, 4], [], 5), Block([], [7], 6)],
    ),
    dataclasses.replace(
        ROW, input="The second one", num_tokens=32, target_calls=2,
        blocks=[Block([7] * 13, [4, 7] * 5, 0), Block([8], [], 6)],
    ),
]  # fmt: skip


GREY = "#6A6A6A"


class Vocabulary:
    eos_id = 1

    def decode(self, tokens):
        return "".join(PIECES[token] for token in tokens).lstrip(" ")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A text and its place in points."""

    text: str
    colour: str
    x: float
    y: float


@pytest.fixture
def figure_1(tmp_path):
    paper_figures.figure_1(ROWS, Vocabulary(), tmp_path)
    return (tmp_path / "figure_1.svg").read_text()


@pytest.fixture
def figure_5(tmp_path):
    paper_figures.figure_5(TIMELINES, tmp_path)
    return (tmp_path / "figure_5.svg").read_text()


def texts(svg):
    """Matplotlib draws letters as shapes; a comment has what they say."""
    found = re.findall(
        r'<!-- (.*?) -->\s*<g(?: style="fill: (#\w+)")? transform="translate\((\S+) (\S+)\)', svg
    )
    return [
        Drawn(html.unescape(text), colour.upper() or "black", float(x), float(y))
        for text, colour, x, y in found
    ]


def shapes(svg, style):
    """Colour and (left, top, right, bottom) of the shapes whose style matches."""
    for path, found in re.findall(rf'd="([^"]*)" clip-path="[^"]*" style="{style}', svg):
        numbers = [float(number) for number in re.findall(r"[\d.]+", path)]
        xs, ys = numbers[::2], numbers[1::2]
        yield found.upper(), (min(xs), min(ys), max(xs), max(ys))


def boxes(svg):
    """Colour, left and right end of each box, by row from the top."""
    rows = defaultdict(list)
    for colour, (left, top, right, _) in shapes(svg, "fill: (#\\w+); stroke: #ffffff"):
        rows[top].append((left, right, colour))
    return [sorted(rows[top]) for top in sorted(rows)]


def test_figure_1_has_a_numbered_line_for_each_target_run(figure_1):
    lines = defaultdict(list)
    for drawn in texts(figure_1):
        lines[drawn.y].append((drawn.text, drawn.colour))
    ein, spacing = [line for _, line in sorted(lines.items())][1:6], np.diff(sorted(lines))
    assert ein == [
        [("From $5 to $6 & more", "black")],
        [("tokens: 7, target runs: 3", GREY)],
        [("   1", GREY), ("Ein", GREEN), ("<b> </s>", VERMILION), ("es", BLUE)],
        [("   2", GREY), ("$a_1$ <b>", GREEN), ("$5", BLUE)],
        [("   3", GREY), ("langes", VERMILION), (".", BLUE)],
    ]
    assert set(spacing) == {16, 32}  # A blank line before each of both texts.
    assert sum(spacing == 32) == 2


def test_figure_1_without_a_vocabulary_shows_ids(tmp_path):
    paper_figures.figure_1(ROWS[:1], None, tmp_path)
    assert "4 1" in [d.text for d in texts((tmp_path / "figure_1.svg").read_text())]


def test_figure_5_has_a_box_for_each_call_and_each_guess(figure_5):
    speculative, plain = boxes(figure_5)
    assert [colour for *_, colour in speculative] == [
        YELLOW, ORANGE, BLUE, BLUE, PURPLE, BLUE, BLUE, PURPLE,
    ]  # fmt: skip
    assert [colour for *_, colour in plain] == [YELLOW] + 5 * [PURPLE]


def test_figure_5_is_to_scale(figure_5):
    expected = [
        (0, 20), (20, 24), (25, 27), (27, 29), (30, 42), (42, 45), (45, 48), (48, 58),
    ]  # fmt: skip
    speculative, plain = boxes(figure_5)
    left, scale = plain[0][0], (plain[0][1] - plain[0][0]) / 20
    found = [((a - left) / scale, (b - left) / scale) for a, b, _ in speculative]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    ticks = {d.text: d.x for d in texts(figure_5)}
    assert ticks["40"] - ticks["20"] == pytest.approx(20 * scale)


def test_figure_5_counts_tokens_where_there_is_room(figure_5):
    rows = boxes(figure_5)
    labels = [d for d in texts(figure_5) if d.text.isdecimal()][9:]  # After those of the axis.
    assert [d.text for d in labels] == ["3", "1", "1", "1", "1"]
    heights = sorted({d.y for d in labels})
    for label in labels:
        row = rows[heights.index(label.y)]
        assert any(a < label.x < b for a, b, colour in row if colour == PURPLE)
