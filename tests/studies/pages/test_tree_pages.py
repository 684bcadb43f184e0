"""The tables of docs/trees.md."""

import json

import pytest

from specdec.studies.pages import tree_pages as pages
from specdec.studies.pages.files import PageError


def share(mean):
    return {"mean": mean, "interval": [mean - 0.01, mean + 0.01]}


def draft(first, distance=0.25):
    rules = ("recursive", "optimum", "recursive_independent", "kseq", "optimum_independent",
             "likeliest")  # fmt: skip
    by_count = {rule: {"1": share(first), "2": share(0.75)} for rule in rules}
    by_count["optimum"]["2"] = {"mean": 0.8, "interval": [0.78, 0.83]}
    return {
        "num_texts": 9, "num_tokens": 12345, "acceptance": by_count,
        "of_optimum": {"1": share(1.0), "2": share(0.9375)},
        "distance": {
            rule: {"1": share(distance), "2": share(0.5)}
            for rule in ("typical_independent", "typical_likeliest")
        },
        "by_rank": {"recursive": [share(first), share(0.25)], "likeliest": [share(0.5)]},
    }  # fmt: skip


@pytest.fixture
def root(tmp_path):
    drafts = {"quickstart": draft(0.625), "quickstart/draft_small": draft(0.375, 0.75)}
    before = {"runs/before_mutual/draft": draft(0.125, 0.875) | {"num_tokens": 9999}}
    for name, found in (("results/siblings", drafts), ("results/before_mutual/siblings", before)):
        content = {
            "siblings": {"EnDe": {"t0": {"drafts": found}, "t1": {"drafts": found}}},
            "device": "a CPU", "command": "again",
        }  # fmt: skip
        path = tmp_path / name / "summary.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    return tmp_path


def test_rules_beside_the_bounds(root):
    lines = pages.one_position(root).splitlines()
    assert lines[0] == (
        "| rule | bundled draft, K = 1 | bundled draft, K = 2 | small draft, K = 1 "
        "| small draft, K = 2 | before mutual learning, K = 1 | before mutual learning, K = 2 |"
    )
    assert (
        "| **at most, without replacement** | 0.625 | 0.800 | 0.375 | 0.800 | 0.125 | 0.800 |"
        in lines
    )
    assert f"| default, of the most |{3 * ' 100.0 % | 93.8 % |'}" in lines
    assert "| K-SEQ, independent | 0.625 | 0.750 | 0.375 | 0.750 | 0.125 | 0.750 |" in lines
    assert lines[-1] == (
        "Temperature 1, 12,345 and 9,999 tokens of 9 texts that each target generated. "
        "Intervals of 95 %, "
        "clustered by text, are at most ±0.025. From "
        "[results/siblings/summary.json](../results/siblings/summary.json): a CPU. `again`; "
        "[results/before_mutual/siblings/summary.json]"
        "(../results/before_mutual/siblings/summary.json): a CPU. `again`"
    )


def test_ranks_that_are_never_reached_are_dashes(root):
    lines = pages.by_rank(root).splitlines()
    assert lines[0] == "| guess | 1 | 2 |"
    assert "| small draft, without replacement, temperature 1 | 0.375 | 0.250 |" in lines
    assert "| bundled draft, point masses, temperature 0 | 0.500 | – |" in lines


def test_the_distance_of_a_lossy_rule(root):
    lines = pages.typical(root).splitlines()
    row = "| the K likeliest tokens | 0.250 | 0.500 | 0.750 | 0.500 | 0.875 | 0.500 |"
    assert row in lines


def of_draft(best):
    return {
        "verifiers": {
            "shapes": {
                "tree 2-1": {
                    "num_blocks": 1234, "recursive": 2.0, "traversal": 2.0625,
                    "difference": 0.0625, "interval": [-0.01, 0.135],
                }
            }
        },
        **{
            f"auto_t{t}": {
                "chosen": "gamma 2", "best": "tree 2-1",
                "speedups": {"plain decoding": 1.0, "gamma 2": 1.5, "tree 2-1": best},
            }
            for t in (0, 1)
        },
    }  # fmt: skip


def test_verifiers_on_the_same_blocks_and_auto(root):
    small = of_draft(1.8)
    small["verifiers"]["shapes"]["tree 2-1"]["num_blocks"] = 4321
    for name, drafts in (
        ("results/trees", {"quickstart": of_draft(1.53), "quickstart_draft_small": small}),
        ("results/before_mutual/trees", {"runs_before_mutual_draft": of_draft(3.0)}),
    ):
        path = root / name / "summary.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"trees": {"EnDe": drafts}}))
    lines = pages.traversal(root).splitlines()
    row = "2.000 | 2.062 | +0.0625 (-0.0100 to +0.1350) |"
    assert f"| small draft, tree 2-1 | 4,321 | {row}" in lines
    assert f"| before mutual learning, tree 2-1 | 1,234 | {row}" in lines
    lines = pages.auto(root).splitlines()
    row = "temperature 1 | gamma 2 | 1.50 | tree 2-1 |"
    assert f"| bundled draft, {row} 1.53 | 2.0 % |" in lines
    assert f"| before mutual learning, {row} 3.00 | 100.0 % |" in lines
    assert lines[-1] == (
        "- before mutual learning, temperature 1: tree 2-1 3.00, gamma 2 1.50, plain decoding 1.00"
    )


def test_missing_or_damaged_results(root):
    path = root / "results/siblings/summary.json"
    path.write_text("{}")
    with pytest.raises(PageError, match="has no 'siblings'"):
        pages.by_rank(root)
    path.unlink()
    with pytest.raises(PageError, match=r"make it with: .*siblings\.gin"):
        pages.one_position(root)


def test_the_page_shows_the_committed_results(script):
    assert script.main(["--check", "docs/trees.md"]) == 0
