"""Writes the tables and pictures of README and docs from committed results files.

    python scripts/pages.py [PAGE ...]    # rewrites the pages (all of them) between their markers
    python scripts/pages.py --check       # exit code 1 if one of them would change

docs/scaling.md is computed, in a minute, from configs/shapes and configs/hardware; its numbers are
kept in results/scaling/summary.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec.checkpoints.architectures import Config
from specdec.core import files
from specdec.core.roofline import Hardware
from specdec.runs import dry_run, gin_files
from specdec.runs.gin_bindings import configured
from specdec.studies import scaling
from specdec.studies.pages import files as page_files
from specdec.studies.pages import sections as pages

SUMMARY = "results/scaling/summary.json"
TARGETS = {"T5-XXL": "t5-v1_1-xxl", "T5 of 110 B": "t5-v1_1-110b"}
DRAFTS = {"small": "t5-v1_1-small", "base": "t5-v1_1-base", "large": "t5-v1_1-large"}
HARDWARE = ("tpu_v4", "tpu_v5e", "h200")


def scaling_numbers() -> dict[str, Any]:
    """The content of results/scaling/summary.json."""

    def shape(name: str) -> Config:
        return dataclasses.replace(dry_run.find_config(name, ROOT)[0], dtype="bfloat16")

    def hardware(name: str) -> Hardware:
        decode = str(ROOT / "configs/experiments/plans/xxl_h200.gin")
        gin_files.parse([decode, str(ROOT / f"configs/hardware/{name}.gin")], [], ROOT)
        return configured(Hardware)

    targets, drafts = ({n: shape(s) for n, s in names.items()} for names in (TARGETS, DRAFTS))
    plan = scaling.ScalingPlan(targets, drafts, list(map(hardware, HARDWARE)))
    # As it is read back: numbers and names, no tuples.
    return json.loads(json.dumps({"command": "python scripts/pages.py", **plan.run()}))


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Rewrites or checks the pages; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as docs/scaling.md")
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    args = parser.parse_args(argv)
    stale: list[str] = []

    def computed() -> dict[str, Any]:
        content = scaling_numbers()
        if not (root / SUMMARY).is_file() or files.read_object(root / SUMMARY) != content:
            stale.append(SUMMARY)
            if not args.check:
                files.write_text(root / SUMMARY, json.dumps(content, indent=1) + "\n")
        return content

    known = pages.sections(root, computed, draw=not args.check)
    try:
        for name in args.pages or known:
            if name not in known:
                raise page_files.PageError(f"No page {name}; there are {', '.join(known)}.")
            if page_files.rewrite(root / name, known[name], check=args.check):
                stale.append(name)
    except page_files.PageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.check and stale:
        print(f"Not up to date: {', '.join(stale)}; run python scripts/pages.py.")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
