"""The command ``specdec-transcribe`` from a checkout; runs/command_line.py has its options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec.runs.command_line import transcribe

if __name__ == "__main__":
    transcribe()
