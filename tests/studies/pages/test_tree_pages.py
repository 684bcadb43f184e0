"""The tables of docs/trees.md, from numbers made up for them."""

import json

import pytest

from specdec.studies.pages.files import PageError
from specdec.studies.pages.tables import render
from specdec.studies.pages.tree_pages import SECTIONS


def share(mean):
    return {"mean": mean, "interval": [mean - 0.01, mean + 0.01]}


def siblings(first):
    rules = ("recursive", "optimum", "recursive_independent", "kseq", "optimum_independent",
             "likeliest")  # fmt: skip
    by_count = {rule: {"1": share(first), "2": share(0.75)} for rule in rules}
    by_count["optimum"]["2"] = {"mean": 0.8, "interval": [0.78, 0.83]}
    lossy = ("typical_independent", "typical_likeliest")
    return {
        "num_texts": 9, "num_tokens": 12345, "acceptance": by_count,
        "of_optimum": {"1": share(1.0), "2": share(0.9375)},
        "distance": {rule: {"1": share(first / 4), "2": share(0.5)} for rule in lossy},
        "by_rank": {"recursive": [share(first), share(0.25)], "likeliest": [share(0.5)]},
    }  # fmt: skip


def trees(best):
    def shape(tokens, nodes, depth):
        spread = [tokens - 0.1, tokens + 0.1]
        return {"nodes": nodes, "depth": depth, "block_efficiency": tokens, "interval": spread}

    shapes = {"chain of 2": shape(1.5, 2, 2), "tree 2-1": shape(2.5, 4, 2)}
    both = {"num_blocks": 1234, "recursive": 2.0, "traversal": 2.0625, "difference": 0.0625}
    speedups = {"plain decoding": 1.0, "gamma 2": 1.5, "tree 2-1": best}
    auto = {"chosen": "gamma 2", "best": "tree 2-1", "speedups": speedups}
    ratios = {"2": {"median": 1.5}, "4": {"median": 2.5}, "8": {"median": 4.5}}
    return {
        "t0": {"shapes": shapes}, "t1": {"shapes": shapes}, "auto_t0": auto, "auto_t1": auto,
        "verifiers": {"shapes": {"tree 2-1": both | {"interval": [-0.01, 0.135]}}},
        "costs": {
            "verify_ratio": ratios,
            "level": {"chain": {"median": 0.25}, "tree 4-1-1-1": {"median": 0.5}},
            "compile_seconds": {"chain of 2": [3.0, 1.0, 2.0]},
        },
    }  # fmt: skip


@pytest.fixture
def lines(tmp_path):
    drafts = {"quickstart": siblings(0.625), "quickstart/draft_small": siblings(0.375)}
    both = {f"t{t}": {"drafts": drafts} for t in (0, 1)}
    shapes = {"quickstart": trees(1.53), "quickstart_draft_small": trees(3.0)}
    for kind, found in (("siblings", both), ("trees", shapes)):
        path = tmp_path / f"results/{kind}/summary.json"
        path.parent.mkdir(parents=True)
        found = {kind: {"EnDe": found}, "device": "a CPU", "command": "again"}
        path.write_text(json.dumps(found))
    return lambda name: render(tmp_path, SECTIONS[name]).splitlines()


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("one-position", "| **at most, without replacement** | 0.625 | 0.800 | 0.375 | 0.800 |"),
        ("one-position", "| default, of the most | 100.0 % | 93.8 % | 100.0 % | 93.8 % |"),
        ("by-rank", "| small draft, without replacement, temperature 1 | 0.375 | 0.250 | – "),
        ("by-rank", "| bundled draft, point masses, temperature 0 | 0.500 | – "),
        ("typical", "| the K likeliest tokens | 0.156 | 0.500 | 0.094 | 0.500 |"),
        ("shapes", "| tree 2-1 | 4 | 2.50 (2.40 to 2.60) | 2.50 (2.40 to 2.60) | "),
        ("shapes", "| **best tree over best chain** |  | **1.67** | "),
        ("costs", "| v | 1.50 | 2.50 | 4.50 |"),
        # Calls of 3 and of 5 tokens: v of 2 and of 3; levels of 0.25 and of 0.5.
        ("costs", "| small draft, temperature 1, best chain | 1.50 | 0.60 | 1.00 |"),
        ("costs", "| small draft, temperature 1, best tree | 2.50 | 0.62 | 1.67 |"),
        ("costs", "Seconds to compile a decode: chain of 2 2.0."),
        ("traversal", "| small draft, tree 2-1 | 1,234 | 2.000 | 2.062 | +0.0625 (-0.0100"),
        ("auto", "| bundled draft, temperature 1 | gamma 2 | 1.50 | tree 2-1 | 1.53 | 2.0 % |"),
        ("auto", "| small draft, temperature 0 | gamma 2 | 1.50 | tree 2-1 | 3.00 | 100.0 % |"),
        ("auto", "- small draft, temperature 1: tree 2-1 3.00, gamma 2 1.50, plain decoding 1.00"),
    ],
)  # fmt: skip
def test_a_line(lines, section, expected):
    assert any(line.startswith(expected) for line in lines(section))


def test_the_widest_interval_is_told(lines):
    assert "12,345 tokens of 9 texts" in lines("one-position")[-1]
    assert "at most ±0.025." in lines("one-position")[-1]


def test_missing_results(tmp_path):
    with pytest.raises(PageError, match=r"results/siblings/summary\.json is missing"):
        render(tmp_path, SECTIONS["by-rank"])
