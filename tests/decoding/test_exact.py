"""Decoding(exact=True): the target's logits are the same bits in every call, on CPU.

Compiled as for users: what is proven is the order of sums in their programs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import EVERY, changed, prompt_of, ragged_inputs, random_params

import specdec
from specdec.core.compilation import CPU_OPTIONS
from specdec.core.topology import CHAIN, Topology
from specdec.models.products import exact
from specdec.models.transformer.model import TransformerModel

# Every kind of position, norm, sharing of heads, and attention to an encoder; widths are whole
# vectors, as those of real models.
SIZES = {"d_model": 64, "d_ff": 96, "head_dim": 16}
FAMILIES = {
    "v1.1": "bfloat16", "gpt": "float32", "whisper": "float32", "llama": "float16",
    "gemma2": "bfloat16", "t5gemma2": "float32",
}  # fmt: skip
COUNT = 24  # Tokens that are read.
TREE = Topology((-1, 0, 0, 1, 2, 2, 3, 4))
PATHS = [(0, 1, 3, 6), (0, 2, 4, 7)]
# Tokens of each call, rows, entries of the cache. Nine tokens do not fill whole passes of six.
CALLS = [(3, 8, 64), (8, 3, 180), (3, 3, 64)]


def model_of(family, dtype):
    sizes = {k: v for k, v in SIZES.items() if k != "head_dim" or "heads" not in family}
    config = changed(EVERY[family], vocab_size=64, dtype=dtype, **sizes)
    model = TransformerModel(config)
    return model.exactly(), model.pack(random_params(config, 0))


@functools.partial(
    jax.jit, static_argnames=("model", "count", "capacity"), compiler_options=CPU_OPTIONS
)
def read(model, params, prompt, tokens, count, capacity):
    """Logits behind tokens [B, N], so many in a call."""
    start = model.start(params, prompt, capacity)
    calls = tokens.reshape(len(tokens), -1, count).swapaxes(0, 1)

    def call(cache, tokens):
        hidden, cache = model.extend(params, start.encoded, cache, tokens)
        logits = model.logits(params, hidden)
        return model.commit(cache, None, jnp.full(len(tokens), count)), logits

    _, logits = jax.lax.scan(call, start.cache, calls)
    return logits.swapaxes(0, 1).reshape(*tokens.shape, -1)


def rows_of(model, number, own, long=21):
    """Inputs and tokens of so many rows, of which one is the same whatever the others are."""
    size = model.vocab_size
    inputs = np.array(ragged_inputs(number, long, size, seed=number))
    tokens = np.random.default_rng(number).integers(2, size, (number, COUNT))
    inputs[own] = np.array(ragged_inputs(1, long, size, seed=99))[0]
    tokens[own] = np.random.default_rng(99).integers(2, size, COUNT)
    return prompt_of(model, inputs), tokens.astype(np.int32)


def logits_of(model, params, count, rows, capacity):
    own = rows // 2 if model.input_shape is None else 0  # The first sound is always the same.
    prompt, tokens = rows_of(model, rows, own)
    return np.asarray(read(model, params, prompt, tokens, count, capacity))[own]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_call_changes_a_bit(family):
    model, params = model_of(family, FAMILIES[family])
    alone = logits_of(model, params, 1, 1, 64)
    assert np.ptp(alone, axis=1).min() > 0.5
    for call in CALLS:
        np.testing.assert_array_equal(logits_of(model, params, *call), alone, err_msg=f"{call}")


def test_a_prompt_is_what_decoding_its_tokens_makes():
    model, params = model_of("llama", "bfloat16")
    generator = np.random.default_rng(7)
    inputs, tokens = (generator.integers(2, 64, (1, n)).astype(np.int32) for n in (21, COUNT))
    tokens[:, 0] = inputs[:, -1]  # A prompt's last token is the first that is read.
    whole = read(model, params, prompt_of(model, inputs), tokens, 3, 64)
    along = np.concatenate([inputs[:, 5:-1], tokens], axis=1)[:, : 15 + COUNT]
    begun = read(model, params, prompt_of(model, inputs[:, :6]), along, 3, 64)
    np.testing.assert_array_equal(np.asarray(begun)[:, 15:], np.asarray(whole))


@pytest.mark.parametrize("family", ["v1.1", "gemma2"])
def test_a_path_of_a_tree_is_a_chain(family):
    model, params = model_of(family, "bfloat16")
    prompt, tokens = rows_of(model, 3, 0)
    tokens = tokens[:, : TREE.size]
    found = np.asarray(_block(model, params, prompt, tokens, TREE))
    for path in PATHS:
        alone = np.asarray(_block(model, params, prompt, tokens[:, path], CHAIN))
        np.testing.assert_array_equal(found[:, path], alone, err_msg=f"{path}")


@functools.partial(jax.jit, static_argnames=("model", "topology"), compiler_options=CPU_OPTIONS)
def _block(model, params, prompt, tokens, topology):
    start = model.start(params, prompt, 64)
    hidden, _ = model.extend(params, start.encoded, start.cache, tokens, topology)
    return model.logits(params, hidden)


def test_a_tree_at_once_is_another_sum():
    """The mutant: nodes that attend to the block as it lies."""
    model, params = model_of("gemma2", "bfloat16")
    prompt, tokens = rows_of(model, 1, 0)
    models = model, dataclasses.replace(model, exact=False)
    found = [_block(each, params, prompt, tokens[:, : TREE.size], TREE) for each in models]
    assert (found[0] != found[1]).any()


def test_without_barriers_three_terms_have_no_order(monkeypatch):
    model, params = model_of("gpt", "float32")
    monkeypatch.setattr(exact, "barrier", lambda x: x)
    monkeypatch.setattr(exact, "in_memory", lambda x: x)
    jax.clear_caches()
    found = [logits_of(model, params, *call) for call in [(1, 1, 64), CALLS[0]]]
    jax.clear_caches()
    assert (found[0] != found[1]).any()


def test_large_calls_differ_without_exact():
    model, params = model_of("gpt", "float32")
    model = dataclasses.replace(model, exact=False)
    alone, beside = (logits_of(model, params, *call) for call in [(1, 1, 64), (8, 8, 64)])
    assert (alone != beside).any()


def _mixed(count):
    """Values that some of 8 queries have mixed."""
    generator = np.random.default_rng(0)
    weights = jnp.asarray(generator.uniform(size=(1, 3, 8, 96)), jnp.float32)
    values = jnp.asarray(generator.normal(size=(1, 3, 96, 64)), jnp.float32)
    mix = jax.jit(lambda *given: exact.mix(*given), compiler_options=CPU_OPTIONS)
    return np.asarray(mix(weights[:, :, :count], values))


def test_eight_sums_have_one_order_and_fewer_have_not(monkeypatch):
    whole = _mixed(8)
    np.testing.assert_array_equal(_mixed(1), whole[:, :, :1])
    monkeypatch.setattr(exact, "FEW", 2)
    assert (_mixed(1) != whole[:, :, :1]).any()


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart_lm", dtype="bfloat16")


TEXTS = [
    "it was a", "the old man", "she", "in the morning they went down to the river", "he said that",
    "no", "and so the whole house was still , for", "when",
]  # fmt: skip
WAYS = {
    "gamma 1": {"gamma": 1}, "gamma 7": {"gamma": 7}, "tree": {"tree": (2, 2, 1)},
    "plain, 8 rows": {"method": "autoregressive", "batch_size": 8},
    "gamma 4, 3 rows, refilled": {"gamma": 4, "batch_size": 3},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_log_probs_are_those_of_plain_decoding(pair, way):
    common = {"exact": True, "log_probs": True, "max_decode_len": 48}
    plain = pair.generate(TEXTS, method="autoregressive", **common)
    found = pair.generate(TEXTS, **common, **WAYS[way])
    assert [row.tolist() for row in found.tokens] == [row.tolist() for row in plain.tokens]
    for ours, theirs in zip(found.log_probs, plain.log_probs, strict=True):
        # Not bit by bit: a logarithm is rounded in another way beside others.
        np.testing.assert_allclose(ours, theirs, atol=4e-6)


def test_an_audit_sees_rounding_and_that_exact_has_none(pair):
    how = {"gamma": 4, "batch_size": 8, "max_decode_len": 48, "audit": True}
    rounded = pair.generate(TEXTS, **how)
    assert rounded.audit.rounding > 0
    assert rounded.audit.num_tokens == sum(map(len, rounded.tokens))
    assert all(map(np.array_equal, map(np.shape, rounded.margins), map(np.shape, rounded.tokens)))
    exact = pair.generate(TEXTS, exact=True, **how).audit
    assert (exact.rounding, exact.close, exact.differing) == (0, 0, 0)
    with pytest.raises(ValueError, match="set temperature 0"):
        pair.generate(TEXTS, sampling=specdec.SamplingConfig(1.0), audit=True)


def test_draws_do_not_depend_on_the_batch(pair):
    how = {"method": "autoregressive", "exact": True, "max_decode_len": 48, "seed": 3}
    sampling = specdec.SamplingConfig(temperature=1.0, top_p=0.9)
    alone, beside = (
        pair.generate(TEXTS, sampling=sampling, batch_size=size, **how) for size in (1, 8)
    )
    assert [row.tolist() for row in beside.tokens] == [row.tolist() for row in alone.tokens]


def test_what_cannot_be_exact_is_refused(pair):
    with pytest.raises(ValueError, match="exact needs programs for CPU"):
        dataclasses.replace(pair.target.model, layout="in_out").exactly()
    with pytest.raises(ValueError, match="leave exact out"):
        pair.generate(TEXTS, method="beam", exact=True)
