"""Damaged files of every kind: one clear error, or the target's own distribution."""

import contextlib
import dataclasses
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from pathlib import Path

import pytest
from fuzz_good import GOOD
from fuzz_kinds import KINDS
from fuzz_mutations import mutations
from fuzz_readers import Changed

pytest.importorskip("transformers", reason="makes tokenizers' files")
FEW, MANY = 5, 56  # Mutations of a kind.
LOADING, CHECKING = 20, 60  # Seconds. Checks have programs to compile.
MEMORY = 24 * 2**30  # Bytes; a file that asks for more is to be refused before.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The verdict on a damaged file; others than "refused" and "taken" are faults."""

    kind: str
    mutation: str
    verdict: str
    detail: str


class Hang(BaseException):
    """A reader took too long."""


@contextlib.contextmanager
def limited(seconds):
    """Time and memory have an end inside, and warnings are not shown."""

    def end(*_):
        raise Hang(f"over {seconds} s")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGALRM, end)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def outcomes(name, good, count, *, checked):
    """Those of a kind's file as it is, which must be taken, and damaged in ``count`` ways."""
    kind = KINDS[name]
    path = sorted(good.glob(kind.file))[0]
    data = path.read_bytes()
    yield outcome(name, good, path.relative_to(good), "nothing", data, checked)
    for mutation in mutations(data, kind.form, count, name):
        yield outcome(name, good, path.relative_to(good), *mutation, checked)


def outcome(name, good, file, mutation, data, checked):
    """The outcome of a copy of a directory with other content of a file, None for a directory."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "files"
        shutil.copytree(good, root, symlinks=True)
        path = root / file
        path.unlink()
        if data is None:
            path.mkdir()
        else:
            path.write_bytes(data)
        try:
            with limited(LOADING):
                check = kind.read(root)
            if checked:
                with limited(CHECKING):
                    check()
        except Changed as error:
            return Outcome(name, mutation, "distribution", str(error))
        except (ValueError, OSError) as error:
            names = [path.name, str(root), *({str(file.parent)} - {"."})]
            verdict = judged(str(error), names if kind.named else [])
            verdict = "a good file refused" if mutation == "nothing" else verdict
            return Outcome(name, mutation, verdict, where(error))
        except Exception as error:
            return Outcome(name, mutation, type(error).__name__, where(error))
        except Hang as error:
            return Outcome(name, mutation, "hang", where(error))
    return Outcome(name, mutation, "taken", "")


def judged(message, names):
    """Whether a refusal is one line that has one of the names."""
    if "\n" in message.strip():
        return "several lines"
    if names and not any(name in message for name in names):
        return "no file named"
    return "refused"


def where(error):
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "specdec" in f.filename]
    return f"{error} [{' '.join(ours[-4:])}]"[:600]


def check(once, kinds, count, *, checked):
    """The number of outcomes, none of which is a fault."""
    found = [
        each for name in kinds
        for each in outcomes(name, once(f"fuzz_{KINDS[name].good}", GOOD[KINDS[name].good]), count,
                             checked=checked)
    ]  # fmt: skip
    faults = [each for each in found if each.verdict not in ("refused", "taken")]
    assert not faults, "\n".join(map(str, faults))
    return len(found)


def test_some_damaged_files(once):
    """All kinds but those for which a run must have decoded."""
    kinds = [name for name, kind in KINDS.items() if kind.good != "decoded"]
    assert check(once, kinds, FEW, checked=False) == (1 + FEW) * len(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(once, kind):
    check(once, [kind], MANY, checked=True)
