"""Computes results/scaling/summary.json and writes its tables into docs/scaling.md.

    python scripts/scaling_page.py            # rewrites both
    python scripts/scaling_page.py --check    # exit code 1 if either would change

It takes a minute on any machine: shapes from configs/shapes, figures from configs/hardware, and no
device. A section of the page between <!-- NAME --> and <!-- /NAME --> is a table of
specdec/reproduction/scaling_tables.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import cast

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from specdec.core.roofline import Hardware
from specdec.models.t5.config import T5Config
from specdec.reproduction import scaling, scaling_tables
from specdec.runs import dry_run, gin_files
from specdec.runs.gin_bindings import configured_hardware

PAGE = REPO / "docs" / "scaling.md"
SUMMARY = REPO / "results" / "scaling" / "summary.json"
SECTION = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)
TARGETS = {"T5-XXL": "t5-v1_1-xxl", "T5 of 110 B": "t5-v1_1-110b"}
DRAFTS = {"small": "t5-v1_1-small", "base": "t5-v1_1-base", "large": "t5-v1_1-large"}
HARDWARE = ("tpu_v4", "tpu_v5e", "h200")


def shape(name: str) -> T5Config:
    """A T5 of configs/shapes, in bfloat16."""
    config, _ = dry_run.find_config(name, REPO)
    return dataclasses.replace(config, dtype="bfloat16")


def hardware(name: str) -> Hardware:
    """One of configs/hardware."""
    decode = str(REPO / "configs/experiments/plans/xxl_h200.gin")
    gin_files.parse([decode, str(REPO / f"configs/hardware/{name}.gin")], [], REPO)
    return cast(Hardware, configured_hardware())


def compute() -> dict:
    """The content of summary.json."""
    study = scaling.Study(
        {name: shape(source) for name, source in TARGETS.items()},
        {size: shape(source) for size, source in DRAFTS.items()},
        [hardware(name) for name in HARDWARE],
    )
    return {"command": "python scripts/scaling_page.py", **study.run()}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    # As it is read back: numbers and names, no tuples.
    summary = json.dumps(compute(), indent=1) + "\n"
    content = json.loads(summary)
    old = PAGE.read_text(encoding="utf-8")
    new = SECTION.sub(
        lambda m: f"<!-- {m[1]} -->\n{scaling_tables.TABLES[m[1]](content)}\n<!-- /{m[1]} -->", old
    )
    if check:
        return int(new != old or summary != SUMMARY.read_text(encoding="utf-8"))
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(summary, encoding="utf-8")
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
