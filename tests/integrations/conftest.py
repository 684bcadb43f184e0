"""T5X itself: a checkout that ``--t5x_path`` names, or an installed one."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def t5x_path(request):
    """The checkout, or None where T5X is installed."""
    path = request.config.getoption("--t5x_path")
    if path is None and importlib.util.find_spec("t5x") is None:
        pytest.skip("T5X is not installed; --t5x_path=DIR names a checkout of google-research/t5x")
    return path and str(Path(path).absolute())


@pytest.fixture(scope="session")
def t5x(t5x_path):
    """The package; an ImportError names what T5X itself misses."""
    if t5x_path:
        sys.path.insert(0, t5x_path)
    for network in ("t5", "scalable_t5"):
        importlib.import_module(f"t5x.examples.{network}.network")
    return importlib.import_module("t5x")
