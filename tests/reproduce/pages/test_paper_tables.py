"""The tables of a reproduction, from numbers made up for them."""

from specdec.reproduce import paper, paper_tables

ALPHA = {
    "alpha": 0.5, "alpha_interval": [0.45, 0.55], "num_tokens": 100, "num_texts": 9,
    "lenience": {"1.0": {"alpha": 0.5, "total_variation": 0.0},
                 "0.5": {"alpha": 0.625, "total_variation": 0.125}},
}  # fmt: skip
DECODE = {
    "drafter": "bigram", "temperature": 1.0, "gamma": 2, "tree": None, "acceptance_rate": 0.48,
    "block_efficiency": 1.6, "cost_ratio": 0.03, "verify_ratio": 1.1, "verifier": "TokenVerifier",
    "predicted_speedup_thm38": 1.65, "predicted_speedup": 1.51, "predicted_speedup_counted": 1.38,
    "measured_speedup_decoder": 1.37, "measured_speedup": 1.22,
    "spread": {"measured_speedup_decoder": {"low": 1.3, "high": 1.4}},
    "ms_per_token": {"speculative": 0.8, "autoregressive": 1.0}, "quality": {"bleu": 31.25},
    "target": "large", "num_examples": 9,
}  # fmt: skip
CONTENT = {
    "device": "2 cores", "command": "python scripts/reproduce.py",
    "studies": {"toy": {
        "name": "Toy",
        "alpha": {"t1": {"temperature": 1.0, "drafts": {"bigram": ALPHA}}},
        "table_2": {"bigram": {"t1": {"gamma2": DECODE}}},
    }},
}  # fmt: skip


def rows(table):
    return [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def changed(**parts):
    return {"studies": {"toy": CONTENT["studies"]["toy"] | parts}}


def test_table_2():
    (row,) = rows(paper_tables.TABLE_2(CONTENT))
    assert row == [
        "Toy", "bigram", "1", "2", "0.50", "0.48", "1.60", "0.030", "1.10", "1.65", "1.51", "1.38",
        "**1.37**", "1.30 to 1.40", "1.22", "0.800", "1.000",
    ]  # fmt: skip


def test_table_5_has_a_row_for_each_lenience():
    assert rows(paper_tables.TABLE_5(CONTENT)) == [
        ["Toy", "bigram", "1", "1", "0.50", "0.000"],
        ["Toy", "bigram", "1", "0.5", "0.62", "0.125"],
    ]


def test_the_papers_rows_are_beside_them():
    text = paper_tables.page(CONTENT)
    assert "| EnDe | T5-small | 0 | 7 | 0.75 | 0.02 | 3.2 | 3.4 |" in text
    assert "| bigram | 0.19 | 0.23 | 0.25 | 0.32 |" in text
    assert "contradicts itself" in text


def test_table_3_has_a_row_for_each_draft_and_a_column_for_each_temperature():
    greedy = {"temperature": 0.0, "drafts": {"bigram": ALPHA | {"alpha": 0.25}, "copying": ALPHA}}
    toy = CONTENT["studies"]["toy"]
    both = toy | {"name": "Both", "alpha": toy["alpha"] | {"t0": greedy}}
    assert rows(paper_tables.TABLE_3(CONTENT, {"studies": {"both": both}})) == [
        ["Toy", "bigram", "–", "0.500"],
        ["Both", "bigram", "0.250", "0.500"],
        ["Both", "copying", "0.500", "–"],
    ]
    printed = {(row[0], row[1]): row[2:] for row in rows(paper_tables.PAPER_TABLE_3)}
    assert printed["GPT-like (97M)", "GPT-like (6M)"] == ["0.88", "0.89"]
    # Table 3's T5s are those of Table 4.
    for row in paper.TABLE_4:
        column = printed[f"T5-XXL ({row.task})", row.draft]
        assert column[int(row.temperature)] == f"{row.alpha:.2f}"
