"""A share against the model's own arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from tiny import EVERY, TINY_BART, TINY_ROTARY, TINY_T5, changed, prompt_of

from specdec.checkpoints.architectures import decode_model, init_params
from specdec.measure.device_share import DeviceShare
from specdec.models.partitioning import DeviceMesh
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.t5.config import T5Config

ALONE = DeviceMesh().planned_target
WIDE = T5Config(
    vocab_size=512, d_model=128, num_encoder_layers=1, num_decoder_layers=2, num_heads=4,
    head_dim=32, d_ff=256,
)  # fmt: skip
SHARED = {
    "d_model": 128, "num_layers": 2, "num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "d_ff": 64,
}  # fmt: skip
CONFIGS = {
    **TINY_T5,
    **TINY_BART,
    **TINY_ROTARY,
    "wide": WIDE,
    "wide, shared keys": RotaryConfig(vocab_size=512, **SHARED),
    "wide, merged attention": RotaryConfig(
        vocab_size=512, **SHARED, merged_attention=True, encoder=Stack(**SHARED)
    ),
    "wide, tied": changed(WIDE, tied_logits=True, gated=False, activation="relu"),
}


def num_bytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_are_those_of_the_models_arrays(name, dtype):
    config = dataclasses.replace(CONFIGS[name], dtype=dtype)
    model, share = decode_model(config, "in_out"), DeviceShare(config, ALONE, batch_size=3)

    prompt = prompt_of(model, jnp.ones((3, 5), jnp.int32))

    def arrays():
        params = model.pack(init_params(config, jax.random.key(0)))
        start = model.start(params, prompt, 11)
        tokens = jnp.ones((3, 4), jnp.int32)
        hidden, _ = model.extend(params, start.encoded, start.cache, tokens)
        return params, start.encoded, start.cache, model.logits(params, hidden)

    params, encoded, cache, logits = jax.eval_shape(arrays)
    assert share.weights == num_bytes(params)
    kernel = params.embedding if config.tied_logits else params.logits
    few = [getattr(params, part, None) for part in ("relpos", "embedding_norm", "logits_bias")]
    assert share.step_weights == num_bytes((params.layers, params.final_norm, kernel, few))
    if model.reads_prefix:
        assert share.self_cache(11, 4) == num_bytes((cache.keys, cache.values))
    else:
        assert share.cache(11) == num_bytes((cache.keys, cache.values))
        assert share.cache(5) == num_bytes((encoded.keys, encoded.values))
    assert share.logits(4) == num_bytes(logits)


def test_a_mesh_divides_it():
    config = CONFIGS["wide"]
    whole = DeviceShare(config, ALONE, batch_size=8)
    cut = DeviceShare(config, DeviceMesh(2, 4).planned_target, batch_size=8)
    assert cut.rows == 4
    assert cut.cache(16) == whole.cache(16) // 8  # Rows by 2, heads by 4.
    assert whole.weights // 4 < cut.weights < whole.weights // 4 * 1.02  # Norms stay whole.
    assert cut.logits(3) == whole.logits(3) // 2  # Gathered.


def test_a_mesh_that_does_not_fit_is_refused_without_devices():
    with pytest.raises(ValueError, match="16 devices does not divide num_heads = 4"):
        DeviceShare(WIDE, DeviceMesh(1, 16).planned_target, 1)
    with pytest.raises(ValueError, match="batch_size is 3, but the mesh cuts a batch into 2"):
        DeviceShare(WIDE, DeviceMesh(2, 1).planned_target, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("marian", "2 devices does not divide encoder_vocab_size = 23: choose a size that"),
        ("llama", "4 devices does not divide num_kv_heads = 2: choose a size that divides 2"),
        ("t5gemma", "2 devices does not divide encoder.num_kv_heads = 1: choose a size that"),
    ],
)
def test_the_size_that_does_not_fit_is_named(name, words):
    """Of the encoder's own, and of heads that share keys."""
    config = dataclasses.replace(EVERY[name], vocab_size=20)
    if name == "t5gemma":
        config = dataclasses.replace(config, encoder_vocab_size=20)
    devices = int(words.partition(" ")[0])
    with pytest.raises(ValueError, match=words):
        DeviceShare(config, DeviceMesh(1, devices).planned_target, 1)
