"""The tables of docs/performance.md about arrays that grow and rows that are refilled."""

from __future__ import annotations

from specdec.studies.pages.tables import SUMMARY, Section, Table, spread

_METHOD = {"plain": "plain", "speculative": "γ = 3"}

LOOPS = Section(["results/loops/summary.json"], [
    Table("loops/{pair}/{method}/limits/limit{limit}", [
        ("", "{pair}, {method}"), ("limit", "{limit}"),
        ("ms per token, arrays that grow", spread("grown[ms_per_token]")),
        ("over the first limit", spread("grown[over_first]")),
        ("ms per token, arrays for the limit", spread("whole[ms_per_token]")),
        ("over the first limit", spread("whole[over_first]")),
    ], names=_METHOD),
    Table("loops/{pair}/{method}/batches/batch{batch}", [
        ("", "{pair}, {method}, batches of {batch}"), ("rows", "{rows}"),
        ("steps taken / needed, batch by batch", "{steps_alone:.2f}"),
        ("refilled", "{steps_refilled:.2f}"),
        ("rows/s, batch by batch", spread("rows_per_second[alone]")),
        ("refilled", spread("rows_per_second[refilled]")),
        ("refilled / batch by batch", spread("gain")),
    ], names=_METHOD),
    SUMMARY,
])  # fmt: skip
