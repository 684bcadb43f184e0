"""What drafts on a target's states computes with filler, as accelerators run it, and without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY_T5, prompt_of, ragged_inputs, random_params

from specdec.core import platforms
from specdec.core.topology import Topology
from specdec.models.eagle import model as eagle
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.network import init_params
from specdec.models.heads import network
from specdec.models.heads.config import KINDS, HeadsConfig
from specdec.models.heads.model import HeadsParams, TargetHeads
from specdec.models.transformer.model import TransformerModel

WIDTH = TINY_T5["v1.1"].d_model


@pytest.fixture(scope="module")
def target():
    model = TransformerModel(TINY_T5["v1.1"], "in_out")
    return model, model.pack(random_params(model.config, 0))


def same_everywhere(compute, params):
    """On a CPU, a TPU and a GPU."""
    found = []
    for platform in platforms.PLATFORMS.values():
        with platforms.compiling_for(platform):
            # A function of its own: JAX keeps programs by the function they are of.
            found.append(jax.jit(lambda params: compute(params))(params))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=2e-5)


def test_eagle(target):
    """A token, and then a tree by levels behind it."""
    model, params = target
    config = EagleConfig(WIDTH, 12, 2, 6, 20, reads_encoding=True)
    layer = eagle.EagleModel(model, config)
    own = eagle.EagleParams(layer.pack(init_params(config, jax.random.key(0))), params)
    states = jax.random.normal(jax.random.key(1), (2, 5, WIDTH))
    tokens, tree = jnp.arange(10).reshape(2, 5), Topology((-1, 0, 0, 1))

    def compute(own):
        start = model.start(own.target, prompt_of(model, ragged_inputs(2, 7, 19)), 9)
        encoded, cache = layer.start(own, 2, 9, start.encoded)
        made, cache = layer.extend(own, encoded, cache, tokens[:, :1], states[:, :1])
        cache, found = layer.commit(cache, None, jnp.array([1, 0])), [made]
        for after, count in ((0, 1), (1, 2), (3, 1)):
            part = slice(1 + after, 1 + after + count)
            made, cache = layer.extend(
                own, encoded, cache, tokens[:, part], states[:, part], tree, after=after
            )
            found.append(made)
        return layer.logits(own, jnp.concatenate(found, axis=1))

    same_everywhere(compute, own)


@pytest.mark.parametrize("kind", KINDS)
def test_heads(kind, target):
    model, params = target
    config = HeadsConfig(kind, 3, WIDTH, 8 if kind == "blockwise" else 0)
    own = HeadsParams(network.init_params(config, jax.random.key(0)), params)
    hidden = jax.random.normal(jax.random.key(1), (2, WIDTH))
    same_everywhere(lambda own: TargetHeads(model, config).logits(own, hidden), own)
