"""Shared by all tests: the session's caches, the real data, no more programs than memory holds."""

import atexit
import fcntl
import gc
import os
import shutil
import tempfile
from pathlib import Path

import array_annotations
import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKER = "PYTEST_XDIST_WORKER" in os.environ


def _share_caches():
    """A directory of this session's: what one process compiles, no other compiles again.

    Nothing of an earlier session is used, nor the user's own cache. Variables of the environment
    reach pytest's workers and all processes that tests start; JAX reads them when it is imported,
    so this comes first. To keep programs between sessions, set JAX_COMPILATION_CACHE_DIR.
    """
    path = tempfile.mkdtemp(prefix="specdec-tests-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.environ["SPECDEC_TEST_SESSION"] = path
    os.environ["SPECDEC_CACHE"] = f"{path}/specdec"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{path}/programs")
    # All programs, also those of a single operation: tests are made of thousands.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


if not WORKER:
    _share_caches()


array_annotations.install()


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


@pytest.fixture(scope="session")
def once():
    """`once(name, fill)`: a directory that `fill(directory)` writes once for all workers.

    Workers steal tests from each other, so a fixture of a module may be set up in several.
    """

    def directory(name, fill):
        path = Path(os.environ["SPECDEC_TEST_SESSION"]) / name
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                unfinished = Path(tempfile.mkdtemp(dir=path.parent, prefix=name))
                fill(unfinished)
                unfinished.rename(path)
        return path

    return directory


@pytest.fixture(scope="module")
def torch():
    """For comparisons with transformers: one thread, since a pool only contends with XLA's."""
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A process may map 65,530 pieces of memory, and a program takes hundreds.

    They stay in the session's cache on disk, where reading one takes a hundredth of compiling it.
    """
    yield
    import jax

    jax.clear_caches()
    gc.collect()
