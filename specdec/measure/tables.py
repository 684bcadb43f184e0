"""Tables as text: Markdown, and columns for a terminal."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Cell = str | Callable[[Any], str]
Columns = Iterable[tuple[str, Cell]]


class _MissingError(Exception):
    pass


class Formatter(string.Formatter):
    """Formats of a row's items, such as "{time[median]:.2f}"; None is a missing value."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        found = kwargs
        for key in field_name.replace("]", "").split("["):
            found = found[key]
            if found is None:
                raise _MissingError
        return found, field_name

    def of(self, form: str | Callable[[Any], str], row: Any, missing: str = "–") -> str:
        """A format of a row's items, or a function of the row; ``missing`` if a value is."""
        try:
            return self.vformat(form, (), row) if isinstance(form, str) else form(row)
        except _MissingError:
            return missing


def table(
    columns: Columns, rows: Iterable[Any], *,
    numbers: bool = False, across: bool = False, missing: str = "–",
) -> str:  # fmt: skip
    """A Markdown table.

    Args:
      columns: headings, each with what makes a row's cell: a function, or a format of its items.
      numbers: whether all columns but the first are flush right.
      across: whether each of ``columns`` is a line of the table, and each row a column.
      missing: the cell of a format whose value is None, or of which a part is.
    """
    columns, cell = list(columns), Formatter().of
    lines = [[heading for heading, _ in columns]]
    lines += [[cell(form, row, missing) for _, form in columns] for row in rows]
    if across:
        lines = list(zip(*lines, strict=True))
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    rule = "---:|" if numbers else "---|"
    return "\n".join([head, "|---|" + rule * (len(lines[0]) - 1), *body])


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines of columns two spaces apart, flush right but for those of ``left``.

    A row of two cells below a wider table, such as a name and a remark, sets no width but its
    first.
    """
    columns = max(map(len, rows))
    wide = [row for row in rows if len(row) == columns]
    widths = [max(len(row[i]) for row in (rows if i == 0 else wide)) for i in range(columns)]
    left = [index % columns for index in left]
    return [
        "  ".join(
            cell.ljust(width) if index in left or len(row) < columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]
