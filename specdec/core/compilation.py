"""Compilation of decode programs, and how many of them a process keeps."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from specdec.core import platforms

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_KEEP_BARRIERS = "cse_barrier_expander"
if jax.__version_info__ >= (0, 12):  # It cannot compile them in loops that it makes functions.
    _KEEP_BARRIERS += ",small-while-loop-hoisting"

# Options of XLA on CPU for the products of few tokens (specdec.models.products.few_tokens).
CPU_OPTIONS = {
    # A sum may be taken in any order, so that it vectorises. NaN, infinity and division stay
    # exact: XLA's defaults for what fast math must honour.
    "xla_cpu_enable_fast_math": True,
    # Optimization barriers last until after fusion: what they wrap is computed once, in memory.
    "xla_disable_hlo_passes": _KEEP_BARRIERS,
    # Bits of the vectors to use where there are such, instead of 256.
    "xla_cpu_prefer_vector_width": 512,
}
# On a GPU the whole loop of a decode is one graph, which the host starts once.
GPU_OPTIONS = {
    # The defaults, and loops. (A list replaces the defaults.)
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,"
    "DYNAMIC_SLICE_FUSION,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
    # It makes copies whose place the host computes in each pass of a loop, which no graph can.
    "xla_disable_hlo_passes": "fusion-dynamic-memcpy-rewriter",
}
OPTIONS: dict[str, dict[str, Any] | None] = {"cpu": CPU_OPTIONS, "gpu": GPU_OPTIONS, "tpu": None}
# Programs that a process keeps. One takes about 700 memory maps, of which Linux allows 65,530;
# beyond them XLA cannot compile and ends the process.
MAX_PROGRAMS = 40

# All jitted functions by what is static in them, the one used last at the end.
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_dropped = 0
_lock = threading.Lock()  # Programs are traced in threads too, by what chooses between them.


class DecodeJit(Generic[_Arguments, _Result]):
    """``jax.jit`` with the backend's options, of whose programs a process keeps the last ones.

    Attributes:
      function: the function itself, for use inside another program: a ``jit`` inside another one
        cannot have options.
    """

    def __init__(
        self, function: Callable[_Arguments, _Result], static_argnames: Sequence[str],
        donate_argnames: Sequence[str],
    ):  # fmt: skip
        functools.update_wrapper(self, function)
        self.function = function
        self._static, self._donated = static_argnames, donate_argnames
        self._places = function.__code__.co_varnames[: function.__code__.co_argcount]

    def jitted(self, *args: Any, **kwargs: Any) -> Any:
        """The jitted function for these static arguments, to lower it."""
        function: Any = self.function
        given = dict(zip(self._places, args, strict=False)) | kwargs
        platform = platforms.current()
        key = (function, platform, *(given.get(name) for name in self._static))
        with _lock:
            if key not in _kept:
                _kept[key] = jax.jit(
                    # A function of its own: JAX keeps programs by the function they are of.
                    functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs)),
                    static_argnames=self._static,
                    donate_argnames=self._donated,
                    compiler_options=OPTIONS[platform.name],
                )
            _kept.move_to_end(key)
            return _kept[key]

    def lower(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> jax.stages.Lowered:
        """The program of such a call. Once it is compiled, in any thread, the call uses it."""
        return self.jitted(*args, **kwargs).lower(*args, **kwargs)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        result = self.jitted(*args, **kwargs)(*args, **kwargs)
        _drop_oldest()
        return result


def num_programs() -> int:
    """Number of programs compiled so far in this process, one for each combination of shapes."""
    return _dropped + sum(jitted._cache_size() for jitted in _kept.values())


def _drop_oldest() -> None:
    """Forgets the programs used longest ago while there are too many."""
    global _dropped
    with _lock:
        while _kept and sum(jitted._cache_size() for jitted in _kept.values()) > MAX_PROGRAMS:
            _, oldest = _kept.popitem(last=False)
            _dropped += oldest._cache_size()
            oldest.clear_cache()


def decode_jit(
    *, static_argnames: str | Sequence[str] = (), donate_argnames: str | Sequence[str] = ()
) -> Callable[[Callable[_Arguments, _Result]], DecodeJit[_Arguments, _Result]]:
    """Decorator for a whole decode, or a part of one; arguments as of ``jax.jit``."""
    static, donated = (
        (names,) if isinstance(names, str) else tuple(names)
        for names in (static_argnames, donate_argnames)
    )
    return lambda function: DecodeJit(function, static, donated)
