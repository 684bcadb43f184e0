"""Shared by all tests: where the real data is, and no more programs in memory than needed."""

import gc
import os
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption(
        "--t5x_path", help="a checkout of github.com/google-research/t5x, to test against it"
    )


@pytest.fixture(scope="session")
def data_dir():
    """The evaluation data, which is not part of the project: SPECDEC_DATA or ../shared/data."""
    path = Path(os.environ.get("SPECDEC_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "ende_tatoeba" / "test.tsv").is_file():
        pytest.skip(f"no data set at {path}; set SPECDEC_DATA to a folder with ende_tatoeba/")
    return path


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A process may map so many pieces of memory; thousands of compiled programs are too many."""
    yield
    jax.clear_caches()
    gc.collect()
