"""Look of figures, and saving them: vector and PNG, the same bytes every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILION, PURPLE, YELLOW = "#D55E00", "#CC79A7", "#F0E442"
_STYLE: Any = {
    "font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#e4e4e4", "lines.linewidth": 2,
    "text.hinting": "none",  # Else letters are as wide as pixels allow, other than in the SVG.
    "svg.hashsalt": "specdec",  # Else identifiers in the file are random.
}  # fmt: skip


@contextmanager
def saved(
    directory: Path, name: str, size: tuple[float, float], suffixes: Sequence[str] = ("svg", "png")
) -> Iterator[Any]:
    """A figure of ``size`` inches to draw on, saved on leaving as ``name.svg`` and ``name.png``.

    Does not use pyplot, which keeps global state. Makes the directory if needed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained", dpi=160)
        FigureCanvasAgg(figure)
        yield figure
        directory.mkdir(parents=True, exist_ok=True)
        for suffix in suffixes:
            # A date would make every file new.
            figure.savefig(directory / f"{name}.{suffix}", metadata={"Date": None})
