"""The paper's Figures 2, 3 and 4, drawn from theory alone.

Each function writes ``figure_N.svg`` and ``figure_N.png``, the same bytes every time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specdec.core import theory
from specdec.measure.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, saved
from specdec.reproduction import paper

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE)
_ALPHAS = np.linspace(0, 1, 201)
_TOP = max(paper.FIGURE_GAMMAS) + 2


def write_figures(directory: Path) -> None:
    """All three."""
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
            _curve(left, _ALPHAS, speeds, colour, name)
            operations = [theory.operations_factor(alpha, gamma, 0.0) for alpha in _ALPHAS]
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
