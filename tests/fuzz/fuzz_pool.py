"""Reads damaged files in processes of their own, with a limit of time for each."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LOADING, CHECKING = 20, 60  # Seconds. Checks have programs to compile.
STARTING = 120
MEMORY = 6 * 2**30  # Bytes; a file that asks for more is to be refused before.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a damaged file."""

    kind: str
    mutation: str
    verdict: str  # "refused" or "taken"; anything else is a fault.
    detail: str

    @property
    def fine(self) -> bool:
        return self.verdict in ("refused", "taken")


def outcomes(
    good: Mapping[str, Path], cases: Sequence[tuple[str, int, int]], checked: bool
) -> Iterator[Outcome]:
    """The outcome of each case: a kind, how many of its mutations are drawn, and which of them.

    Args:
      good: the directories of fuzz_kinds.GOOD that the kinds need.
      checked: whether what was taken is checked, which mostly is to decode with it.
    """
    worker = None
    for kind, count, number in cases:
        worker = worker or _Worker(good)
        outcome, alive = worker.outcome(kind, count, number, checked)
        worker = worker if alive else None
        yield outcome
    if worker is not None:
        worker.end()


class _Worker:
    """A process that reads one file after the other."""

    def __init__(self, good: Mapping[str, Path]):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, good), daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(STARTING):
            self.end()
            raise TimeoutError("A process that reads files did not start.")
        self._connection.recv()

    def outcome(self, kind: str, count: int, number: int, checked: bool) -> tuple[Outcome, bool]:
        """A case's outcome, and whether the process can go on."""
        self._connection.send((kind, count, number, checked))
        name = ""
        try:
            for phase, seconds in (("named", STARTING), ("load", LOADING), ("check", CHECKING)):
                if not self._connection.poll(seconds):
                    self.end()
                    return Outcome(kind, name, "hang", f"{phase}: over {seconds} s"), False
                message = self._connection.recv()
                if isinstance(message, Outcome):
                    return message, True
                name = message
        except EOFError:
            self._process.join()
            return Outcome(kind, name, "crash", f"exit code {self._process.exitcode}"), False
        raise AssertionError(message)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, good: Mapping[str, Path]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    import fuzz_kinds
    from transformers import AutoTokenizer  # noqa: F401  Before the time of a case begins.

    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    warnings.simplefilter("ignore")
    connection.send("ready")
    while True:
        try:
            kind, count, number, checked = connection.recv()
        except EOFError:
            return
        with tempfile.TemporaryDirectory() as folder:
            options = fuzz_kinds, good, Path(folder), kind, count, number, checked
            try:
                outcome = _outcome(connection, *options)
            except Exception as error:
                outcome = Outcome(kind, str(number), "a fault of this test", _where(error))
            connection.send(outcome)


def _outcome(
    connection: Connection, kinds: Any, good: Mapping[str, Path], folder: Path, name: str,
    count: int, number: int, checked: bool,
) -> Outcome:  # fmt: skip
    from fuzz_mutations import mutations
    from fuzz_readers import Changed

    kind = kinds.KINDS[name]
    root = folder / "files"
    shutil.copytree(good[kind.good], root, symlinks=True)
    path = sorted(root.glob(kind.file))[0]
    if number < 0:
        what, data = "nothing", path.read_bytes()
    else:
        mutation = mutations(path.read_bytes(), kind.form, count, name)[number]
        what, data = mutation.name, mutation.content()
    path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    connection.send(what)
    try:
        check = kind.read(root)
        connection.send(what)
        if checked:
            check()
    except Changed as error:
        return Outcome(name, what, "distribution", str(error))
    except (ValueError, OSError) as error:
        if number < 0:
            return Outcome(name, what, "a good file refused", str(error))
        folder = str(path.parent.relative_to(root))
        names = [path.name, str(root), *([folder] if folder != "." else [])]
        return Outcome(name, what, *_judged(error, names if kind.named else []))
    except BaseException as error:
        return Outcome(name, what, type(error).__name__, _where(error))
    return Outcome(name, what, "taken", "")


def _judged(error: Exception, names: Sequence[str]) -> tuple[str, str]:
    """Whether a refusal is one line that has one of the names."""
    message = str(error)
    if "\n" in message.strip():
        return "several lines", message
    if names and not any(name in message for name in names):
        return "no file named", f"{type(error).__name__}: {message} {_where(error)}"
    return "refused", message


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "specdec" in f.filename]
    return f"{error} [{' '.join(ours[-4:])}]"[:600]
