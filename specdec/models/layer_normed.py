"""What transformers with LayerNorm, and with biases everywhere, have in common.

Shapes: B batch, T block length, K head_dim, I = H * K, D d_model, F d_ff.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.pytrees import pytree
from specdec.models.packed import MLP_AXES, PackedModel
from specdec.models.partitioning import constrain
from specdec.models.products import fused

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


@pytree
class Norm:
    """Of a LayerNorm."""

    norm_scale: Float[Array, " d"]
    norm_bias: Float[Array, " d"]


@dataclasses.dataclass(frozen=True)
class LayerNormModel(PackedModel):
    """Its layers have ``self_norm``, ``self_qkv``, ``mlp_norm`` and ``wi``, with their biases."""

    @property
    def _query_scale(self) -> float:
        return self.config.head_dim**-0.5

    def _before(self, norm: Norm | None) -> Norm | None:
        """What is done to x before a product with it, of the norm that a layer has there."""
        return norm

    def _normed(self, x: Float[Array, "b t d"], norm: Norm | None) -> Float[Array, "b t d"]:
        """(x - mean) / sqrt(variance + epsilon), times the scale, plus the bias; or x itself."""
        if norm is None:
            return x
        centred = x.astype(jnp.float32) - self.ops.mean(x)
        variance = self.ops.mean_square(centred)
        normed = centred * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        return normed.astype(x.dtype) * norm.norm_scale + norm.norm_bias

    def _norm(self, norm: Norm | None) -> fused.Norm | None:
        if norm is None:
            return None
        return fused.Norm(norm.norm_scale, norm.norm_bias, self.config.layer_norm_epsilon)

    def _joined_queries_keys_values(self, layer: Any, x: Float[Array, "b t d"]):
        bias = layer.qkv_bias.reshape(-1)
        return self._product_of_normed(x, self._before(layer.self_norm), layer.self_qkv, bias)

    def _queries_keys_values(self, layer: Any, x: Float[Array, "b t d"]):
        normed = self._normed(x, self._before(layer.self_norm))
        split = self._split(self.ops.product(layer.self_qkv, normed), 3, "joined_kv")
        query, key, value = (each + layer.qkv_bias[i] for i, each in enumerate(split))
        return query * self._query_scale, key, value

    def _feed_forward(self, layer: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t f"]:
        act, norm = ACTIVATIONS[self.config.activation], self._before(layer.mlp_norm)
        if self._fuses(x, layer.wi) and self.config.activation != "gelu_exact":  # It is of erf.
            return fused.product_of_normed(x, self._norm(norm), layer.wi, layer.wi_bias, act=act)
        inner = self._product_of_normed(x, norm, layer.wi, layer.wi_bias)
        return constrain(act(inner), MLP_AXES)
