"""Dataclasses whose fields are checked by their annotations.

    @checked()
    class Chain:
        gamma: Annotated[int, Whole(1, MOST_NODES)]
        stop_below: Share = 0.0

``Whole(1, MOST_NODES)`` is a check: a function of the field's name and value, which gives the value
or raises ValueError. Fields that are ``bool`` or ``Literal`` need none, and one whose annotation
has ``None`` may be None. What relates fields stands in ``__post_init__``, which runs once each of
them is in its range.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import types
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)  # fmt: skip

from specdec.core.arguments import choice, path_name, real, truth, whole

T = TypeVar("T")
Check = Callable[[str, Any], Any]


@dataclasses.dataclass(frozen=True)
class Whole:
    """The check of a whole number; see :func:`specdec.core.arguments.whole`."""

    least: int
    most: int | None = None
    note: str = ""  # Behind the field's name in messages.

    def __call__(self, name: str, value: Any) -> int:
        return whole(name + self.note, value, self.least, self.most)


@dataclasses.dataclass(frozen=True)
class Real:
    """The check of a finite number; see :func:`specdec.core.arguments.real`."""

    meaning: str
    least: float = -math.inf
    most: float = math.inf

    def __call__(self, name: str, value: Any) -> float:
        return real(name, value, self.meaning, self.least, self.most)


class OneOf:
    """The check of one of a few values; see :func:`specdec.core.arguments.choice`."""

    def __init__(self, *known: Any):
        self.known = known

    def __call__(self, name: str, value: Any) -> Any:
        return choice(name, value, *self.known)


ABOVE_0 = math.ulp(0.0)
BELOW_1 = 1 - 1e-12
Count = Annotated[int, Whole(1)]
Natural = Annotated[int, Whole(0)]
Above0 = Annotated[float, Real("above 0", ABOVE_0)]
PositiveShare = Annotated[float, Real("in (0, 1]", ABOVE_0, 1)]
Share = Annotated[float, Real("in [0, 1]", 0, 1)]
PathName = Annotated[str | os.PathLike, path_name]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked(*, named: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Makes a frozen dataclass that checks its fields, before its own ``__post_init__``.

    A field becomes what its check gives: Python's own type in place of NumPy's.

    Args:
      named: messages name the class, too: "T5Config.d_model" instead of "d_model".
      kw_only: see :func:`dataclasses.dataclass`.
    """

    def decorate(cls: type[T]) -> type[T]:
        relate = getattr(cls, "__post_init__", None)

        def __post_init__(self: Any) -> None:
            prefix = f"{type(self).__name__}." if named else ""
            for name, check in _checks(type(self)).items():
                object.__setattr__(self, name, check(prefix + name, getattr(self, name)))
            if relate is not None:
                relate(self)

        cls.__post_init__ = __post_init__  # pyright: ignore[reportAttributeAccessIssue]
        return dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)

    return decorate


@functools.cache
def _checks(cls: type) -> dict[str, Check]:
    """The checks of a dataclass's fields by name."""
    hints = get_type_hints(cls, include_extras=True)
    found = {
        field.name: _check(hints[field.name]) for field in dataclasses.fields(cls) if field.init
    }
    return {name: check for name, check in found.items() if check is not None}


def _check(hint: Any) -> Check | None:
    """The check of an annotation; None if it has none."""
    if get_origin(hint) in (Union, types.UnionType):
        some = [each for each in get_args(hint) if each is not type(None)]
        if len(some) > 1 or len(some) == len(get_args(hint)):
            return None
        if get_origin(some[0]) is Literal:
            return OneOf(*get_args(some[0]), None)
        check = _check(some[0])
        return check and (lambda name, value: None if value is None else check(name, value))
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is Literal:
        return OneOf(*get_args(hint))
    return truth if hint is bool else None
