"""The figures' curves against theory, and their files: alike every time."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from specdec.reproduce import paper, paper_figures

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


def test_files_are_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        paper_figures.figure_2(tmp_path / name)
    for suffix in ("svg", "png"):
        first, second = ((tmp_path / n / f"figure_2.{suffix}").read_bytes() for n in ("one", "two"))
        assert first == second


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
