"""The tiny pair of the tests of runs."""

from tests.runs.conftest import tiny

__all__ = ["tiny"]
