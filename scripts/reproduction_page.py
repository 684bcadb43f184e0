"""Writes the tables of docs/reproduction.md from committed reproductions.

    python scripts/reproduction_page.py            # rewrites the page between its markers
    python scripts/reproduction_page.py --check    # exit code 1 if its text would change

A section of the page between <!-- NAME --> and <!-- /NAME --> shows
results/reproduction_NAME/summary.json and the figures beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from specdec.reproduction import tables as reproduction

PAGE = REPO / "docs" / "reproduction.md"
SECTION = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)
FIGURES = {
    1: "A decode, a line a target run: accepted, rejected and corrected tokens",
    2: "Expected tokens a target call by alpha (Equation 1)",
    3: "The best gamma by alpha and c",
    4: "Speedup and arithmetic operations by alpha, c = 0",
    5: "The calls of a decode at gamma 7, gamma 3 and plainly, on one time axis",
}


def section(name: str) -> str:
    """The text between one pair of markers."""
    directory = f"../results/reproduction_{name}"
    path = REPO / "results" / f"reproduction_{name}" / "summary.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    pictures = [
        f"**Figure {number}.** {caption}.\n\n![{caption}]({directory}/figures/figure_{number}.svg)"
        for number, caption in FIGURES.items()
    ]
    source = f"[summary.json]({directory}/summary.json): {content['device']}. "
    source += f"`{content['command']}`"
    return "\n\n".join([reproduction.page(content).rstrip(), "## Figures", *pictures, source])


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = SECTION.sub(lambda m: f"<!-- {m[1]} -->\n{section(m[1])}\n<!-- /{m[1]} -->", old)
    if check:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
