"""A checkpoint of 16 bits stays one, and generates what it would if it were widened at load."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from tiny import EVERY, TINY, changed, logits_along, prompt_of, ragged_inputs, random_params

from specdec.checkpoints import open_checkpoint, save_huggingface, save_t5x
from specdec.checkpoints.loading import load_model, load_packed
from specdec.core.compilation import decode_jit

# Sizes are whole vectors, as of every published T5. Of others a sum's rest may be added in another
# order, which is rounded otherwise.
CONFIGS = {
    "v1.1": changed(TINY["v1.1"], d_model=64, head_dim=32, d_ff=192),
    "v1.0": changed(TINY["v1.0"], d_model=64, head_dim=16, d_ff=128),
    "marian": changed(EVERY["marian"], d_model=64, d_ff=128, max_positions=80),
    "t5gemma2": changed(EVERY["t5gemma2"], d_model=64, head_dim=16, d_ff=128),
    "llama": changed(EVERY["llama"], d_model=64, head_dim=16, d_ff=128),
}  # fmt: skip
WRITERS = {"huggingface": save_huggingface, "t5x": lambda *args: save_t5x(*args[:3], 0, args[-1])}


def load_both(source):
    """As it is stored, and with every parameter widened to float32."""
    return load_model(str(source), "float32"), load_packed(*open_checkpoint(source), str(source))


def kernels_of(loaded):
    params = loaded.params
    encoder = getattr(params, "encoder", None)
    layers = params.layers + (() if encoder is None else encoder.layers)
    kernels = [getattr(layer, name) for layer in layers for name in ("self_qkv", "wi", "wo")]
    return [params.embedding, *([] if encoder is None else [params.cross_kv]), *kernels]


ONCE = ("v1.1", "huggingface", "float16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "form", "dtype"),
    [
        pytest.param(*case, marks=[] if case == ONCE else [pytest.mark.slow])
        for case in itertools.product(CONFIGS, WRITERS, ["float16", "bfloat16"])
        if case[0] in TINY or case[1] == "huggingface"  # T5X has T5s alone.
    ],
)
def test_logits_are_those_of_the_widened_weights(variant, form, dtype, tmp_path):
    config = CONFIGS[variant]
    WRITERS[form](tmp_path, config, jax.device_get(random_params(config, 0)), None, dtype)
    narrow, wide = load_both(tmp_path)
    assert {kernel.dtype for kernel in kernels_of(narrow)} == {jnp.dtype(dtype)}
    assert {kernel.dtype for kernel in kernels_of(wide)} == {jnp.dtype("float32")}
    along = decode_jit(static_argnames="model")(logits_along.__wrapped__)
    for length in (1, 2, 7, 8, 9, 30, 70):  # Each way that a product is computed.
        tokens = jax.random.randint(jax.random.key(length), (1, length), 2, config.vocab_size)
        prompt = prompt_of(narrow.model, ragged_inputs(1, 9, config.vocab_size))
        found, expected = (along(m.model, m.params, prompt, tokens) for m in (narrow, wide))
        assert np.ptp(expected) > 1
        np.testing.assert_array_equal(found, expected, err_msg=f"{length} tokens")


def test_a_factor_of_the_head_is_not_rounded_to_16_bits(tmp_path):
    """A head that is separate and scaled: the one kernel that something is multiplied into."""
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, random_params(config, 0), None, "float16")
    described = json.loads((tmp_path / "config.json").read_text())
    described["scale_decoder_outputs"] = True
    (tmp_path / "config.json").write_text(json.dumps(described))
    narrow, wide = load_both(tmp_path)
    assert narrow.params.logits.dtype == jnp.float32
    assert narrow.params.embedding.dtype == jnp.float16
    np.testing.assert_array_equal(narrow.params.logits, wide.params.logits)


def test_memory_is_that_of_the_file(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, random_params(config, 0), None, "float16")
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(load_both(tmp_path)[0].params))
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        names = file.keys()
        stored = sum(file.get_tensor(name).nbytes for name in names)
    assert stored <= held <= 1.2 * stored
