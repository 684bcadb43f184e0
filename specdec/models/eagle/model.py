"""An EAGLE-style layer with its target's embedding and logits.

At a text's position t it reads the target's hidden state from which token t was drawn, and token t;
its output stands for the target's state there, from which token t + 1 will be drawn. In decoding
and in training alike it is this code that runs: training packs parameters as "in_out".

Source: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
section 4.1; Li et al. 2025, "EAGLE-3", for states that are its own.
Shapes: B batch, T tokens of a call, D the target's hidden width, W the layer's, I its heads'.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.topology import CHAIN, Order
from specdec.models import cache as kv
from specdec.models import filler
from specdec.models.eagle.config import EagleConfig
from specdec.models.products.quantized import Kernel
from specdec.models.stores import store_of
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.packed import Layers, PackedNorm, PackedTransformer
from specdec.models.transformer.packing import Packer
from specdec.models.transformer.parts import EncodedInputs
from specdec.types import Distribution, Encoded, Params

_EPSILON = 1e-6  # Added to mean squares.


@pytree
class PackedEagle:
    """Decode parameters of the layer and its projections."""

    state_in: Kernel  # D -> W
    token_in: Kernel  # D -> W
    layers: Layers  # One.
    relpos: Float[Array, "h r"] | None
    final_norm: PackedNorm
    out: Kernel  # W -> D
    cross_kv: Kernel | None  # Encoding's D -> 2I; None where it does not attend to one.

    @property
    def decoder(self) -> PackedTransformer:
        """The layer as a decoder's, whose embedding and logits are another's."""
        return PackedTransformer(
            encoder=None, embedding=None, positions=None, embedding_norm=None,
            cross_kv=self.cross_kv, kv_bias=None, layers=self.layers, relpos=self.relpos,
            final_norm=self.final_norm, logits=None,
        )  # fmt: skip


@pytree
class EagleParams:
    """A layer's parameters, and the target's packed ones, which it shares."""

    layer: PackedEagle
    target: Params


@dataclasses.dataclass(frozen=True)
class EagleModel:
    """An autoregressive draft on its target's hidden states.

    Of each token it is given the state from which that was drawn: the target's own, or where that
    has not been there yet, what it made itself of the token before.
    """

    target: TransformerModel
    config: EagleConfig

    @property
    def _layer(self) -> TransformerModel:
        return TransformerModel(self.config.layer, layout=self.target.layout)

    def pack(self, params: Params, narrow: str | None = None) -> PackedEagle:
        """Decode parameters of a tree of :func:`specdec.models.eagle.network.init_params`.

        Args:
          narrow: dtype for kernels of more bits; None to keep theirs.
        """
        store = store_of(self.target.ops)
        packer = Packer(self.config.layer, store, jnp.dtype(narrow) if narrow else None, None)

        def kernel(name):
            return store.kernel(packer.stored(packer.put(params[name], ("embed", "embed"))))

        stack = packer.stack("decoder", params, packer.decoder_kernel)
        return packer.placed(PackedEagle(
            kernel("state_in"), kernel("token_in"), stack["layers"], stack["relpos"],
            stack["final_norm"], kernel("out"),
            cross_kv=packer.cross_kv(params["decoder"])[0] if self.config.reads_encoding else None,
        ))  # fmt: skip

    def start(
        self, params: EagleParams, batch: int, max_len: int, given: Encoded
    ) -> tuple[EncodedInputs | None, kv.KVCache]:
        """The draft's view of the target's encoding, and an empty cache.

        Args:
          max_len: capacity of the cache, in tokens.
        """
        encoded = None
        if self.config.reads_encoding:
            # In its own dtype; else its kernels would be narrowed at each step.
            output = given.output.astype(self._layer.dtype)
            encoded = self._layer.attended(params.layer.decoder, output, given.mask)
        return encoded, self._layer.empty_cache(batch, max_len)

    def extend(
        self, params: EagleParams, encoded: EncodedInputs | None, cache: kv.KVCache,
        tokens: Int[Array, "b t"], states: Float[Array, "b t d"], topology: Order = CHAIN, *,
        after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        """:meth:`specdec.models.base.Model.extend` of tokens with their states; returns states."""
        layer, ops = params.layer, self.target.ops
        count = tokens.shape[1]
        more = filler.amount(len(tokens), count)
        if more:
            topology = topology.with_filler(after + count, more)
        tokens, states = filler.filled(tokens, more), filler.filled(states, more)
        # Targets normalise before their logits, so the scale of a state is free.
        state, token = _normed(states), _normed(self.target.embed(params.target, tokens))
        x = ops.product(layer.state_in, state) + ops.product(layer.token_in, token)
        x, cache = self._layer.extend_embedded(
            layer.decoder, encoded, cache, x, topology, after=after
        )
        state += ops.product(layer.out, _normed(x) * layer.final_norm.norm_scale)
        return filler.without(state, more), cache

    def logits(self, params: EagleParams, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return self.target.logits(params.target, hidden.astype(self.target.dtype))

    def over_vocabulary(self, params: EagleParams, distribution: Distribution) -> Distribution:
        return self.target.over_vocabulary(params.target, distribution)

    def commit(self, cache: kv.KVCache, path: None, count: Int[Array, " b"]) -> kv.KVCache:
        """Keeps the first ``count[b]`` tokens just given; a negative count forgets tokens."""
        return kv.commit(cache, path, count)


def _normed(x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + _EPSILON)
