"""README and docs show committed results, and their script says what is missing."""

import json
import re
from pathlib import Path

import pytest

from specdec.reproduce.pages import sections as pages
from specdec.reproduce.pages import tables

REPO = Path(__file__).parents[3]


def test_the_pages_show_the_committed_results(script):
    assert script.main(["--check"]) == 0
    marked = {
        path.relative_to(REPO).as_posix()
        for path in [REPO / "README.md", *REPO.glob("docs/**/*.md"), *REPO.glob("results/**/*.md")]
        if re.search(r"^<!-- /", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert marked == pages.sections(REPO).keys()


def write(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def section(name, text=""):
    return f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"results/one/results\.json is missing"),
        ({}, "cannot be made: "),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_results_is_named(tmp_path, content, message):
    if content is not None:
        write(tmp_path, "results/one/results.json", content)
    write(tmp_path, "page.md", section("runs"))
    with pytest.raises(tables.PageError, match=message):
        tables.rewrite(
            tmp_path / "page.md",
            lambda _: tables.render(tmp_path, pages.runs({"one": "greedy"})),
            check=True,
        )


def test_only_what_is_between_the_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"a\n{section('these', 'x')}b\n{section('and-those')}c\n")
    assert tables.rewrite(page, str.upper, check=True)
    assert "x" in page.read_text()
    assert tables.rewrite(page, str.upper, check=False)
    expected = f"a\n{section('these', 'THESE')}b\n{section('and-those', 'AND-THOSE')}c\n"
    assert page.read_text() == expected
    assert not tables.rewrite(page, str.upper, check=False)
    page.write_text("<!-- these -->\nx\n")
    with pytest.raises(tables.PageError, match="no section between"):
        tables.rewrite(page, str.upper, check=True)


RESULTS = sorted(
    path for name in ("results.json", "summary.json") for path in (REPO / "results").rglob(name)
)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_have_a_row_with_their_command_and_a_commit(path):
    """And a commit that has the configuration: their own, or a later one."""
    folder = path.parent.relative_to(REPO / "results").as_posix()
    lines = (REPO / "results/README.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if f"[{folder}]({folder}/{path.name})" in line)
    content = json.loads(path.read_text())
    assert f"`{content['command']}`" in row
    own = (content.get("git_sha") or "").removesuffix("-dirty")[:7]
    commits = re.findall(r"\| ([0-9a-f]{7}) \|", row)
    assert commits in ([own], ["a53d7a4"])
