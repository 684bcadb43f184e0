"""Hooks of mkdocs: files outside docs/ that pages link to become part of the site."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
_PLACE = "repository"  # Where in the site such files are.


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Adds each file to the site that a page links to, and puts its place there into the link."""
    root, folder = Path(config.config_file_path).parent, posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path.startswith("docs/"):
            return match[0]
        name = f"{_PLACE}/{path}"
        if (root / path).suffix == ".md":  # As it is, not as a page of the site.
            name += ".txt"
        if files.get_file_from_path(name) is None and (root / path).is_file():
            found = {"inclusion": InclusionLevel.NOT_IN_NAV, "abs_src_path": str(root / path)}
            files.append(File.generated(config, name, **found))
        return match[1] + os.path.relpath(name, folder or ".").replace(os.sep, "/")

    return _LINK.sub(moved, markdown)
