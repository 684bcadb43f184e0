"""The tables of docs/drafts.md."""

import json

import pytest

from specdec.studies.pages import draft_pages as pages
from specdec.studies.pages.files import PageError
from specdec.studies.pages.tables import render

FOUND = {
    "by_depth": [0.75, 0.5], "parameters": 1234567, "cost_ratio": 0.0625, "block_efficiency": 2.125,
    "predicted_speedup_counted": 1.5, "measured_speedup_decoder": 1.375, "measured_speedup": 1.25,
    "num_examples": 200,
}  # fmt: skip


def test_a_row_for_each_draft_and_shape(tmp_path):
    chain = {"chain-3": {"t0": FOUND | {"by_depth": [0.25]}, "t1": FOUND}}
    copies = {"tree-2-1": {"t0": FOUND, "t1": FOUND | {"parameters": None}}}
    path = tmp_path / "results/drafts/summary.json"
    path.parent.mkdir(parents=True)
    drafts = {"EnDe": {"bigram": chain, "copy": copies}}
    path.write_text(json.dumps({"drafts": drafts, "device": "a CPU", "command": "again"}))
    lines = render(tmp_path, pages.SECTIONS["temperature-1"]).splitlines()
    row = "0.75 | 0.50 | – | – | – | 0.06 | 2.12 | 1.50 | 1.38 | 1.25 |"
    assert f"| bigram | chain 3 | 1,234,567 | {row}" in lines
    assert f"| copy | tree 2-1 | – | {row}" in lines
    assert lines[-1].startswith("200 sentences. From ")
    greedy = render(tmp_path, pages.SECTIONS["temperature-0"])
    assert "| bigram | chain 3 | 1,234,567 | 0.25 | – | – | – | – |" in greedy


def test_durations_are_those_of_the_recipes(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "RECIPES", {"layer": "first", "heads": "second"})
    (tmp_path / "configs/training").mkdir(parents=True)
    for name, told in (("first", "5 minutes."), ("second", "an hour")):
        path = tmp_path / f"configs/training/{name}.gin"
        path.write_text(f"# A recipe.\n# Duration: {told}\n# Expect:   much.\n")
    lines = pages.training(tmp_path).splitlines()
    assert lines[2:] == [
        "| layer | [first](../configs/training/first.gin) | 5 minutes |",
        "| heads | [second](../configs/training/second.gin) | an hour |",
    ]
    path.write_text("# A recipe.\n")
    with pytest.raises(PageError, match=r"second\.gin has no line '# Duration: \.\.\.'"):
        pages.training(tmp_path)
