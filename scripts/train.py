"""The command ``specdec-train`` from a checkout; specdec/runs/command_line.py has its options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec.runs.command_line import train

if __name__ == "__main__":
    train()
