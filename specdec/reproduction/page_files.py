"""Pages with sections that are made, and the results files they are made from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.core.files import write_text

Result = Mapping[str, Any]
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
    new = _SECTION.sub(lambda m: f"<!-- {m[1]} -->\n{section(m[1])}\n<!-- /{m[1]} -->", old)
    if new != old and not check:
        write_text(path, new)
    return new != old


def read_json(root: Path, name: str, remedy: str = "") -> Any:
    """A results file; raises PageError if it is missing or not JSON."""
    try:
        return json.loads((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PageError(f"{name} is missing{remedy and f'; make it with: {remedy}'}.") from None
    except ValueError as error:
        raise PageError(f"{name} is not valid JSON ({error}).") from None
