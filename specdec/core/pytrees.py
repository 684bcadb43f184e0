"""Frozen dataclasses that JAX knows."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass and registers it with JAX; ``static`` fields are metadata."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    static = [f.name for f in fields if f.metadata.get("static")]
    jax.tree_util.register_dataclass(
        cls, data_fields=[f.name for f in fields if f.name not in static], meta_fields=static
    )
    return cls


def static_field(**kwargs: Any) -> Any:
    """A field of a :func:`pytree` that is part of the tree's structure, not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kwargs)
