"""Every drafter, verifier and beam search as the compilers of TPUs and of an H100 make it.

What they must not do is read in the compiled programs; ``test_defects.py`` shows that it would be
found.
"""

import dataclasses

import pytest
from slow import slow
from small_decodes import CASES, one_chip, report_of

# Each case is compiled for one chip, what most decodes are made of for all. In a plain run, what
# differs most from the others.
QUICK = [
    ("v4", "chain sampled", 8), ("v5e", "tree", 1), ("v5e", "eagle", 8), ("v5e", "beams", 8),
    ("v5e", "int4", 1), ("v6e", "traversal", 8), ("h100", "tree sampled", 1),
]  # fmt: skip
SLOW = [
    ("v4", "plain", 1), ("v4", "chain", 1), 
    ("v4", "speculative beams", 8), ("v4", "int8", 1), ("v4", "cut off", 8),
    ("v5e", "plain sampled", 8), ("v5e", "stopping", 8), ("v5e", "block", 8), ("v5e", "copying", 8),
    ("v5e", "typical", 1), ("v6e", "k-seq", 8), ("v6e", "best first", 8),
    ("v6e", "point masses", 8), ("v6e", "merged", 1), ("v6e", "hierarchical", 8),
    ("v6e", "random", 8), ("v6e", "bigrams", 8),
    ("v6e", "lenient", 8), ("h100", "plain", 8), ("h100", "chain", 1),
]  # fmt: skip
# What is not 0: order is what these ask for.
KNOWN = {
    "beams": {"sorts": 4}, "speculative beams": {"sorts": 8}, "best first": {"sorts": 3},
    "traversal": {"sorts": 1}, "bigrams": {"sorts": 3},
}  # fmt: skip


def test_no_case_is_left_out():
    assert {name for _, name, _ in QUICK + SLOW} == set(CASES)


@pytest.mark.parametrize(
    ("chip", "name", "batch_size"),
    [*QUICK, *(slow(*each) for each in SLOW)],
)
def test_nothing_is_amiss(chip, name, batch_size):
    report = report_of(one_chip(chip), name, batch_size)
    found = dataclasses.asdict(report.findings)
    most = dict.fromkeys(found, 0) | KNOWN.get(name, {})
    assert {what: found[what] for what in found if found[what] > most[what]} == {}
    assert 0 < report.block.ms < 1
    if chip == "h100":
        assert report.block.kernels > 0
        assert (report.program.thunks.graphs, report.program.thunks.loops_outside) == (1, 0)
        assert report.block.cycles is None
    else:
        assert report.block.cycles > 0
        assert report.block.kernels is report.program.thunks is None


@pytest.mark.parametrize(
    ("chip", "name", "family"),
    [
        ("v5e", "chain", "t5gemma2"), slow("v4", "tree sampled", "t5gemma"),
        slow("h100", "chain", "bart"),
    ],
)  # fmt: skip
def test_nothing_is_amiss_with_another_family(chip, name, family):
    found = dataclasses.asdict(report_of(one_chip(chip), name, 8, family).findings)
    assert {what: count for what, count in found.items() if count} == {}
