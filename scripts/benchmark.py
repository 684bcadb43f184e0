"""The command ``specdec-benchmark`` from a checkout; see specdec/reproduce/commands.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec.reproduce.commands import benchmark

if __name__ == "__main__":
    benchmark()
