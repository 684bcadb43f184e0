"""Places of arrays on a mesh: logical axis names, and rules that map them to the axes of a mesh.

Parameters, activations and caches name their axes (batch, heads, mlp, ...) where they are made. A
model with a :class:`Partitioning` resolves these names by its own rules, so that a target and a
draft of one program may be cut differently; a model without one ignores them.

Under T5X's rules a T5's layer sums over its group's devices three times, a GPT's twice. Logits are
gathered once, so every device verifies alike and exchanges nothing more. By default every device
computes the whole draft: a small model is faster whole, because it waits for no other device.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from specdec.core.fields import Count, checked

Rules = tuple[tuple[str, str | None], ...]
Axes = tuple[str | None, ...]

# Source: T5X, t5x/partitioning.py, standard_logical_axis_rules with 1D parameters and activations.
T5X_RULES: Rules = (
    ("batch", "data"), ("vocab", "model"), ("embed", None), ("mlp", "model"), ("heads", "model"),
    ("kv", None), ("joined_kv", "model"),  # heads and kv as one axis, as in kernels.
    ("relpos_buckets", None), ("length", None), ("stack", None),  # Biases of joined kernels.
)  # fmt: skip
# Every device of the model axis holds the whole model and computes the same.
REPLICATED_RULES: Rules = (("batch", "data"),)
_LOGICAL = [axis for axis, _ in T5X_RULES]
MESH_AXES = ("data", "model")
# Logical axes of activations.
HIDDEN_AXES = ("batch", "length", "embed")
HEADS_AXES = ("batch", "length", "heads", "kv")
MLP_AXES = ("batch", "length", "mlp")


@checked(named=True)
class DeviceMesh:
    """data x model devices, and how target and draft are laid over them.

    Of several processes (``jax.distributed``) it has all devices: they hold one target together,
    and each calls what decodes with the same arguments, in the same order.

    Attributes:
      data: groups of devices; each decodes its part of a batch.
      model: devices in a group, which hold one copy of the target together.
      target_rules: pairs of a logical axis and "data", "model" or None; of several rules for an
        axis the first counts whose mesh axis is still free. T5X's unless given.
      draft_rules: the draft model's; unless given it is whole on every device, so that its steps
        wait for no other. Drafts that are no models always are.

    Raises:
      ValueError: a size below 1, or a rule of an unknown axis.
    """

    data: Count = 1
    model: Count = 1
    target_rules: Annotated[Rules, _checked_rules] = T5X_RULES
    draft_rules: Annotated[Rules, _checked_rules] = REPLICATED_RULES

    @property
    def target(self) -> Partitioning:
        """The target's layout; ValueError where there are fewer devices than the mesh has."""
        return Partitioning(_mesh(self.data, self.model), self.target_rules)

    @property
    def draft(self) -> Partitioning:
        """The draft's; raises as :attr:`target` does."""
        return Partitioning(_mesh(self.data, self.model), self.draft_rules)

    @property
    def planned_target(self) -> Partitioning:
        """:attr:`target` as shapes go: no device needs to be there."""
        return Partitioning(AbstractMesh((self.data, self.model), MESH_AXES), self.target_rules)

    @property
    def planned_draft(self) -> Partitioning:
        """:attr:`draft` as shapes go."""
        return Partitioning(AbstractMesh((self.data, self.model), MESH_AXES), self.draft_rules)


def check_mesh(mesh: object) -> None:
    """Raises ValueError for a mesh that is none; None is one device."""
    if not isinstance(mesh, DeviceMesh | None):
        raise ValueError(f"mesh must be a specdec.DeviceMesh(data, model) or None, got {mesh!r}.")


def _checked_rules(name: str, given: object) -> Rules:
    lists = isinstance(given, list | tuple)
    if not lists or not all(isinstance(rule, list | tuple) and len(rule) == 2 for rule in given):
        raise ValueError(
            f"{name} must be pairs of a logical axis and a mesh axis, such as "
            f"(('mlp', 'model'),), got {given!r}."
        )
    for axis, onto in given:
        if axis not in _LOGICAL or onto not in ("data", "model", None):
            raise ValueError(
                f"{name} cannot map {axis!r} to {onto!r}: logical axes are "
                f"{', '.join(_LOGICAL)}; they go to 'data', 'model' or None."
            )
    return tuple(map(tuple, given))  # Lists, too, are rules; but models are hashed.


@functools.cache
def _mesh(data: int, model: int) -> Mesh:
    devices, count = jax.devices(), jax.process_count()
    needs = f"A mesh of {data} x {model} (data x model) needs {data * model} devices, but"
    if count > 1 and data * model != len(devices):
        raise ValueError(
            f"{needs} the {count} processes have {len(devices)} together: all must be in the mesh, "
            "so choose sizes whose product is that."
        )
    if data * model > len(devices):
        raise ValueError(
            f"{needs} this process has {len(devices)}: choose sizes whose product is at most that. "
            f"(To try a mesh on CPU: XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{data * model})"
        )
    return laid_over(data, model, devices)


def laid_over(data: int, model: int, devices: Sequence[Any]) -> Mesh:
    """A mesh of the first devices, in the order that JAX finds best for their connections.

    Raises:
      ValueError: JAX cannot lay it over a TPU's slice of this form.
    """
    # Auto: the compiler carries shardings on from where they are named.
    auto, used = (AxisType.Auto, AxisType.Auto), devices[: data * model]
    try:
        return jax.make_mesh((data, model), MESH_AXES, axis_types=auto, devices=used)
    except NotImplementedError:
        raise ValueError(
            f"A mesh of {data} x {model} (data x model) cannot be laid over this slice: JAX does "
            "not cut an axis along which its chips stand in two. Choose sizes that are products of "
            "those: 4 x 4 where chips stand 4 x 4."
        ) from None


@dataclasses.dataclass(frozen=True)
class Partitioning:
    """Layout of one model on a mesh."""

    mesh: Mesh | AbstractMesh  # With the axes "data" and "model".
    rules: Rules  # See `DeviceMesh`.

    def sharding(self, axes: Axes) -> NamedSharding:
        """Sharding of an array with these logical axes."""
        # Flax takes long to import, and on one device nothing that decodes needs it.
        from flax.linen.spmd import logical_to_mesh_axes

        spec = logical_to_mesh_axes(axes, self.rules)
        assert spec is not None
        return NamedSharding(self.mesh, spec)

    @property
    def several_processes(self) -> bool:
        """Whether the devices are those of several processes."""
        return isinstance(self.mesh, Mesh) and self.mesh.is_multi_process

    def onto(self, axis: str) -> str | None:
        """The axis of the mesh that cuts an axis, where no other axis of the array is."""
        return self.sharding((axis,)).spec[0]

    def ways(self, axis: str) -> int:
        """Number of parts that an axis is cut into."""
        onto = self.onto(axis)
        return 1 if onto is None else self.mesh.shape[onto]

    def check_batch_size(self, batch_size: int) -> None:
        """Raises ValueError for a batch that the mesh cannot cut into equal parts."""
        ways = self.ways("batch")
        if batch_size % ways:
            raise ValueError(
                f"batch_size is {batch_size}, but the mesh cuts a batch into {ways} parts: choose "
                f"a multiple of {ways}."
            )

    def check(self, sizes: Mapping[str, Mapping[str, int]]) -> None:
        """Raises ValueError unless each axis can be cut into equal parts.

        Args:
          sizes: for each logical axis, the sizes along it by what they are called.
        """
        cut = {axis: self.ways(axis) for axis in sizes}
        each = [(axis, name, size) for axis in sizes for name, size in sizes[axis].items()]
        odd = [(axis, name, size) for axis, name, size in each if size % cut[axis]]
        if not odd:
            return
        common = math.gcd(*(size for axis, _, size in each if cut[axis] > 1))
        bad = [*dict.fromkeys(axis for axis, _, _ in odd)]
        what = dict.fromkeys(f"{name} = {size}" for _, name, size in odd)
        raise ValueError(
            f"A mesh axis of {cut[bad[0]]} devices does not divide {' and '.join(what)}: choose a "
            f"size that divides {common}, or rules that keep {', '.join(bad)} whole, as in "
            f"({bad[0]!r}, None)."
        )

    @contextlib.contextmanager
    def resolving(self, batch_size: int) -> Iterator[None]:
        """Context in which :func:`constrain` follows these rules.

        A batch that cannot be cut into equal parts, such as one row to look into, stays whole.
        """
        rules = self.rules
        if batch_size % self.ways("batch"):
            rules = tuple(rule for rule in rules if rule[0] != "batch")
        before = _in_force.set(dataclasses.replace(self, rules=rules))
        try:
            yield
        finally:
            _in_force.reset(before)


_in_force: contextvars.ContextVar[Partitioning | None] = contextvars.ContextVar(
    "partitioning", default=None
)


def constrain(x: jax.Array, axes: Axes) -> jax.Array:
    """x, laid out by :meth:`Partitioning.resolving`; unchanged outside of it."""
    partitioning = _in_force.get()
    if partitioning is None:
        return x
    return jax.lax.with_sharding_constraint(x, partitioning.sharding(axes))


def ways(partitioning: Partitioning | None, axis: str | None) -> int:
    """Number of parts that an axis is cut into; 1 without a mesh."""
    return 1 if partitioning is None or axis is None else partitioning.ways(axis)
