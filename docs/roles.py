"""An extension of griffe: Sphinx roles in docstrings become links to the reference."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import griffe

_CODE_OR_BRACKET = re.compile(r"(`[^`]*`)|<")
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    """Rewrites :class:`x.Y` and :class:`~x.Y` in each docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is None:
            return

        def link(match: re.Match[str]) -> str:
            name = path = match[2]
            with contextlib.suppress(griffe.NameResolutionError):  # Then it is a path already.
                path = obj.resolve(name)
            shown = name.rpartition(".")[2] if match[1] else name.removeprefix("specdec.")
            # Optional: what is not in the reference stays a word.
            return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'

        # Docstrings are no HTML: a bracket outside of code is itself.
        text = _CODE_OR_BRACKET.sub(lambda m: m[1] or "&lt;", obj.docstring.value)
        obj.docstring.value = _ROLE.sub(link, text)
