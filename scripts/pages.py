"""Writes the tables and pictures of README, docs and results from committed results files.

python scripts/pages.py [PAGE ...]    # rewrites the pages (all of them) between their markers
python scripts/pages.py --check       # exit code 1 if one of them would change
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec.reproduce.pages import sections as pages
from specdec.reproduce.pages import tables


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Rewrites or checks the pages; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as docs/performance.md")
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    args = parser.parse_args(argv)
    stale: list[str] = []
    known = pages.sections(root)
    try:
        for name in args.pages or known:
            if name not in known:
                raise tables.PageError(f"No page {name}; there are {', '.join(known)}.")
            if tables.rewrite(root / name, known[name], check=args.check):
                stale.append(name)
            if name == "README.md" and not args.check:
                pages.draw_devices(root)
    except tables.PageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.check and stale:
        print(f"Not up to date: {', '.join(stale)}; run python scripts/pages.py.")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
