"""Kernels in 8 and 4 bits: products, T5s made of them, and what is refused."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from slow import slow
from tiny import EVERY, TINY, changed, logits_along, prompt_of, ragged_inputs, random_params

from specdec.checkpoints.architectures import decode_model
from specdec.core.compilation import decode_jit
from specdec.models.partitioning import DeviceMesh
from specdec.models.products import few_tokens, plain
from specdec.models.products.quantized import num_bytes
from specdec.models.transformer.model import TransformerModel

OPS = {"out_in": few_tokens, "in_out": plain}
GROUP = 4


def rounded8(kernel, axis=0):
    """Written again in NumPy: the nearest of 255 numbers, the largest being 127 scales."""
    kernel = np.asarray(kernel, np.float64)
    scale = np.abs(kernel).max(axis=axis, keepdims=True) / 127
    return np.round(kernel / scale) * scale


def rounded4(kernel, layout, group=GROUP):
    """The number farthest from zero is -8 scales, and the scale a float16 number."""
    kernel = np.asarray(kernel, np.float64)
    size = len(kernel)
    # Which in-features share a scale: neighbours, or those that are size / group apart.
    places = np.arange(size) // group if layout == "in_out" else np.arange(size) % (size // group)
    out = np.empty_like(kernel)
    for place in set(places):
        part = kernel[places == place]
        largest = np.take_along_axis(part, np.abs(part).argmax(axis=0, keepdims=True), axis=0)
        scale = (largest.astype(np.float32) / -8).astype(np.float16).astype(np.float64)
        out[places == place] = np.clip(np.round(part / scale), -8, 7) * scale
    return out


def rounded(kernel, bits, layout):
    return rounded8(kernel) if bits == 8 else rounded4(kernel, layout)


@pytest.mark.parametrize("layout", OPS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tokens", [1, 8, slow(3), slow(70)])
@pytest.mark.parametrize(("size", "rows"), [(48, 33), (4224, 16)])  # One chunk; two.
def test_products_are_those_of_the_rounded_kernel(size, rows, tokens, bits, layout):
    kernel = jax.random.normal(jax.random.key(0), (size, rows)) * size**-0.5
    x = jax.random.normal(jax.random.key(1), (1, tokens, size))
    ops = OPS[layout]
    few = ops.quantize(ops.pack(kernel), bits, GROUP)
    found = decode_jit(static_argnames=())(lambda kernel, x: ops.product(kernel, x))(few, x)
    expected = np.asarray(x, np.float64) @ rounded(kernel, bits, layout)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # Rounding is no more than half a step of the largest number.
    off = np.abs(rounded(kernel, bits, layout) - kernel)
    assert 0 < off.max() <= np.abs(kernel).max() / {8: 253, 4: 7.9}[bits]


def test_joined_kernels_have_scales_of_their_own():
    kernels = jax.random.normal(jax.random.key(0), (48, 3, 20)) * jnp.array([1, 10, 100.0])[:, None]
    apart = [kernels[:, i] for i in range(3)]
    x = jax.random.normal(jax.random.key(1), (1, 2, 48))
    for layout, ops in OPS.items():
        for bits in (8, 4):
            few = ops.quantize(ops.pack(ops.joined(apart, 1)), bits, GROUP)
            for i, found in enumerate(ops.split(ops.product(few, x), 3, 1)):
                expected = np.asarray(x, np.float64) @ rounded(kernels[:, i], bits, layout)
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3, err_msg=layout)


def test_a_kernel_of_zeros_stays_one():
    for ops in OPS.values():
        for bits in (8, 4):
            with jax.debug_nans(True):  # Nothing is divided by a scale of zero.
                few = ops.quantize(ops.pack(jnp.zeros((48, 20))), bits, GROUP)
            np.testing.assert_array_equal(ops.product(few, jnp.ones((1, 1, 48))), 0)


def test_bytes_of_int4_are_half_a_byte_each():
    kernel = jax.random.normal(jax.random.key(0), (64, 20))
    for ops in OPS.values():
        assert num_bytes(ops.quantize(ops.pack(kernel), 4, 16)) == 64 * 20 // 2 + 4 * 20 * 2
        assert num_bytes(ops.quantize(ops.pack(kernel), 8, 16)) == 64 * 20 + 20 * 4


def tree_rounded(params, which):
    """A checkpoint's tree with kernels rounded: ``which(path)`` is a function, or None to keep."""
    flat = flatten_dict(params, sep="/")
    found = {path: which(path) for path in flat}
    return unflatten_dict(
        {
            path: jnp.asarray(found[path](leaf), jnp.float32) if found[path] else leaf
            for path, leaf in flat.items()
        },
        sep="/",
    )


def along(model, params, length, target=None):
    prompt = prompt_of(model, ragged_inputs(2, 7, 19))
    tokens = jax.random.randint(jax.random.key(3), (2, length), 2, 19)
    return logits_along(model, params, prompt, tokens, target)


@pytest.mark.parametrize(
    ("variant", "layout"),
    [("v1.0", "out_in"), ("marian", "out_in"), ("t5gemma2", "in_out"), ("whisper", "out_in")],
)
def test_a_model_of_int8_weights_is_the_one_of_the_rounded_ones(variant, layout):
    """Tied and untied; with an encoder's embedding apart, queries that share keys, and biases."""
    params = random_params(EVERY[variant], 0)

    def which(path):
        if path.endswith("token_embedder/embedding"):
            return functools.partial(rounded8, axis=1)
        return rounded8 if path.endswith("kernel") else None

    model = decode_model(EVERY[variant], layout)
    found = along(model, model.pack(params, int8=True), 4)
    expected = along(model, model.pack(tree_rounded(params, which)), 4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert np.abs(expected - along(model, model.pack(params), 4)).max() > 1e-2


@pytest.mark.parametrize(
    ("variant", "bits", "layout"),
    [("v1.1", 8, "out_in"), ("v1.1", 4, "in_out"), ("v1.0", 4, "out_in"), ("marian", 8, "in_out"),
     ("t5gemma", 4, "out_in"), slow("whisper", 4, "out_in")],
)  # fmt: skip
def test_a_quantized_model_is_the_one_of_a_rounded_decoder(variant, bits, layout):
    """Its own logits' kernel too, where the checkpoint ties it to the embedding."""
    config, params = EVERY[variant], random_params(EVERY[variant], 0)
    full = decode_model(config, layout)
    few, packed = full.quantized(full.pack(params), bits, GROUP, of_target=False)

    def which(path):
        step = path.startswith("decoder") and path.endswith("kernel")
        kept = re.search("encoder_decoder_attention/(key|value)", path)
        return functools.partial(rounded, bits=bits, layout=layout) if step and not kept else None

    if config.tied_logits:
        scale = config.d_model**-0.5 if variant in TINY else 1.0
        head = np.asarray(params["token_embedder"]["embedding"]).T * scale
        params["decoder"].setdefault("logits_dense", {})["kernel"] = jnp.asarray(head)
        config = changed(config, tied_logits=False)
    expected_model = decode_model(config, layout)
    expected = along(expected_model, expected_model.pack(tree_rounded(params, which)), 3)
    np.testing.assert_allclose(along(few, packed, 3), expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("variant", ["v1.0", "t5gemma2", slow("whisper")])
def test_a_draft_of_the_target_shares_what_that_made_of_the_inputs(variant):
    model = decode_model(EVERY[variant])
    params = model.pack(random_params(EVERY[variant], 0))
    few, packed = model.quantized(params, 8, GROUP, of_target=True)
    assert packed.encoder is None
    assert packed.cross_kv is None
    assert packed.embedding is params.embedding
    prompt = prompt_of(model, ragged_inputs(2, 7, 19))
    encoded = model.start(params, prompt, 4).encoded
    started = few.start(packed, prompt, 4, encoded)
    assert all(map(lambda a, b: a is b, *map(jax.tree.leaves, (started.encoded, encoded))))
    alone, own = model.quantized(params, 8, GROUP, of_target=False)
    found = along(few, packed, 4, encoded)
    np.testing.assert_allclose(found, along(alone, own, 4), rtol=0, atol=1e-5)
    other = jax.tree.map(lambda a: a[::-1], encoded)
    assert np.abs(along(few, packed, 4, other) - found).max() > 1e-2


def test_a_step_reads_few_bits():
    model = TransformerModel(TINY["v1.1"])
    params = model.pack(random_params(TINY["v1.1"], 0))
    full, *few = (
        num_bytes((model if bits == 32 else m).step_params(p))
        for bits, (m, p) in (
            (32, (model, params)),
            *((bits, model.quantized(params, bits, 8, of_target=True)) for bits in (8, 4)),
        )
    )
    assert full > 3 * few[0] > 4 * few[1]  # Of these tiny kernels, scales are a large part.


REFUSED = {
    "group": (lambda m, p: m.quantized(p, 4, 32, of_target=True), "Groups of 32 do not divide"),
    "int8 again": (
        lambda m, p: m.quantized(m.pack(random_params(TINY["v1.1"], 0), int8=True), 8, 16,
                                 of_target=True),
        "have 8 bits already",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    ask, message = REFUSED[name]
    for layout in OPS:
        model = TransformerModel(TINY["v1.1"], layout)
        with pytest.raises(ValueError, match=message):
            ask(model, model.pack(random_params(TINY["v1.1"], 0)))


def test_a_mesh_that_cuts_scales_is_refused():
    config = dataclasses.replace(TINY["v1.1"], vocab_size=20)
    params = random_params(config, 0)
    full = TransformerModel(config, "in_out").pack(params)
    cut = TransformerModel(config, "in_out", DeviceMesh(1, 2).planned_target)
    for ask in (lambda: cut.quantized(full, 8, 16, of_target=True),
                lambda: cut.pack(params, int8=True)):  # fmt: skip
        with pytest.raises(ValueError, match=r"cannot be cut, and this mesh cuts .*heads"):
            ask()
    whole = TransformerModel(config, "in_out", DeviceMesh(2, 1).planned_target)
    whole.quantized(full, 8, 16, of_target=True)


def loop_carries(text):
    """Types of all that a compiled program's loops carry."""
    tuples = re.findall(r" = \((.*)\) while\(", text)
    assert tuples
    return [re.findall(r"(\w+)\[([\d,]*)\]", each) for each in tuples]


@pytest.mark.parametrize("layout", ["out_in", slow("in_out")])
def test_a_decode_loop_carries_int8_and_no_widened_copy(layout):
    """Compiled as it is for users; otherwise kernels would be widened once, before the loop."""
    config = changed(TINY["v1.1"], d_model=64, head_dim=32, d_ff=192)
    model = TransformerModel(config, layout)
    packed = model.pack(random_params(config, 0), int8=True)
    prompt = prompt_of(model, ragged_inputs(1, 7, 19))

    @decode_jit(static_argnames=())
    def steps(params, prompt):
        start = model.start(params, prompt, 9)

        def step(_, carry):
            token, cache = carry
            hidden, cache = model.extend(params, start.encoded, cache, token)
            token = jnp.argmax(model.logits(params, hidden), axis=-1).astype(jnp.int32)
            return token, model.commit(cache, None, jnp.ones(1, jnp.int32))

        return jax.lax.fori_loop(0, 8, step, (start.last_token[:, None], start.cache))[0]

    text = steps.jitted(packed, prompt).lower(packed, prompt).compile().as_text()
    kernels = [kernel for layer in model.kernels(packed) for kernel in layer.values()]
    shapes = {",".join(map(str, kernel.qvalue.shape)) for kernel in kernels}
    carried = {part for each in loop_carries(text) for part in each}
    assert {("s8", shape) for shape in shapes} <= carried
    assert not {("f32", shape) for shape in shapes} & carried
