"""Checks of single arguments: NumPy's numbers are numbers, and truth values are not."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from typing import Any

import numpy as np

MOST = 2**31 - 1  # A compiled program counts in 32 bits.
MOST_SIZE = 2**24  # Of a network: above every model's, and far below what overflows.
MOST_LAYERS = 10_000  # Each has names of its own.


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int.

    Args:
      most: :data:`MOST` if None.

    Raises:
      ValueError: it is no whole number, or not in least..most.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}.")
    value = int(value)
    if not least <= value <= (MOST if most is None else most):
        limits = f"in {least}..{most}"
        if most is None:
            limits = f"at least {least}" if value < least else f"at most {MOST}"
        raise ValueError(f"{name} must be {limits}, got {value}.")
    return value


def real(
    name: str, value: Any, meaning: str, least: float = -math.inf, most: float = math.inf
) -> float:
    """``value`` as a float.

    Args:
      meaning: the wanted value in words, for the message.

    Raises:
      ValueError: it is no finite number, or not in least..most.
    """
    try:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        number = float(value) if is_number else math.nan
    except OverflowError:  # Of a large int.
        number = math.inf
    if not math.isfinite(number) or not least <= number <= most:
        raise ValueError(f"{name} must be {meaning}, got {value!r}.")
    return number


def positive(name: str, value: Any, meaning: str, most: float = math.inf) -> float:
    """:func:`real` above 0."""
    return real(name, value, meaning, math.ulp(0.0), most)


def truth(name: str, value: Any) -> bool:
    """``value`` as a bool; raises ValueError for anything but a truth value."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def path_name(name: str, value: Any) -> str:
    """``value`` as a string; raises ValueError unless it is a path or a name that is not empty."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path or a name, got {value!r}.")
    return os.fspath(value)


def choice(name: str, value: Any, *known: Any) -> Any:
    """``value``; raises ValueError unless it is one of those that are known."""
    if not any(value is each or (isinstance(each, str) and value == each) for each in known):
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}.")
    return value
