"""Compilation of decode programs, and how many of them a process keeps."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import numpy as np

from specdec.core import platforms
from specdec.core.kept_programs import keep_programs, kept
from specdec.core.machine import num_cores
from specdec.core.progress import say

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

ANNOUNCED = 2.0  # Seconds of compiling from which on it is said what is compiled.


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A jitted function, and the shapes for which its programs have been compiled."""

    jitted: Any
    shapes: set[Hashable] = dataclasses.field(default_factory=set)


# All jitted functions by what is static in them, the one used last at the end.
_kept: OrderedDict[Hashable, _Kept] = OrderedDict()
_dropped = 0
_lock = threading.Lock()  # Programs are traced in threads too, by what chooses between them.


class DecodeJit(Generic[_Arguments, _Result]):
    """``jax.jit`` with the backend's options, of whose programs a process keeps the last ones.

    Attributes:
      function: the function itself, for use inside another program: a ``jit`` inside another one
        cannot have options.
      what: name of its programs in messages.
    """

    def __init__(
        self, function: Callable[_Arguments, _Result], what: str, static_argnames: Sequence[str],
        donate_argnames: Sequence[str],
    ):  # fmt: skip
        functools.update_wrapper(self, function)
        self.function, self.what = function, what
        self._static, self._donated = static_argnames, donate_argnames
        self._places = function.__code__.co_varnames[: function.__code__.co_argcount]

    def jitted(self, *args: Any, **kwargs: Any) -> Any:
        """The jitted function for these static arguments, to lower it."""
        return self._kept(args, kwargs)[0].jitted

    def _kept(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_Kept, Hashable]:
        """The function for these static arguments, and the shapes of all others."""
        keep_programs()
        function: Any = self.function
        given = dict(zip(self._places, args, strict=False)) | dict(kwargs)
        platform = platforms.current()
        key = (function, platform, *(given.pop(name, None) for name in self._static))
        leaves, tree = jax.tree.flatten(given)
        shapes = tree, tuple((np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves)
        with _lock:
            if key not in _kept:
                jitted = jax.jit(
                    # A function of its own: JAX keeps programs by the function they are of.
                    functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs)),
                    static_argnames=self._static,
                    donate_argnames=self._donated,
                    compiler_options=OPTIONS[platform.name],
                )
                _kept[key] = _Kept(jitted)
            _kept.move_to_end(key)
            return _kept[key], shapes

    def program(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Program:
        """The program of such a call, to compile it ahead."""
        kept, shapes = self._kept(args, kwargs)
        return Program(self.what, kept, shapes, args, kwargs)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        kept, shapes = self._kept(args, kwargs)
        with contextlib.nullcontext() if shapes in kept.shapes else announced(self.what):
            result = kept.jitted(*args, **kwargs)
        kept.shapes.add(shapes)
        _drop_oldest()
        return result


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of a call, whose arrays may be shapes. Once it is compiled, the call uses it."""

    what: str
    kept: _Kept
    shapes: Hashable
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def compiled(self) -> bool:
        """Whether it is there already."""
        return self.shapes in self.kept.shapes

    @functools.cached_property
    def traced(self) -> jax.stages.Traced:
        """The traced function; ``out_info`` has the shapes of its results."""
        return self.kept.jitted.trace(*self.args, **self.kwargs)

    def compile(self) -> None:
        """Compiles it, unless it is there."""
        if not self.compiled:
            self.traced.lower().compile()
            self.kept.shapes.add(self.shapes)


def compile_together(programs: Sequence[Program]) -> None:
    """Compiles programs at once, one on each core."""
    what = " and ".join(each.what for each in programs)
    with announced(what), ThreadPoolExecutor(num_cores()) as pool:
        started = [pool.submit(contextvars.copy_context().run, each.compile) for each in programs]
        for future in started:
            future.result()


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Says what is compiled, if it takes more than a moment."""
    more = " It is kept for the next time." if kept() else ""
    timer = threading.Timer(ANNOUNCED, say, [f"Compiling {what}.{more}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def num_programs() -> int:
    """Number of programs compiled so far in this process, one for each combination of shapes."""
    return _dropped + sum(each.jitted._cache_size() for each in _kept.values())


def _drop_oldest() -> None:
    """Forgets the programs used longest ago while there are too many."""
    global _dropped
    with _lock:
        while _kept and sum(each.jitted._cache_size() for each in _kept.values()) > MAX_PROGRAMS:
            _, oldest = _kept.popitem(last=False)
            _dropped += oldest.jitted._cache_size()
            oldest.jitted.clear_cache()


def decode_jit(
    *, what: str = "a program", static_argnames: str | Sequence[str] = (),
    donate_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[_Arguments, _Result]], DecodeJit[_Arguments, _Result]]:  # fmt: skip
    """Decorator for a whole decode, or a part of one; arguments as of ``jax.jit``.

    Args:
      what: name of its programs in messages.
    """
    static, donated = (
        (names,) if isinstance(names, str) else tuple(names)
        for names in (static_argnames, donate_argnames)
    )
    return lambda function: DecodeJit(function, what, static, donated)
