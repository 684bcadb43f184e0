"""Measurements row by row that go on where a killed run stopped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from specdec.decoding.batches import Batch
from specdec.measure.lines import LineWriter, read_lines


class MeasuredRow(Protocol):
    """A dataclass of what JSON can hold; ``id`` is the row's place in the task."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> int:
        """Its place."""
        ...


R = TypeVar("R", bound=MeasuredRow)


def measure_rows(
    path: Path,
    batches: Sequence[Batch],
    row_type: type[R],
    measure: Callable[[Batch, Mapping[int, int]], Iterable[R]],
) -> list[R]:
    """Reads the rows of a file of JSON lines, and measures and appends those it lacks.

    Args:
      measure: (batch, wanted) -> rows; ``wanted`` maps the id of each row that is lacking to its
        place in the batch.

    Returns:
      all rows, by id.

    Raises:
      OSError: the file cannot be read or written.
    """
    done = {row.id: row for row in read_lines(path, lambda line: row_type(**json.loads(line)))}
    with LineWriter(path) as writer:
        for batch in batches:
            places = enumerate(batch.row_ids.tolist())
            wanted = {row: place for place, row in places if row >= 0 and row not in done}
            if not wanted:
                continue
            for row in measure(batch, wanted):
                done[row.id] = row
                writer.append(json.dumps(dataclasses.asdict(row)))
    return [done[row] for row in sorted(done)]
