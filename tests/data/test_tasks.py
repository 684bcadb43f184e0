import pytest

from specdec.data.tasks import evenly


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [0]), (2, [0, 5]), (3, [0, 3, 6]), (9, [0, 1, 2, 3, 4, 5, 6, 7, 8])]
)
def test_items_are_spread_evenly(count, expected):
    assert list(evenly(range(10), count)) == expected


def test_no_more_items_than_there_are():
    assert list(evenly("abc", 10)) == ["a", "b", "c"]
    assert list(evenly("", 10)) == []
