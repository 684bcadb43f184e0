"""How decode programs are compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_KEEP_BARRIERS = "cse_barrier_expander"
if jax.__version_info__ >= (0, 12):  # It cannot compile them in loops that it makes functions.
    _KEEP_BARRIERS += ",small-while-loop-hoisting"

# What the products of few tokens (specdec.models.t5.few_tokens) need of XLA on CPU.
CPU_OPTIONS = {
    # A sum may be taken in any order, so that it vectorises. NaN, infinity and division stay
    # exact: XLA's defaults for what fast math must honour.
    "xla_cpu_enable_fast_math": True,
    # Optimization barriers last until after fusion: what they wrap is computed once, in memory.
    "xla_disable_hlo_passes": _KEEP_BARRIERS,
    # Bits of the vectors to use where there are such, instead of 256.
    "xla_cpu_prefer_vector_width": 512,
}


class DecodeJit(Generic[_Arguments, _Result]):
    """``jax.jit`` with the backend's options; the backend is looked up at the first call.

    Attributes:
      function: what is compiled, to be a part of someone else's program: inside another ``jit``
        there can be no options.
    """

    def __init__(
        self, function: Callable[_Arguments, _Result], static_argnames: str | Sequence[str]
    ):
        functools.update_wrapper(self, function)
        self.function = function
        self._static_argnames = static_argnames

    @functools.cached_property
    def jitted(self) -> Any:
        """The jitted function itself, to lower or to count its compilations."""
        return jax.jit(
            self.function,
            static_argnames=self._static_argnames,
            compiler_options=CPU_OPTIONS if jax.default_backend() == "cpu" else None,
        )

    @property
    def programs(self) -> int:
        """How many were compiled so far in this process, one for each combination of shapes."""
        return self.jitted._cache_size()

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return self.jitted(*args, **kwargs)


def decode_jit(
    *, static_argnames: str | Sequence[str]
) -> Callable[[Callable[_Arguments, _Result]], DecodeJit[_Arguments, _Result]]:
    """Decorator for a whole decode, or a part of one that is timed apart."""
    return lambda function: DecodeJit(function, static_argnames)
