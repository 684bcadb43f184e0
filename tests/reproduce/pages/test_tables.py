"""Tables from declarations: formats of a row's items, and the rows that a pattern finds."""

import pytest

from specdec.measure.tables import table
from specdec.reproduce.pages.tables import leaves

ROW = {"time": {"median": 1.25}, "share": 0.125, "none": None}


@pytest.mark.parametrize(
    ("form", "cell"),
    [
        ("{time[median]:.2f} ms", "1.25 ms"),
        ("{share} of {none[any][thing]:.2f}", "–"),
        ("{none:.2f}", "–"),
        (lambda row: str(row["share"]), "0.125"),
    ],
)
def test_a_cell(form, cell):
    assert table([("name", form)], [ROW]).splitlines()[2] == f"| {cell} |"


def test_lines_for_columns():
    columns, rows = (
        [("", "{name}"), ("c", "{c:.1f}")],
        [{"name": "a", "c": 1}, {"name": "b", "c": 2}],
    )
    assert table(columns, rows) == "|  | c |\n|---|---|\n| a | 1.0 |\n| b | 2.0 |"
    assert table(columns, rows, numbers=True, across=True) == (
        "|  | a | b |\n|---|---:|---:|\n| c | 1.0 | 2.0 |"
    )


def test_leaves_have_what_is_above_them():
    study = {
        "name": "EnDe",
        "drafts": {"x/small": {"t0": {"alpha": 0.5}, "t1": {"alpha": 0.75, "name": "own"}}},
        "other": {"x": {"t0": {"alpha": 0.0}}},
    }  # fmt: skip
    found = list(leaves(study, "drafts/{draft}/t{t}"))
    assert found == [
        {"name": "EnDe", "draft": "x/small", "t": "0", "alpha": 0.5},
        {"name": "own", "draft": "x/small", "t": "1", "alpha": 0.75},
    ]
    assert [each["alpha"] for each in leaves(study, "*/*/t0")] == [0.5, 0.0]
    assert not list(leaves(study, "nothing/*/*"))
