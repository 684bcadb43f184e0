"""Tiny checkpoints that several files of tests decode with."""

import pytest
from pairs import write


@pytest.fixture(scope="session")
def paths(once):
    """Directories of tiny checkpoints by name."""
    return {path.name: path for path in once("tiny-checkpoints", write).iterdir()}
