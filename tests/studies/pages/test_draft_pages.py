"""The tables of docs/drafts.md."""

import json

import pytest

from specdec.studies.pages import draft_pages as pages
from specdec.studies.pages.files import PageError

FOUND = {
    "by_depth": [0.75, 0.5], "parameters": 1234567, "cost_ratio": 0.0625, "block_efficiency": 2.125,
    "predicted_speedup_counted": 1.5, "measured_speedup_decoder": 1.375, "measured_speedup": 1.25,
    "num_examples": 200,
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    shapes = {"chain-2": {"t0": FOUND | {"by_depth": [0.25]}, "t1": FOUND}}
    copies = {"tree-2-1": {"t0": FOUND, "t1": FOUND | {"parameters": None}}}
    content = {
        "drafts": {"EnDe": {"layer": shapes, "copy": copies}}, "device": "a CPU",
        "command": "again",
    }  # fmt: skip
    path = tmp_path / "results/drafts/summary.json"
    before = tmp_path / "results/before_mutual/drafts/summary.json"
    other = {"chain-2": {"t0": FOUND, "t1": FOUND | {"block_efficiency": 1.75}}}
    for each, drafts in ((path, content["drafts"]), (before, {"EnDe": {"its draft": other}})):
        each.parent.mkdir(parents=True)
        each.write_text(json.dumps(content | {"drafts": drafts}))
    return path


def test_a_row_for_each_draft_and_shape(path):
    lines = pages.SECTIONS["temperature-1"](path.parents[2]).splitlines()
    row = "0.75 | 0.50 | – | – | – | 0.06 | 2.12 | 1.50 | 1.38 | 1.25 |"
    assert f"| bundled | layer | chain 2 | 1,234,567 | {row}" in lines
    assert f"| bundled | copy | tree 2-1 | – | {row}" in lines
    before = row.replace("2.12", "1.75")
    assert f"| before mutual learning | its draft | chain 2 | 1,234,567 | {before}" in lines
    assert lines[-1] == (
        "200 sentences. From "
        "[results/drafts/summary.json](../results/drafts/summary.json): a CPU. `again`; "
        "[results/before_mutual/drafts/summary.json]"
        "(../results/before_mutual/drafts/summary.json): a CPU. `again`"
    )
    greedy = pages.SECTIONS["temperature-0"](path.parents[2])
    assert "| bundled | layer | chain 2 | 1,234,567 | 0.25 | – | – | – | – |" in greedy


def test_durations_are_those_of_the_recipes(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_RECIPES", {"layer": ("first", "second"), "heads": ("heads",)})
    (tmp_path / "configs/training").mkdir(parents=True)
    for name, told in (("first", "5 minutes."), ("second", "an hour"), ("heads", "2 hours")):
        path = tmp_path / f"configs/training/{name}.gin"
        path.write_text(f"# A recipe.\n# Duration: {told}\n# Expect:   much.\n")
    lines = pages.SECTIONS["training"](tmp_path).splitlines()
    assert lines[2] == "| layer, stage 1 | [first](../configs/training/first.gin) | 5 minutes |"
    assert lines[3] == "| layer, stage 2 | [second](../configs/training/second.gin) | an hour |"
    assert lines[4] == "| heads | [heads](../configs/training/heads.gin) | 2 hours |"
    path.write_text("# A recipe.\n")
    with pytest.raises(PageError, match=r"heads\.gin has no line '# Duration: \.\.\.'"):
        pages.SECTIONS["training"](tmp_path)


def test_the_studies_decode_as_many_sentences(path):
    content = json.loads(path.read_text())
    content["drafts"]["EnDe"]["layer"]["chain-2"]["t0"]["num_examples"] = 100
    path.write_text(json.dumps(content))
    with pytest.raises(PageError, match=r"have \[100, 200\] sentences"):
        pages.SECTIONS["temperature-0"](path.parents[2])


def test_missing_or_damaged_results_are_told(path):
    path.write_text(json.dumps({"drafts": {"EnDe": {"layer": {"chain-2": {}}}}}))
    with pytest.raises(PageError, match="has no study of drafts"):
        pages.SECTIONS["temperature-0"](path.parents[2])
    path.unlink()
    with pytest.raises(PageError, match=r"is missing; make it with: .*drafts\.gin"):
        pages.SECTIONS["temperature-0"](path.parents[2])
