"""README and docs: short enough, every link leads somewhere, and the site builds strictly."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def slug(heading):
    """A heading's anchor, as GitHub and mkdocs make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_readme_is_short():
    text = (REPO / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert "](docs/images/performance_quickstart.svg)" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO).as_posix())
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), link


def test_every_page_is_in_the_navigation():
    navigation = (REPO / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    for page in PAGES[1:]:
        assert f": {page.relative_to(REPO / 'docs').as_posix()}\n" in navigation, page


def test_the_site_builds_without_a_warning(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=REPO, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    reference = (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
    assert "max_decode_len" in reference
    assert ":class:" not in reference
