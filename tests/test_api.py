"""How pairs are loaded; generation itself is tested with the loops and the bundled pair."""

import jax
import jax.numpy as jnp
import pytest
from tiny import TINY, random_params

from specdec.checkpoints import save_huggingface
from specdec.checkpoints.loading import draft_kernel_dtype
from specdec.load import load_pair


@pytest.fixture
def checkpoint(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, jax.device_get(random_params(config, 0)))
    return tmp_path


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on CPU only")
def test_a_draft_is_stored_in_16_bits_and_the_target_is_not(checkpoint):
    pair = load_pair(target=checkpoint, draft=checkpoint)
    assert pair.draft.weights.layers.wi.dtype == jnp.float16
    assert pair.target.params.layers.wi.dtype == jnp.float32
    assert draft_kernel_dtype("bfloat16") is None
