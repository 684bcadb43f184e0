"""Heads on a frozen target: trained, written, read, decoded with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distilling import noted_loop
from run_tiny import recipe
from slow import slow
from tiny import EVERY, TINY_GPT, random_params

import specdec
from specdec.checkpoints import CheckpointError, architectures, save_huggingface
from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary, save_draft_vocabulary
from specdec.checkpoints.heads import init_params, load_heads, save_heads
from specdec.checkpoints.loading import DraftLoader, load_model
from specdec.core import platforms
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.model import EagleModel, EagleParams
from specdec.models.heads.config import HeadsConfig
from specdec.models.heads.network import HeadsNetwork
from specdec.models.look_ahead.model import LookAheadConfig, LookAheadModel, LookAheadParams
from specdec.models.products import fused
from specdec.training import heads as training
from specdec.training import teacher_forcing
from specdec.training.batching import TokenBatch
from specdec.training.checkpointing import load_params

HEADS = {
    "medusa": HeadsConfig("medusa", 3, 16), "blockwise": HeadsConfig("blockwise", 3, 16, 24)
}  # fmt: skip
EAGLE = EagleConfig(16, 12, 2, 6, 20, reads_encoding=True)
SHAPES = HEADS | {"eagle": EAGLE, "look-ahead": LookAheadConfig(3, 16)}


@pytest.fixture(scope="session")
def exported(once, data_directory, target_directory):
    """The tiny target as a checkpoint."""
    config, params = load_params(target_directory)
    return once(
        "exported_target",
        lambda directory: save_huggingface(
            directory, config, params, data_directory / "spiece.model"
        ),
    )


def train(directory, data, target, shape, steps=40, **options):
    settings = recipe(str(data))
    del settings["vocabulary_path"]
    settings["loop"] = dataclasses.replace(
        settings["loop"], total_steps=steps, eval_every=steps // 2, checkpoint_every=steps
    )
    chosen = training.HeadsOptions(str(target), **options)
    return training.train_heads(directory, heads=shape, options=chosen, **settings)


@pytest.mark.parametrize("kind", [kind if kind == "eagle" else slow(kind) for kind in SHAPES])
def test_heads_learn_and_draft(tmp_path, data_directory, exported, validations, kind):
    run = tmp_path / "run"
    train(run, data_directory, exported, SHAPES[kind])
    first, last = validations
    for number in (1, 2, 3):
        assert last[f"loss_{number}"] < first[f"loss_{number}"]
    assert last["alpha_1"] > first["alpha_1"] > 0
    written = (run / "heads/model.safetensors").stat().st_mtime_ns
    train(run, data_directory, exported, SHAPES[kind])  # It had ended, and stays as it is.
    assert (run / "heads/model.safetensors").stat().st_mtime_ns == written
    pair = specdec.load_pair(target=str(exported), draft=specdec.Heads(str(run / "heads")))
    texts = ["ant bee cat", "dog", "eel fox"]
    limits = {"max_decode_len": 16, "max_input_len": 16}
    plain = pair.generate(texts, method="autoregressive", **limits)
    out = pair.generate(texts, tree=(2, 2, 1), **limits)
    assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]
    assert out.stats.accepted > 0
    with pytest.raises(ValueError, match="A best-first tree needs a draft model; with heads"):
        pair.generate(texts, tree=specdec.Tree(nodes=4, depth=2), **limits)


@pytest.fixture
def untrained(monkeypatch):
    """Nothing is trained; what the latest call would start from, and its validation."""
    return noted_loop(monkeypatch, training)


def test_alpha_of_a_later_guess_is_of_the_tokens_it_can_be_for(
    tmp_path, data_directory, exported, monkeypatch, untrained
):
    """Guesses that are the target's own: alpha is 1 for each of them."""
    monkeypatch.setattr(
        training, "comparison", lambda log_p, log_q: {"alpha": jnp.ones(log_p.shape[:2])}
    )
    train(tmp_path, data_directory, exported, HEADS["medusa"])
    found = untrained["means"](untrained["params"])
    assert [found[f"alpha_{number}"] for number in (1, 2, 3)] == pytest.approx([1, 1, 1])


def test_training_goes_on_from_heads(tmp_path, data_directory, exported, untrained):
    shape, initial, target = HEADS["medusa"], str(tmp_path / "heads"), load_params(exported)[1]
    save_heads(initial, shape, init_params(shape, jax.random.key(5)), target)
    train(tmp_path / "run", data_directory, exported, shape, initial=initial)
    jax.tree.map(np.testing.assert_array_equal, untrained["params"], load_heads(initial, target)[1])
    with pytest.raises(ValueError, match=r"holds HeadsConfig\(kind='medusa'.* are to be trained"):
        train(tmp_path / "other", data_directory, exported, EAGLE, initial=initial)


def test_guesses_among_some_tokens(tmp_path, data_directory, exported, untrained, monkeypatch):
    """alpha is the sum of min(p, q) with a q that is 0 for all others; the file is beside heads."""
    tokens = list(range(0, 40, 2))
    save_draft_vocabulary(tmp_path, tokens)
    train(tmp_path / "run", data_directory, exported, EAGLE, draft_vocabulary=str(tmp_path))
    params = untrained["params"]
    found = untrained["means"](params)
    vocab_size = load_params(exported)[0].vocab_size
    assert load_draft_vocabulary(tmp_path / "run/heads", vocab_size) == tokens

    comparison = training.comparison

    def among_tokens(log_p, log_q):
        kept = jnp.isin(jnp.arange(log_q.shape[-1]), jnp.asarray(tokens))
        return comparison(log_p, jax.nn.log_softmax(jnp.where(kept, log_q, -jnp.inf)))

    monkeypatch.setattr(training, "comparison", among_tokens)
    train(tmp_path / "all", data_directory, exported, EAGLE)
    expected = untrained["means"](params)
    for guess in ("alpha_1", "alpha_2"):
        assert found[guess] == pytest.approx(expected[guess], rel=1e-4)


def test_heads_need_the_targets_weights(exported):
    loaded = load_model(str(exported), "float32")
    later = dataclasses.replace(loaded, params=jax.eval_shape(lambda: loaded.params))
    with pytest.raises(ValueError, match="here these come later"):
        DraftLoader(later, None, "float32").heads("somewhere")


def batch_of(config, pairs, length):
    batch = TokenBatch(*(np.zeros((len(pairs), length), np.int32) for _ in range(2)))
    for row, pair in enumerate(pairs):
        for side, ids in zip(batch, teacher_forcing.training_pair(config, *pair), strict=True):
            side[row, : len(ids) + 1] = [*ids, config.eos_id]
    return batch


@pytest.mark.parametrize("variant", ["v1.1", "gpt", "t5gemma", *map(slow, ("marian", "t5gemma2"))])
def test_states_along_a_text_have_the_networks_logits(variant):
    config = dataclasses.replace(EVERY[variant], pad_id=0)
    params = random_params(config, 0)
    pairs = [([3, 4, 5, 6], [7, 8]), ([9, 10], [11, 12, 13])]
    batch = batch_of(config, pairs, 12)
    model = architectures.decode_model(config, "in_out")
    packed = model.pack(params)
    _, _, hidden = teacher_forcing.states_along(model, packed, *map(jnp.asarray, batch))
    expected = teacher_forcing.teacher_forced(architectures.network(config), params, batch)
    counted = batch.targets != config.pad_id
    np.testing.assert_allclose(
        model.logits(packed, hidden)[counted], expected[counted], rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_what_is_written_is_read(tmp_path, kind):
    shape, target = SHAPES[kind], {"a": np.arange(6.0).reshape(2, 3)}
    noise = init_params(shape, jax.random.key(0))
    noise = jax.tree.map(lambda a: jnp.asarray(a + 0.5, jnp.float16).astype("float32"), noise)
    save_heads(tmp_path / "heads", shape, noise, target)
    config, params = load_heads(tmp_path / "heads", target)
    assert config == shape
    jax.tree.map(np.testing.assert_array_equal, params, noise)
    with pytest.raises(CheckpointError, match="was trained on another target"):
        load_heads(tmp_path / "heads", {"a": np.ones((2, 3))})


@pytest.mark.parametrize("architecture", [pytest.param("t5", marks=pytest.mark.slow), "gpt"])
def test_steps_ahead_are_those_of_decoding(tiny_model, architecture):
    """Behind each position: the target's states up to it are fed, then the layer's own."""
    config = tiny_model if architecture == "t5" else TINY_GPT["gpt"]
    initial = architectures.init_params(config, jax.random.key(0))
    shape = dataclasses.replace(EAGLE, width=config.d_model, reads_encoding=architecture == "t5")
    target = architectures.decode_model(config, "in_out")
    frozen, layer = target.pack(initial), EagleModel(target, shape)
    noise = init_params(shape, jax.random.key(1))
    noise = jax.tree.map(lambda a: a + 0.3 * jax.random.normal(jax.random.key(2), a.shape), noise)
    params = EagleParams(layer.pack(noise), frozen)
    batch = batch_of(config, [([3, 4, 5], [7, 8, 9, 10]), ([9], [11, 12, 13, 6])], 8)
    fed, encoded, hidden = teacher_forcing.states_along(target, frozen, *map(jnp.asarray, batch))
    ahead = list(training.steps_ahead(layer, params, encoded, fed, hidden, 3))
    assert [states.shape[1] for states in ahead] == [8, 7, 6]
    before = jnp.pad(hidden, ((0, 0), (1, 0), (0, 0)))
    for at in (0, 3):
        own, cache = layer.start(params, 2, 16, encoded)
        count = jnp.full((2,), at + 1)
        found, cache = layer.extend(params, own, cache, fed[:, : at + 1], before[:, : at + 1])
        cache, state = layer.commit(cache, None, count), found[:, -1:]
        np.testing.assert_allclose(ahead[0][:, at], state[:, 0], rtol=1e-4, atol=1e-5)
        for step in (1, 2):
            token = fed[:, at + step : at + step + 1]
            state, cache = layer.extend(params, own, cache, token, state, after=step - 1)
            np.testing.assert_allclose(ahead[step][:, at], state[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["t5", "gpt"])
def test_look_ahead_is_that_of_decoding(tiny_model, architecture):
    """Behind each position the embeddings, alone and all at once."""
    config = tiny_model if architecture == "t5" else TINY_GPT["gpt"]
    target = architectures.decode_model(config, "in_out")
    frozen = target.pack(architectures.init_params(config, jax.random.key(0)))
    model = LookAheadModel(target, LookAheadConfig(2, config.d_model))
    params = LookAheadParams(jax.random.normal(jax.random.key(1), (2, config.d_model)), frozen)
    batch = batch_of(config, [([3, 4, 5], [7, 8, 9, 10]), ([9], [11, 12, 13, 6])], 8)
    fed, encoded, hidden = teacher_forcing.states_along(target, frozen, *map(jnp.asarray, batch))
    ahead = training.look_ahead(target, params, encoded, fed)
    for at in (0, 5):
        cache = target.empty_cache(2, 16)
        states, _ = model.extend(params, encoded, cache, fed, jnp.full((2,), at + 1))
        np.testing.assert_allclose(states[:, 0], hidden[:, at], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(states[:, 1:], ahead[:, at], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (dataclasses.replace(EAGLE, reads_encoding=False), "is False, but the target has an enc"),
        (dataclasses.replace(EAGLE, encoding_width=8), r"encoding_width 8 is not .* of a text, 16"),
        (HeadsConfig("medusa", 2, 8), "width 8 is not that of the target's hidden states, 16"),
    ],
)
def test_heads_for_another_target_are_refused(tmp_path, data_directory, exported, shape, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, data_directory, exported, shape)


def test_a_medusa_head_is_its_formula():
    shape = HEADS["medusa"]
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda a: generator.normal(size=a.shape).astype(np.float32),
        init_params(shape, jax.random.key(0)),
    )
    hidden = generator.normal(size=(2, 16)).astype(np.float32)
    found = HeadsNetwork(shape).apply({"params": params}, hidden)
    x = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-6)
    for head in range(3):
        inside = x @ np.asarray(params["kernel"][head]) + np.asarray(params["bias"][head])
        expected = (x + inside / (1 + np.exp(-inside))) @ params["out"][head]
        np.testing.assert_allclose(found[:, head], expected, rtol=1e-4, atol=1e-4)


def test_heads_are_trained_on_a_gpu(tmp_path, data_directory, exported, monkeypatch):
    """Its own kernels have no gradient: the compiler's operations are traced instead."""
    monkeypatch.setattr(fused, "MOST_ROWS", 1 << 20)  # A batch here has more tokens than 128.
    with platforms.compiling_for(platforms.GPU):
        trained = train(tmp_path / "run", data_directory, exported, EAGLE, steps=4)
    first = init_params(EAGLE, jax.random.key(3))
    assert jax.tree.structure(trained) == jax.tree.structure(first)
