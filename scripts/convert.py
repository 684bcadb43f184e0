"""The command ``specdec-convert`` from a checkout; specdec/runs/commands.py has its options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec.runs.commands import convert

if __name__ == "__main__":
    convert()
