"""Dataclasses whose annotations check their fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from specdec.core.fields import Count, PathName, Real, Share, Whole, checked


@checked()
class Options:
    size: Count
    some: Annotated[int, Whole(0, 9)] | None = None
    share: Share = 0.5
    kind: Literal["a", "b"] = "a"
    other: Literal["c"] | None = None
    flag: bool = False
    path: PathName = "here"
    free: int | str = 0

    def __post_init__(self):
        if self.some is not None and self.some > self.size:
            raise ValueError("some is more than size.")


@checked(named=True)
class More(Options):
    weight: Annotated[float, Real("above 1", 1.5)] = 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0."),
        ({"size": 2**31}, "size must be at most 2147483647, got 2147483648."),
        ({"size": 1.0}, "size must be a whole number, got 1.0."),
        ({"size": 9, "some": 10}, "some must be in 0..9, got 10."),
        ({"size": None}, "size must be a whole number, got None."),
        ({"size": 1, "share": 2}, "share must be in [0, 1], got 2."),
        ({"size": 1, "share": float("nan")}, "share must be in [0, 1], got nan."),
        ({"size": 1, "share": True}, "share must be in [0, 1], got True."),
        ({"size": True}, "size must be a whole number, got True."),
        ({"size": 1, "kind": "c"}, "kind must be 'a' or 'b', got 'c'."),
        ({"size": 1, "kind": None}, "kind must be 'a' or 'b', got None."),
        ({"size": 1, "other": "a"}, "other must be 'c' or None, got 'a'."),
        ({"size": 1, "flag": 1}, "flag must be True or False, got 1."),
        ({"size": 1, "path": ""}, "path must be a path or a name, got ''."),
        ({"size": 1, "some": 2}, "some is more than size."),
        # A field's own range is looked at before what relates it to others.
        ({"size": "1", "some": 2}, "size must be a whole number, got '1'."),
    ],
)
def test_what_is_wrong_is_said(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Options(**given)


def test_a_named_class_is_in_its_messages_and_inherits_checks():
    with pytest.raises(ValueError, match=r"^More.weight must be above 1, got 1\.$"):
        More(3, weight=1)
    with pytest.raises(ValueError, match=r"^More.size must be at least 1, got 0\.$"):
        More(0)
    with pytest.raises(ValueError, match="some is more than size"):
        More(3, some=4)


def test_fields_become_pythons_own_types():
    made = Options(np.int64(3), some=None, share=np.float32(0.25), flag=np.bool_(1), path=Path("a"))
    assert [type(value) for value in vars(made).values()] == [
        int, type(None), float, str, type(None), bool, str, int
    ]  # fmt: skip
    assert made == Options(3, share=0.25, flag=True, path="a")
    assert hash(made)
