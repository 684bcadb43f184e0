"""What the site needs beside the pages: the files outside docs/ that they link to."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
# A link to a file of the repository, such as ](../results/scaling/summary.json).
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)((?:configs|notebooks|results|specdec|tests)/[^)#]+)\)")
# Sphinx's roles, as docstrings have them: :class:`specdec.types.Draft`.
_ROLE = re.compile(r":(?:class|func|meth|mod|attr):<code>~?([^<]+)</code>")


def on_files(files, config):
    """Adds the repository's files that pages link to."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    named = {
        (page.parent / match[1] / match[2]).resolve()
        for page in pages
        for match in _OUTSIDE.finditer(page.read_text(encoding="utf-8"))
    }
    for path in sorted(named):
        if path.is_file():
            name = _served(path.relative_to(ROOT).as_posix())
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _served(name):
    """Where a file is on the site. A .md would become a page."""
    return f"files/{name}" + (".txt" if name.endswith(".md") else "")


def on_page_markdown(markdown, page, config, files):
    """Points links out of docs/ to the copies."""
    depth = page.file.src_uri.count("/")

    def copied(match):
        return f"]({'../' * depth}{_served(match[2])})"

    return _OUTSIDE.sub(copied, markdown)


def on_page_content(html, page, config, files):
    """Docstrings' roles as code."""
    return _ROLE.sub(r"<code>\1</code>", html)
