"""What every model promises the decode loop (specdec.models.base.Model)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow import slow
from tiny import EVERY, TINY, TINY_T5, logits_along, prompt_of, ragged_inputs, random_params

from specdec.checkpoints.architectures import decode_model, network
from specdec.core import platforms
from specdec.core.topology import CHAIN, Topology, TracedTopology
from specdec.decoding.samples import repeated
from specdec.models.toy import ToyModel
from specdec.models.transformer.model import TransformerModel

BATCH, LENGTH, MAX_LEN = 3, 6, 12


def make(name):
    """A model and its decode parameters."""
    if name == "toy":
        model = ToyModel(19)
        return model, jax.random.normal(jax.random.key(0), (31, 19))
    variant, layout, *narrow = name.split("/")
    if layout in platforms.PLATFORMS:
        layout = platforms.PLATFORMS[layout].layout
    model, params = decode_model(EVERY[variant], layout), random_params(EVERY[variant], 0)
    return model, model.pack(params, None, *narrow)


# Each architecture, layout and platform.
MODELS = [
    "toy", "v1.1/in_out", "v1.0/tpu", "gpt/in_out", "gpt_untied/tpu", "bart/out_in",
    "whisper/tpu", "m2m_100/in_out", "gemma2/in_out", "t5gemma2/out_in",
    *map(slow, (
        "v1.0/out_in", "v1.1/out_in/float16", "umt5/in_out", "gpt_untied/out_in", "marian/in_out",
        "m2m_100/out_in/float16", "bart/tpu", "llama/out_in", "qwen2/tpu", "t5gemma/in_out",
        "t5gemma2/tpu", "whisper/out_in/float16",
    )),
]  # fmt: skip


@pytest.fixture(params=MODELS, scope="module")
def setup(request):
    """Of a platform's, calls are traced as there: with filler, and other writes into the cache."""
    model, params = make(request.param)
    prompt = prompt_of(model, ragged_inputs(BATCH, 7, 19))
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, 19)
    platform = platforms.PLATFORMS.get(request.param.split("/")[-1], platforms.CPU)
    with platforms.compiling_for(platform):
        yield Scorer(model, params, prompt), tokens


class Scorer:
    """A model that was started on a prompt; each call compiled once."""

    def __init__(self, model, params, prompt):
        self.model, self.prompt, self.params = model, prompt, params
        # Parameters are arguments: of constants XLA would compute things while it compiles.
        start = jax.jit(lambda params, prompt: model.start(params, prompt, MAX_LEN))
        self.begin = start(params, prompt)
        self.commit = jax.jit(model.commit)

        @functools.partial(jax.jit, static_argnames="after")
        def extend(params, encoded, cache, tokens, topology, after):
            hidden, cache = model.extend(params, encoded, cache, tokens, topology, after=after)
            return model.logits(params, hidden), cache

        self._extend = extend

    def extend(self, cache, tokens, topology=CHAIN, *, after=0, encoded=None):
        """Logits, and the cache; of the prompt's own rows unless ``encoded`` is another."""
        encoded = self.begin.encoded if encoded is None else encoded
        return self._extend(self.params, encoded, cache, tokens, topology, after)

    def score(self, tokens):
        """Logits along a chain from an empty cache."""
        return self.extend(self.begin.cache, tokens)[0]

    def committed(self, tokens):
        """The cache of a chain."""
        _, cache = self.extend(self.begin.cache, tokens)
        return self.commit(cache, None, jnp.full(len(tokens), tokens.shape[1]))


def same(a, b):
    """But for float32 rounding: sums of up to 64 terms of logits near 5, in another order."""
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5)


def test_extending_by_t_is_t_times_extending_by_one(setup):
    scorer, tokens = setup
    whole = scorer.score(tokens)
    cache = scorer.begin.cache
    for t in range(LENGTH):
        one, cache = scorer.extend(cache, tokens[:, t : t + 1])
        cache = scorer.commit(cache, None, jnp.ones(BATCH, jnp.int32))
        same(one[:, 0], whole[:, t])


def test_extending_is_causal(setup):
    scorer, tokens = setup
    before, after = scorer.score(tokens), scorer.score(tokens.at[:, 3].add(1) % 19)
    same(before[:, :3], after[:, :3])
    assert not np.allclose(before[:, 3:], after[:, 3:])


def test_rolling_back_is_never_having_drafted(setup):
    """Rows keep different numbers of guesses; what was rejected leaves no trace."""
    scorer, tokens = setup
    kept = jnp.array([0, 1, 3])
    guesses = jnp.where(jnp.arange(4) < kept[:, None], tokens[:, 2:6], 18 - tokens[:, 2:6])
    _, cache = scorer.extend(scorer.committed(tokens[:, :2]), guesses)
    cache = scorer.commit(cache, None, kept)
    following = jnp.stack([jnp.roll(tokens[b, 2:], -kept[b])[:2] for b in range(BATCH)])
    got, _ = scorer.extend(cache, following)
    truth = scorer.score(tokens)
    for b in range(BATCH):
        at = 2 + int(kept[b])
        stop = min(at + 2, LENGTH)
        same(got[b, : stop - at], truth[b, at:stop])


def test_a_negative_count_forgets_committed_tokens(setup):
    scorer, tokens = setup
    cache = scorer.commit(scorer.committed(tokens), None, jnp.array([-1, -2, -4]))
    again = jnp.stack([jnp.roll(tokens[b], n)[:1] for b, n in enumerate((1, 2, 4))])
    got, _ = scorer.extend(cache, again)
    truth = scorer.score(tokens)
    for b, n in enumerate((1, 2, 4)):
        same(got[b, 0], truth[b, LENGTH - n])


def test_a_ragged_batch_is_its_rows_alone(setup):
    scorer, tokens = setup
    together = scorer.score(tokens)
    for b in range(BATCH):
        prompt = jax.tree.map(lambda a, b=b: a[b : b + 1], scorer.prompt)
        alone = Scorer(scorer.model, scorer.params, prompt)
        same(alone.score(tokens[b : b + 1])[0], together[b])


def test_lengths_say_what_is_input(setup):
    """Filler behind a row's length is not read, whatever it is."""
    scorer, tokens = setup
    if scorer.model.input_shape is not None:
        pytest.skip("sounds all have the same length")
    prompt, name, count = scorer.prompt, "inputs", "input_lengths"
    if scorer.model.reads_prefix:
        name, count = "prefix", "prefix_lengths"
    given, lengths = getattr(prompt, name), getattr(prompt, count)
    places = jnp.arange(given.shape[1])
    filled = jnp.where(places < lengths[:, None], given, scorer.model.eos_ids[0])
    other = Scorer(scorer.model, scorer.params, dataclasses.replace(prompt, **{name: filled}))
    same(other.score(tokens), scorer.score(tokens))
    shorter = dataclasses.replace(prompt, **{count: lengths - 1})
    assert not np.allclose(
        Scorer(scorer.model, scorer.params, shorter).score(tokens), scorer.score(tokens)
    )


def test_a_ragged_prefix_is_prefilled(setup):
    """A prefix of several tokens is the start token and what was emitted after it."""
    scorer, tokens = setup
    start, lengths = jnp.asarray(scorer.prompt.prefix[:, :1]), jnp.array([1, 3, 4])
    prefix = jnp.concatenate([start, tokens[:, :3]], axis=1)
    bare = dataclasses.replace(scorer.prompt, prefix=start, prefix_lengths=jnp.ones_like(lengths))
    scorer = Scorer(scorer.model, scorer.params, bare)
    prompt = dataclasses.replace(bare, prefix=prefix, prefix_lengths=lengths)
    forced = Scorer(scorer.model, scorer.params, prompt)
    got, _ = forced.extend(forced.begin.cache, forced.begin.last_token[:, None])
    truth = scorer.score(prefix)
    for b, length in enumerate(lengths.tolist()):
        same(got[b, 0], truth[b, length - 1])


# 0-1-3 and 0-2-4, drafted as one block after two committed tokens.
TREE = Topology((-1, 0, 0, 1, 2))
NODES = jnp.array([[3, 5, 7, 9, 11]] * BATCH)


# In the plain run a model has one kind of tree: these a traced one.
TRACED = ["v1.1/in_out", "v1.1/out_in/float16", "gpt_untied/tpu", "m2m_100/in_out"]


@pytest.fixture(params=["one kind", pytest.param("the other", marks=pytest.mark.slow)])
def tree(request):
    if (request.node.callspec.params["setup"] in TRACED) == (request.param == "the other"):
        return TREE
    return TracedTopology(jnp.array([TREE.parents] * BATCH), depth=TREE.depth, siblings=2)


def test_a_tree_scores_each_branch_as_a_chain(setup, tree):
    scorer, tokens = setup
    got, written = scorer.extend(scorer.committed(tokens[:, :2]), NODES, tree)
    for branch in ([0, 1, 3], [0, 2, 4]):
        prefix = jnp.concatenate([tokens[:, :2], NODES[:, jnp.array(branch)]], axis=1)
        same(got[:, jnp.array(branch)], scorer.score(prefix)[:, 2:])
    # Keep the second branch; its nodes are not neighbours in the cache until commit. What follows
    # the kept nodes of a path is filler and may point anywhere.
    path = jnp.array([[0, 2, 4, 99, -7]] * BATCH)
    cache = scorer.commit(written, path, jnp.full(BATCH, 3))
    after, _ = scorer.extend(cache, jnp.full((BATCH, 1), 6))
    prefix = jnp.concatenate([tokens[:, :2], jnp.array([[3, 7, 11, 6]] * BATCH)], axis=1)
    same(after[:, 0], scorer.score(prefix)[:, -1])


def test_a_tree_grown_by_levels_is_the_tree_in_one_call(setup, tree):
    scorer, tokens = setup
    begin = scorer.committed(tokens[:, :2])
    whole, _ = scorer.extend(begin, NODES, tree)
    cache, levels = begin, []
    for first, last in ((0, 1), (1, 3), (3, 5)):
        logits, cache = scorer.extend(cache, NODES[:, first:last], tree, after=first)
        levels.append(logits)
    same(jnp.concatenate(levels, axis=1), whole)


@pytest.mark.parametrize(
    "setup", ["bart/out_in", "t5gemma2/out_in", slow("v1.0/out_in")], indirect=True
)
def test_a_chain_grown_token_by_token_is_the_chain(setup):
    scorer, tokens = setup
    cache = scorer.begin.cache
    for t in range(LENGTH):
        one, cache = scorer.extend(cache, tokens[:, t : t + 1], after=t)
        same(one[:, 0], scorer.score(tokens)[:, t])


@pytest.mark.parametrize("variant", EVERY)
def test_packed_is_the_network(variant):
    """In the layout of accelerators; checkpoints/test_every_family.py has that of this machine.

    Queries of a T5 are small: with those of random weights attention is so sharp that the network
    differs from its own compiled self by 1.4e-4.
    """
    config, params = EVERY[variant], random_params(EVERY[variant], 3)
    if variant in TINY_T5:
        params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: 0.1 * leaf if "query" in jax.tree_util.keystr(path) else leaf, params
        )
    model = decode_model(config, "in_out")
    tokens = jax.random.randint(jax.random.key(2), (BATCH, 30), 0, 19)
    if config.reads_prefix:
        given, prompt = (tokens,), model.prompt(np.asarray(tokens[:, :1]), np.ones(BATCH))
    else:
        inputs = ragged_inputs(BATCH, 40, 18)
        prompt = prompt_of(model, inputs)
        if config.features is None:
            inputs = jnp.where(inputs == 0, config.pad_id, inputs)
        else:
            inputs = prompt.inputs
        given = (inputs, tokens)
    expected = jax.jit(network(config).apply)({"params": params}, *given)
    assert np.std(expected) > 0.5
    found = logits_along(model, model.pack(params), prompt, tokens)
    np.testing.assert_allclose(found, expected, rtol=4e-5, atol=1e-4)


def test_t5_in_bfloat16_is_close_to_float32():
    config = TINY["v1.1"]
    params = random_params(config, 3)
    inputs, tokens = ragged_inputs(2, 7, 19), jnp.ones((2, 4), jnp.int32)
    both = []
    for dtype in ("float32", "bfloat16"):
        model = TransformerModel(dataclasses.replace(config, dtype=dtype), "out_in")
        packed = model.pack(params)
        assert packed.layers.wi.dtype == jnp.dtype(dtype)
        start = jax.jit(model.start, static_argnums=2)(packed, prompt_of(model, inputs), 8)
        hidden, cache = jax.jit(model.extend)(packed, start.encoded, start.cache, tokens)
        logits = model.logits(packed, hidden)
        stored = {"float32": jnp.float32, "bfloat16": jnp.uint16}[dtype]  # Its bits.
        assert (logits.dtype, cache.keys.dtype) == (jnp.float32, stored)
        both.append(jax.nn.softmax(logits))
    assert float(jnp.abs(both[0] - both[1]).max()) < 0.1


@pytest.mark.parametrize(
    "variant",
    [name if name == "v1.1" else pytest.param(name, marks=pytest.mark.slow) for name in TINY_T5],
)
def test_kernels_stored_in_16_bits_compute_in_32(variant):
    config = TINY_T5[variant]
    params = random_params(config, 0)
    inputs, tokens = ragged_inputs(BATCH, 7, 19), jnp.full((BATCH, 1), 3)
    logits = []
    model = TransformerModel(config, "out_in")
    for stored in (None, "float16"):
        packed = model.pack(params, narrow=stored)
        assert packed.layers.wi.dtype == jnp.dtype(stored or "float32")
        assert packed.embedding.dtype == jnp.dtype(stored or "float32")
        assert packed.cross_kv.dtype == jnp.float32
        logits.append(logits_along(model, packed, prompt_of(model, inputs), tokens))
    assert logits[1].dtype == jnp.float32
    difference = np.max(np.abs(logits[1] - logits[0]))
    assert 0 < difference < 0.05 * np.std(logits[0])


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_logits_of_bfloat16_are_not_rounded_to_it(layout):
    """Else tokens tie that do not; T5X computes logits in float32 too."""
    config = dataclasses.replace(TINY["v1.1"], dtype="bfloat16")
    params = random_params(config, 3)
    model = TransformerModel(config, layout)
    packed = model.pack(params)
    hidden = jax.random.normal(jax.random.key(0), (2, 3, config.d_model), jnp.bfloat16)
    exact = np.asarray(hidden, np.float64)
    inverse = np.mean(exact**2, axis=-1, keepdims=True) ** -0.5
    kernel = params["decoder"]["logits_dense"]["kernel"].astype(jnp.bfloat16)
    normed = (exact * inverse * np.asarray(packed.final_norm.norm_scale, np.float64)).astype(
        jnp.bfloat16
    )
    expected = np.asarray(normed, np.float64) @ np.asarray(kernel, np.float64)
    logits = model.logits(packed, hidden)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_samples_of_a_row_share_its_encoding(setup):
    """Two rows of the cache for each row encoded."""
    scorer, tokens = setup
    cache = repeated(scorer.begin.cache, 2)
    both = jnp.stack([tokens[:, :3], tokens[:, 3:]], axis=1)
    logits, _ = scorer.extend(cache, both.reshape(2 * BATCH, 3))
    for sample in range(2):
        same(logits.reshape(BATCH, 2, 3, -1)[:, sample], scorer.score(both[:, sample]))
