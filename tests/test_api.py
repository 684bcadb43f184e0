"""How pairs are loaded; generation itself is tested with the loops and the bundled pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, changed, random_params

from specdec.checkpoints import save_huggingface
from specdec.checkpoints.loading import draft_kernel_dtype, load_packed
from specdec.load import load_pair


@pytest.fixture
def checkpoint(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, jax.device_get(random_params(config, 0)))
    return tmp_path


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on CPU only")
def test_a_draft_is_stored_in_16_bits_and_the_target_is_not(checkpoint):
    pair = load_pair(target=checkpoint, draft=checkpoint)
    assert pair.draft.weights.layers[0].wi.dtype == jnp.float16
    assert pair.target.params.layers[0].wi.dtype == jnp.float32
    assert draft_kernel_dtype("bfloat16") is None


def test_kernels_too_large_for_16_bits_are_not_cut():
    config = changed(TINY["v1.1"], num_decoder_layers=1)
    params = random_params(config, 0)
    mlp = params["decoder"]["layers_0"]["mlp"]
    mlp["wo"]["kernel"] = mlp["wo"]["kernel"].at[0].set(1e7)
    loaded = load_packed(config, params, "test", "float16")
    assert loaded.params.layers[0].wi.dtype == jnp.float32
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded.params))
