"""Models of any shape with random weights, made where they are used."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specdec.api import Pair
from specdec.checkpoints.loading import draft_kernel_dtype, loaded_t5
from specdec.drafters.model import model_draft
from specdec.models.base import LoadedModel
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.network import init_params
from specdec.models.t5.packing import PackedT5

_SCALE = 0.02


@dataclasses.dataclass(frozen=True)
class EndlessT5(T5Model):
    """A T5 whose rows end at the length limit only."""

    @property
    def eos_id(self) -> int:
        return -1


def random_packed(model: T5Model, seed: int) -> PackedT5:
    """Decode parameters drawn array by array on the device: a checkpoint never exists.

    Norm scales are 1; all else is normal with standard deviation 0.02.
    """

    def packed():
        return model.pack(init_params(model.config, jax.random.key(0)))

    leaves, tree = jax.tree.flatten(jax.eval_shape(packed))
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    @functools.partial(jax.jit, static_argnames=("shape", "dtype"))
    def draw(key, shape, dtype):
        return (_SCALE * jax.random.normal(key, shape)).astype(dtype)

    def fill(key, leaf):
        if leaf.ndim == 1:
            return jnp.ones(leaf.shape, leaf.dtype)
        return draw(key, leaf.shape, leaf.dtype)

    return jax.tree.unflatten(
        tree, [fill(key, leaf) for key, leaf in zip(keys, leaves, strict=True)]
    )


def random_pair(target: T5Config, draft: T5Config, dtype: str, seed: int) -> Pair:
    """A pair of endless models."""

    def load(config: T5Config, seed: int, kernel_dtype: str | None = None) -> LoadedModel:
        model = EndlessT5(dataclasses.replace(config, dtype=dtype), kernel_dtype=kernel_dtype)
        return loaded_t5(model, random_packed(model, seed), "random weights")

    drafted = load(draft, seed + 1, draft_kernel_dtype(dtype))
    return Pair(load(target, seed), model_draft(drafted), None, "random")
