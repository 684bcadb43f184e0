"""Checks arrays against their annotations in all tests: kinds, dimensions, sizes that agree."""

import sys
from typing import Any, get_args

import jaxtyping
from beartype import beartype

ROOMS = (
    "specdec.types", "specdec.core", "specdec.verifiers", "specdec.drafters",
    "specdec.decoding",
)  # fmt: skip


def install():
    """From here on, functions of these rooms check what they get and return.

    Raises:
      RuntimeError: one of them was imported before, so would go unchecked.
    """
    early = [room for room in ROOMS if room in sys.modules]
    if early:
        raise RuntimeError(f"imported before their annotations could be checked: {early}")
    jaxtyping.Array = Any  # Where JAX's arrays are taken, NumPy's are too.
    jaxtyping.install_import_hook(ROOMS, f"{__name__}.check")


def check(function):
    """Beartype, for the annotations of arrays alone: other arguments have errors of their own.

    Nor are fields checked where a pytree is made: JAX also puts shapes, flags and stacks in them.
    """
    hints = function.__annotations__
    if function.__name__ == "__init__":
        return function
    function.__annotations__ = {name: hints[name] for name in hints if _of_arrays(hints[name])}
    return beartype(function)


def _of_arrays(hint):
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_of_arrays, get_args(hint)))
