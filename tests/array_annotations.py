"""Checks arrays against their annotations in all tests: kinds, dimensions, sizes that agree."""

import inspect
import sys
from typing import get_args

import jax
from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

ROOMS = ("specdec.types", "specdec.topology", "specdec.core", "specdec.verifiers")


def install():
    """From here on, functions and dataclasses of these rooms check what they get and return.

    Raises:
      RuntimeError: one of them was imported before, so would go unchecked.
    """
    early = [room for room in ROOMS if room in sys.modules]
    if early:
        raise RuntimeError(f"imported before their annotations could be checked: {early}")
    install_import_hook(ROOMS, f"{__name__}.check")


def check(function):
    """Beartype, for the annotations of arrays alone: other arguments have errors of their own."""
    hints = function.__annotations__
    function.__annotations__ = {name: hints[name] for name in hints if _of_arrays(hints[name])}
    checked, signature = beartype(function), inspect.signature(function)
    if function.__name__ != "__init__":
        return checked

    def init(*args, **kwargs):
        values = signature.bind(*args, **kwargs).arguments
        if all(isinstance(values.get(name), jax.Array | None) for name in function.__annotations__):
            checked(*args, **kwargs)  # Else JAX holds shapes, flags or NumPy's arrays in a pytree.

    return init


def _of_arrays(hint):
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_of_arrays, get_args(hint)))
