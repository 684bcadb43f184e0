"""Compiles programs for chips that are not there."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from specdec.compile import thunks as launches
from specdec.compile.chips import Slice
from specdec.compile.compilers import devices
from specdec.compile.thunks import Thunks
from specdec.core import platforms
from specdec.core.compilation import OPTIONS
from specdec.models.partitioning import DeviceMesh, Partitioning, laid_over

# The compiler's two ways to say it, of the program and of the device.
_SIZES = re.compile(
    r"Used (?P<used>[\d.]+)(?P<unit>[KMGT]?) of (?P<has>[\d.]+)(?P<has_unit>[KMGT]?) hbm"
    r"|\((?P<used_2>[\d.]+)(?P<unit_2>[KMGT]?)\) exceeds available HBM \((?P<has_2>[\d.]+)G\)"
)
_GIB = 2**30


class DoesNotFitError(ValueError):
    """A program needs more memory than a chip has."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      text: its optimized HLO.
      argument_bytes, temporary_bytes: of one device's memory, as the compiler lays it out.
      seconds: to trace and compile it.
      thunks: its launches; None for a TPU.
    """

    text: str
    argument_bytes: int
    temporary_bytes: int
    seconds: float
    thunks: Thunks | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """One chip of a slice, or a mesh of them, as something to compile for.

    Attributes:
      mesh: None for one chip.

    Raises:
      ValueError: the mesh has more devices than the slice, or leaves out some of a slice of several
        hosts.
    """

    where: Slice
    mesh: DeviceMesh | None = None

    def __post_init__(self):
        if self.mesh is None:
            return
        where, needed = self.where, self.mesh.data * self.mesh.model
        asked = f"A mesh of {self.mesh.data} x {self.mesh.model} (data x model)"
        if needed > where.count:
            raise ValueError(f"{asked} needs {needed} chips, and {where.name} has {where.count}.")
        if where.hosts > 1 and needed != where.count:
            raise ValueError(
                f"{asked} needs {needed} chips, and {where.name} has {where.count} on "
                f"{where.hosts} hosts: all must be in the mesh, so choose sizes whose product is "
                f"{where.count}."
            )

    @property
    def _mesh(self) -> Mesh:
        """A run's."""
        assert self.mesh is not None
        return laid_over(self.mesh.data, self.mesh.model, devices(self.where))

    @property
    def target(self) -> Partitioning | None:
        """The target's layout over these chips; None for one."""
        return self.mesh and Partitioning(self._mesh, self.mesh.target_rules)

    @property
    def draft(self) -> Partitioning | None:
        """The draft's layout over these chips; None for one."""
        return self.mesh and Partitioning(self._mesh, self.mesh.draft_rules)

    @property
    def whole(self) -> NamedSharding | SingleDeviceSharding:
        """Sharding of arrays that every chip has the whole of."""
        if self.mesh is None:
            return SingleDeviceSharding(devices(self.where)[0])
        return NamedSharding(self._mesh, PartitionSpec())

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Context in which models are made and programs are traced for these chips."""
        return platforms.compiling_for(self.where.chip.platform)

    def shaped(self, tree: Any) -> Any:
        """A tree's shapes on these chips: where its own shardings say, else whole on each."""

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            own = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
            size, dtype = np.shape(leaf), jnp.result_type(leaf)
            return jax.ShapeDtypeStruct(size, dtype, sharding=own or self.whole)

        return jax.tree.map(shape, tree)


def compile_program(
    place: Place, function: Callable[..., Any], *args: Any, options: dict[str, Any] | None = None
) -> Program:
    """Compiles a function, which is not run.

    Args:
      function: of ``args``; its other arguments are to be bound.
      args: trees of arrays or shapes; see :meth:`Place.shaped`.
      options: of the compiler's; those of :data:`specdec.core.compilation.OPTIONS` unless given.

    Raises:
      DoesNotFitError: the program needs more memory than the chip has.
      ValueError: the compiler's wheels are missing or of another JAX.
    """
    platform = place.where.chip.platform
    options = dict(OPTIONS[platform.name] or {}) if options is None else dict(options)
    with place.tracing(), _uncached(), tempfile.TemporaryDirectory() as folder:
        if platform.name == "gpu":
            options["xla_dump_to"] = folder
        begin = time.perf_counter()
        # A function of its own: JAX keeps traces by function, and these are of this platform.
        lowered = jax.jit(lambda *args: function(*args)).lower(*place.shaped(args))
        try:
            compiled = lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DoesNotFitError(_does_not_fit(place, str(error))) from None
        seconds = time.perf_counter() - begin
        thunks = launches.read(Path(folder)) if platform.name == "gpu" else None
    sizes, text = compiled.memory_analysis(), compiled.as_text()
    assert sizes is not None
    assert text is not None
    arguments, temporaries = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    chip, needs = place.where.chip, sizes.output_size_in_bytes + arguments + temporaries
    if needs > chip.memory:  # The GPU compiler does not look.
        raise DoesNotFitError(
            f"Does not fit: the program needs {needs / _GIB:.1f} GiB on each device, and a "
            f"{chip.label} has {chip.memory / _GIB:.1f} GiB."
        )
    return Program(text, arguments, temporaries, seconds, thunks)


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Context without JAX's persistent cache: times are those of compiling."""
    before = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # Else what was decided at the first program stays.
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _does_not_fit(place: Place, message: str) -> str:
    """Sentence for a program that does not fit, made of the compiler's message."""
    chip = place.where.chip.label
    found = _SIZES.search(message)
    if found is None:
        return f"Does not fit: the program needs more memory than a {chip} has."
    used, unit = found["used"] or found["used_2"], found["unit"] or found["unit_2"]
    return (
        f"Does not fit: the program needs {used} {unit}iB on each device, and a {chip} has "
        f"{found['has'] or found['has_2']} GiB for it."
    )
