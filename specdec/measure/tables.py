"""Tables as text: Markdown, and columns for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def markdown(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False
) -> str:
    """A Markdown table.

    Args:
      numbers: whether all columns but the first are flush right.
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    rule = "---:|" if numbers else "---|"
    return "\n".join([lines[0], "|---|" + rule * (len(columns) - 1), *lines[1:]])


def table(
    columns: Sequence[tuple[str, str | Callable[[Any], str]]], rows: Iterable[Any], *,
    numbers: bool = False,
) -> str:  # fmt: skip
    """:func:`markdown` of columns with what makes a row's cell: a function, or a format of it."""

    def cell(form: str | Callable[[Any], str], row: Any) -> str:
        return form.format_map(row) if isinstance(form, str) else form(row)

    cells = [[cell(form, row) for _, form in columns] for row in rows]
    return markdown([title for title, _ in columns], cells, numbers=numbers)


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
