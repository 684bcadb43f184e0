"""The figures' curves against theory; what is drawn of decodes."""

import dataclasses
import html
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from specdec.decoding.blocks import Block
from specdec.reproduce import paper, paper_figures
from specdec.reproduce.measure.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, YELLOW
from specdec.reproduce.measure.timeline import Event, Timeline
from tests.measure.test_kept_rows import ROW

FIGURES = {
    "figure_2": paper_figures.figure_2,
    "figure_3": paper_figures.figure_3,
    "figure_4": paper_figures.figure_4,
}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws a figure and gives the object that was saved."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: saved.append(self))

    def draw(name):
        FIGURES[name](tmp_path)
        return saved[-1]

    return draw


def curve(axes, index):
    line = axes.get_lines()[index]
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_figure_2_shows_equation_1(drawn):
    (axes,) = drawn("figure_2").axes
    for index, gamma in enumerate(paper.FIGURE_GAMMAS):
        alphas, tokens = curve(axes, index)
        np.testing.assert_allclose(tokens, sum(alphas**i for i in range(gamma + 1)))
    alphas, tokens = curve(axes, len(paper.FIGURE_GAMMAS))
    np.testing.assert_allclose(tokens, 1 / (1 - alphas))
    assert texts(axes) == ["γ = 1", "γ = 3", "γ = 5", "γ = 7", "γ = 10", "γ = ∞"]


def test_figure_3_passes_through_the_papers_points(drawn):
    (axes,) = drawn("figure_3").axes
    for index, (cost_ratio, gammas) in enumerate(paper.FIGURE_3.items()):
        alphas, best = curve(axes, 2 * index)
        at = [int(np.argmin(abs(alphas - alpha))) for alpha in paper.FIGURE_3_ALPHAS]
        assert tuple(best[at]) == gammas, cost_ratio
        points = curve(axes, 2 * index + 1)
        np.testing.assert_array_equal(points, [paper.FIGURE_3_ALPHAS, gammas])
    assert texts(axes) == ["c = 0.01", "c = 0.02", "c = 0.05", "c = 0.1"]


def test_figure_4_shows_speed_and_operations(drawn):
    left, right = drawn("figure_4").axes
    for index, gamma in enumerate(paper.FIGURE_GAMMAS):
        alphas, speeds = curve(left, index)
        tokens = sum(alphas**i for i in range(gamma + 1))
        np.testing.assert_allclose(speeds, tokens)
        alphas, operations = curve(right, index)
        np.testing.assert_allclose(operations, (gamma + 1) / tokens)
    assert texts(left) == texts(right) == [f"γ = {gamma}" for gamma in paper.FIGURE_GAMMAS]


def drawn_texts(path):
    """Matplotlib draws letters as shapes; a comment has what they say. And their colours."""
    found = re.findall(r'<!-- (.*?) -->\s*<g(?: style="fill: (#\w+)")?', path.read_text())
    return [(html.unescape(text), colour.upper()) for text, colour in found]


class Vocabulary:
    eos_id = 1

    def decode(self, tokens):
        pieces = (" Ein", None, "es", " $a_1$", " <b>", " $5", ".")
        return "".join(pieces[token] for token in tokens).lstrip(" ")


def test_figure_1_has_a_numbered_line_for_each_target_run(tmp_path):
    blocks = [Block([0], [4, 1], 2), Block([3, 4], [], 5)]
    row = dataclasses.replace(
        ROW, input="From $5 to $6 & more", num_tokens=6, target_calls=2, blocks=blocks
    )
    paper_figures.figure_1([row], Vocabulary(), tmp_path)
    found = drawn_texts(tmp_path / "figure_1.svg")
    for each in (
        ("From $5 to $6 & more", ""), ("tokens: 6, target runs: 2", "#6A6A6A"),
        ("   1", "#6A6A6A"), ("Ein", GREEN), ("<b> </s>", VERMILION), ("es", BLUE),
        ("   2", "#6A6A6A"), ("$a_1$ <b>", GREEN), ("$5", BLUE),
    ):  # fmt: skip
        assert each in found


def test_figure_5_has_a_box_for_each_call_and_each_guess(tmp_path):
    events = (
        Event("target_encoder", 0, 20), Event("draft_encoder", 20, 24),
        Event("draft", 25, 29), Event("target", 30, 42, 3), Event("draft", 42, 48),
        Event("target", 48, 58, 1),
    )  # fmt: skip
    plain = (Event("target_encoder", 0, 20), Event("target", 20, 30, 1))
    runs = [Timeline(2, events, np.arange(4)), Timeline(0, plain, np.arange(1))]
    paper_figures.figure_5(runs, tmp_path)
    svg = (tmp_path / "figure_5.svg").read_text()
    boxes = re.findall(
        r'd="M (\S+) [^"]*" clip-path="[^"]*" style="fill: (#\w+); stroke: #fff', svg
    )
    rows = [[colour.upper() for _, colour in boxes[:8]], [c.upper() for _, c in boxes[8:]]]
    assert sorted(rows[0]) == sorted([YELLOW, ORANGE, *[BLUE] * 4, PURPLE, PURPLE])
    assert rows[1] == [YELLOW, PURPLE]
