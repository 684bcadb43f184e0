"""The lines of a run's file, appended as they finish, read back by a resumed run; and its rows."""

from __future__ import annotations

import collections
import dataclasses
import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from specdec.core.files import naming, parse_object, to_json
from specdec.core.stats import RunStats
from specdec.decoding.batches import Batch
from specdec.decoding.blocks import Block, SearchedBlock
from specdec.decoding.hypotheses import Hypothesis
from specdec.measure.lossless import Mismatch
from specdec.types import Stats

T = TypeVar("T")
Members = tuple[Batch, list[Any]]  # A batch and its rows, which come first in it.
_CHECKSUM = b', "checksum": '
_COUNTS = ("target_calls", "proposed", "examined", "accepted", "dropped")


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoded example; an object of ``decodes.jsonl`` has these keys."""

    id: int  # Its index in the task.
    # Texts; output is None without a vocabulary.
    input: str
    output: str | None
    reference: str | None  # The task's, or None.
    tokens: list[int]  # The output, EOS included.
    # This row's counts; see `Stats`.
    num_tokens: int
    target_calls: int
    proposed: int
    examined: int
    accepted: int
    dropped: int
    accepted_histogram: list[int]
    accepted_by_rank: list[int]
    acceptance_prob_sum: float
    blocks: list[Block]  # Accepted, rejected and added tokens of each block.
    # Of each token, if asked for; see `specdec.types.LogProbs`. Alternatives are [token, log p].
    log_probs: list[float] | None = None
    adjusted_log_probs: list[float] | None = None
    alternatives: list[list[tuple[int, float]]] | None = None
    # With an audit; see `specdec.measure.lossless.Audit`.
    margins: list[float] | None = None
    rounding: float | None = None  # The largest, beside each of the references.
    # First difference from plain greedy decoding; None where there is none or when sampling.
    mismatch: Mismatch | None = None
    width_matched_mismatch: Mismatch | None = None  # The same against the width-matched reference.
    # Of beam search, the best hypotheses: see `specdec.decoding.hypotheses.Hypothesis`.
    beams: list[dict[str, Any]] | None = None
    searched: list[SearchedBlock] | None = None  # Blocks of speculative beams.

    @classmethod
    def of(
        cls, outputs: Sequence[Hypothesis], stats: Stats, index: int, *, id: int, input: str,
        reference: str | None,
    ) -> Row:  # fmt: skip
        """Row ``index`` of a decode, without mismatches.

        Args:
          outputs: the row's one, with its blocks; or of beam search its hypotheses, best first.
          stats: the whole batch's.
        """
        best, about = outputs[0], {}
        if best.score is None:
            about = {"blocks": best.blocks, **_log_probs(best)}
        else:
            about = {"blocks": [], "beams": [*map(_fields, outputs)], "searched": best.blocks}
        return cls(
            id=id, input=input, output=best.text, reference=reference, tokens=best.tokens.tolist(),
            num_tokens=len(best.tokens), **_counts(stats, index), **about,
        )  # fmt: skip

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Row:
        """A row from its line of JSON.

        Raises:
          TypeError, KeyError: these are no row's fields.
        """
        fields["blocks"] = [Block(**block) for block in fields["blocks"]]
        if fields.get("searched") is not None:
            fields["searched"] = [SearchedBlock(**block) for block in fields["searched"]]
        for name in ("mismatch", "width_matched_mismatch"):
            fields[name] = fields[name] and Mismatch(**fields[name])
        return cls(**fields)

    def stats(self, gamma: int) -> RunStats:
        """This row's counts, to be added to others'; ``gamma`` is 0 for plain decoding."""
        return RunStats(
            gamma, 1, emitted=self.num_tokens, **{name: getattr(self, name) for name in _COUNTS},
            accepted_histogram=tuple(self.accepted_histogram),
            accepted_by_rank=tuple(self.accepted_by_rank),
            acceptance_prob_sum=self.acceptance_prob_sum,
        )  # fmt: skip


def _counts(stats: Stats, index: int) -> dict[str, Any]:
    """A row's counts."""
    return {name: int(getattr(stats, name)[index]) for name in _COUNTS} | {
        "accepted_histogram": [int(n) for n in stats.accepted_histogram[index]],
        "accepted_by_rank": [int(n) for n in stats.accepted_by_rank[index]],
        "acceptance_prob_sum": float(stats.acceptance_prob_sum[index]),
    }


def _fields(beam: Hypothesis) -> dict[str, Any]:
    """A hypothesis for JSON, without fields that were not asked for."""
    log_probs = {name: getattr(beam, name) for name in ("log_probs", "adjusted_log_probs")}
    kept = {name: value.tolist() for name, value in log_probs.items() if value is not None}
    numbers = {"score": beam.score, "log_prob": beam.log_prob}
    return {"tokens": beam.tokens.tolist(), **numbers, "text": beam.text, **kept}


def _log_probs(output: Hypothesis) -> dict[str, Any]:
    """Log-probabilities of a row's tokens, if they were kept."""
    if output.log_probs is None or output.adjusted_log_probs is None:
        return {}
    pairs = None
    if output.alternatives is not None:
        each = zip(*(values.tolist() for values in output.alternatives), strict=True)
        pairs = [[*zip(*lists, strict=True)] for lists in each]
    return {
        "log_probs": output.log_probs.tolist(),
        "adjusted_log_probs": output.adjusted_log_probs.tolist(),
        "alternatives": pairs,
    }


def read_rows(path: Path) -> Iterator[Row]:
    """Complete rows of a ``decodes.jsonl``; see :func:`read_lines`."""
    return read_lines(path, Row.from_fields)


def read_lines(path: Path, made: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Objects of a file's complete lines one at a time, none if there is no file.

    A last line without an end was cut off by a kill and is left out.

    Args:
      made: of a line's fields; raises TypeError or KeyError if they are others.

    Raises:
      ValueError: a complete line is not as it was written.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            content, found, checksum = line.rstrip(b"\n").rpartition(_CHECKSUM)
            if found and checksum != b'"%08x"}' % zlib.crc32(content):
                raise ValueError(
                    f"{path}:{number} was changed after it was written: its checksum differs. "
                    "Remove the file to start again from the first row."
                )
            try:
                if not found:
                    raise ValueError("no checksum")
                yield made(parse_object(f"{content.decode()}}}", str(path)))
            except (ValueError, TypeError, KeyError):
                raise ValueError(
                    f"{path}:{number} is not a row of this program; remove the file to start "
                    "again from the first row."
                ) from None


class LineWriter:
    """Appends lines to a file, each append on disk before the next; drops a torn last line.

    Raises:
      OSError: (on entering) another process does, or the file cannot be written.
    """

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> LineWriter:
        self._file: IO[bytes] = open(self._path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise OSError(f"{self._path} is being written by another process.") from None
        except OSError:
            pass  # A file system without locks.
        self._file.truncate(_end_of_lines(self._file))
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, *lines: str) -> None:
        """Writes lines and flushes them to the disk together."""
        with naming(self._path):
            self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())


def _end_of_lines(file: IO[bytes]) -> int:
    """Bytes up to the last line's end; of a long file only its own end is read."""
    if not file.seek(0, os.SEEK_END):
        return 0  # Nothing that could be mapped.
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1


def line_of(row: Any) -> str:
    """A dataclass as a line of JSON, without the line's end; its last field is a checksum."""
    content = to_json(dataclasses.asdict(row)).removesuffix("}")
    return f'{content}{_CHECKSUM.decode()}"{zlib.crc32(content.encode("utf-8")):08x}"}}'


def append_missing(
    append: Callable[..., object], batches: Iterable[Members], done: int,
    measure: Callable[[Iterator[Members]], Iterable[Sequence[Row]]],
) -> Iterator[tuple[int, Batch, list[Row]]]:  # fmt: skip
    """Appends the rows that follow the first ``done`` ones, a batch at a time.

    Args:
      append: given a batch's new lines, puts them on disk.
      batches: all of the run's, in its order.
      done: rows that are in the file.
      measure: gives all rows of each of some batches, in their order; it may read batches ahead.

    Returns:
      (number, batch, new rows) of each batch that lacked some, when they are on disk.
    """
    begun: collections.deque[tuple[int, Batch, int]] = collections.deque()

    def lacking(before: int) -> Iterator[Members]:
        for number, (batch, members) in enumerate(batches):
            if before < len(members):
                # The whole batch again even if a part is done.
                begun.append((number, batch, before))
                yield batch, members
            before = max(0, before - len(members))

    for measured in measure(lacking(done)):
        number, batch, before = begun.popleft()
        rows = list(measured[before:])
        append(*map(line_of, rows))
        yield number, batch, rows
