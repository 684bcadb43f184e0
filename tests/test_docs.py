"""README and docs: the site builds, links lead somewhere, the Python of README runs."""

import ast
import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
README = REPO / "README.md"
PAGES = [README, *sorted((REPO / "docs").rglob("*.md"))]
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page):
    """The relative links of a page, without those inside code."""
    found = _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in found if "://" not in link]


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for page in PAGES[1:]:
        assert (tmp_path / page.relative_to(REPO / "docs")).with_suffix(".html").is_file()
    # Brackets in docstrings are themselves, in code and outside of it.
    training = (tmp_path / "reference/training.html").read_text(encoding="utf-8")
    assert "<code>input&lt;TAB&gt;target</code>" in training
    reference = (tmp_path / "reference/specdec.html").read_text(encoding="utf-8")
    assert 'id="specdec.Pair.generate"' in reference
    # Files outside docs/ are in the site, and roles in docstrings are links.
    assert (tmp_path / "repository/results/quickstart_ende/results.json").is_file()
    assert ":class:" not in reference
    assert re.search(r'<a [^>]*href="#specdec.Ngram"[^>]*><code>', reference)


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"([\w/]+\.md)$", (REPO / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {page.relative_to(REPO / "docs").as_posix() for page in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO).as_posix())
def test_relative_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def anchors(page):
    """The headings of a page as GitHub names them; generated ones of the reference are unknown."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_python_of_readme_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(README), "exec"), {})
    assert "Wo ist der Bahnhof?" in capsys.readouterr().out


BLOCKS = [
    (page.name, code)
    for page in PAGES
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    if "def result(self" not in code  # A protocol.
]


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=lambda part: part.strip().splitlines()[-1])
def test_blocks_define_what_they_use(page, code):
    """Each can be pasted alone."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(dir(builtins))
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(each.asname or each.name).split(".")[0] for each in node.names}
    assert not {node.id for node in names} - known
