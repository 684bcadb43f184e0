"""The figures' curves against theory, and their files: whole, alike every time, no state left."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from specdec.studies import paper, paper_figures

FIGURES = {
    "figure_2": paper_figures.figure_2,
    "figure_3": paper_figures.figure_3,
    "figure_4": paper_figures.figure_4,
}
SUFFIXES = ("svg", "png")


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


def test_both_files_of_each_figure_are_the_same_every_time(tmp_path):
    paper_figures.write_theory(tmp_path / "new" / "one")
    paper_figures.write_theory(tmp_path / "two")
    names = {f"{name}.{suffix}" for name in FIGURES for suffix in SUFFIXES}
    assert {path.name for path in (tmp_path / "two").iterdir()} == names
    for name in names:
        first = (tmp_path / "new" / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes(), name
        if name.endswith("svg"):
            assert b"<svg" in first
            assert b"dc:date" not in first
        else:
            assert first.startswith(b"\x89PNG")
            assert int.from_bytes(first[16:20], "big") >= 1000  # Pixels across.


def test_no_setting_of_matplotlib_is_left_changed(tmp_path):
    with matplotlib.rc_context({"font.size": 9.5, "svg.hashsalt": "another"}):
        before = dict(matplotlib.rcParams)
        paper_figures.figure_2(tmp_path)
        assert dict(matplotlib.rcParams) == before


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


@pytest.mark.parametrize("name", FIGURES)
def test_labels_are_legible(name, drawn):
    """At least 10 points, inside the picture, none over another; a colour for each curve."""
    figure = drawn(name)
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
        assert min(text.get_fontsize() for text in axes.texts) >= 10
        for i, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[:i])
        named = [
            line
            for line in axes.get_lines()
            if line.get_linewidth() == 2 and len(line.get_xdata()) > 10
        ]
        colours = [line.get_color() for line in named]
        assert len(set(colours)) == len(colours) >= 4
        assert axes.get_xlabel() == "α"
