"""Pages with sections that are made, and the results files they are made from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.core.files import read_object, write_text

Result = Mapping[str, Any]
# Errors of a section whose results are damaged.
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
_SECTION = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


class PageError(ValueError):
    """A results file or a page is not as it should be."""


def rewrite(path: Path, section: Callable[[str], str], *, check: bool) -> bool:
    """Writes a page's sections, unless it is to ``check`` only; whether they changed.

    Raises:
      PageError: the page has no section, or a results file is missing or damaged.
    """
    old = path.read_text(encoding="utf-8")
    if not _SECTION.search(old):
        raise PageError(f"{path} has no section between <!-- NAME --> and <!-- /NAME -->.")

    def made(name: str) -> str:
        try:
            return section(name)
        except PageError:
            raise
        except _DAMAGED as error:
            what = f"{type(error).__name__}: {error}"
            raise PageError(
                f"The section {name} of {path} cannot be made: something in its results files is "
                f"missing, or not what it was ({what})."
            ) from error

    new = _SECTION.sub(lambda m: f"<!-- {m[1]} -->\n{made(m[1])}\n<!-- /{m[1]} -->", old)
    if new != old and not check:
        write_text(path, new)
    return new != old


def read_json(root: Path, name: str) -> dict[str, Any]:
    """A results file, with its "path"; raises PageError if it is missing or no JSON object."""
    try:
        return {**read_object(root / name), "path": name}
    except FileNotFoundError:
        raise PageError(f"{name} is missing.") from None
    except ValueError as error:
        raise PageError(str(error)) from None
