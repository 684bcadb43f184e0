"""Heads on a frozen target: trained, written, read, decoded with."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_tiny import recipe
from safetensors.numpy import load_file, save_file
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
from specdec.models.heads.network import HeadsConfig, HeadsNetwork
from specdec.models.look_ahead.model import LookAheadConfig, LookAheadModel, LookAheadParams
from specdec.models.products import fused
from specdec.training import heads as training
from specdec.training import teacher_forcing
from specdec.training.batching import TokenBatch
from specdec.training.checkpointing import load_params
from specdec.training.train import apply

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


def train(directory, data, target, shape, **options):
    settings = recipe(str(data))
    del settings["vocabulary_path"]
    settings["loop"] = dataclasses.replace(
        settings["loop"], total_steps=40, eval_every=40, checkpoint_every=20
    )
    chosen = training.HeadsOptions(str(target), **options)
    return training.train_heads(directory, heads=shape, options=chosen, **settings)


@pytest.mark.parametrize(
    "kind",
    [
        "eagle", *(pytest.param(kind, marks=pytest.mark.slow)
                   for kind in ("medusa", "blockwise", "look-ahead")),
    ],
)  # fmt: skip
def test_heads_learn_and_draft(tmp_path, data_directory, exported, monkeypatch, kind):
    found = []
    per_token = training.per_token

    def recorded(*args):
        means = per_token(*args)
        found.append(means(init_params(SHAPES[kind], jax.random.key(3))))
        return lambda params: found.append(means(params)) or found[-1]

    monkeypatch.setattr(training, "per_token", recorded)
    train(tmp_path / "run", data_directory, exported, SHAPES[kind])
    first, last = found
    for number in (1, 2, 3):
        assert last[f"loss_{number}"] < first[f"loss_{number}"]
    assert last["alpha_1"] > first["alpha_1"] > 0
    pair = specdec.load_pair(target=str(exported), draft=specdec.Heads(str(tmp_path / "run/heads")))
    texts = ["ant bee cat", "dog", "eel fox"]
    greedy = {"sampling": specdec.SamplingConfig(0.0), "max_decode_len": 16, "max_input_len": 16}
    plain = pair.generate(texts, method="autoregressive", **greedy)
    for options in ({"gamma": 3}, {"tree": (2, 2, 1)}):
        out = pair.generate(texts, **options, **greedy)
        assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]
        assert out.stats.accepted > 0
    if kind in HEADS:
        sampled = {**greedy, "tree": (2, 2, 1), "sampling": specdec.SamplingConfig(1.0)}
        exact = pair.generate(texts * 8, **sampled)
        typical = pair.generate(
            texts * 8, verifier=specdec.TypicalVerifier(),
            draft_sampling=specdec.SamplingConfig(0.0), **sampled,
        )  # fmt: skip
        assert typical.stats.accepted / typical.stats.target_calls > 1.1 * (
            exact.stats.accepted / exact.stats.target_calls
        )
        with pytest.raises(ValueError, match=r"has 3 heads, .* 4 were asked for"):
            pair.generate(texts, gamma=4, **greedy)
    with pytest.raises(ValueError, match="A best-first tree needs a draft model; with heads"):
        pair.generate(texts, tree=specdec.Tree(nodes=4, depth=2), **greedy)


def test_a_run_that_had_ended_is_left_as_it_is(tmp_path, data_directory, exported):
    written = []
    for _ in range(2):
        train(tmp_path, data_directory, exported, HEADS["medusa"])
        written.append((tmp_path / "heads/model.safetensors").stat().st_mtime_ns)
    assert written[0] == written[1]


def test_alpha_of_a_later_guess_is_of_the_tokens_it_can_be_for(
    tmp_path, data_directory, exported, monkeypatch
):
    """Guesses that are the target's own: alpha is 1 for each of them."""
    monkeypatch.setattr(
        training, "comparison", lambda log_p, log_q: {"alpha": jnp.ones(log_p.shape[:2])}
    )
    found = []
    run_loop = training.run_loop

    def noted(loss, params, update, batches, validate, *args, **kwargs):
        found.append(validate(params))
        return run_loop(loss, params, update, batches, validate, *args, **kwargs)

    monkeypatch.setattr(training, "run_loop", noted)
    train(tmp_path, data_directory, exported, HEADS["medusa"])
    assert [found[0][f"alpha_{number}"] for number in (1, 2, 3)] == pytest.approx([1, 1, 1])


@pytest.fixture
def untrained(monkeypatch):
    """Nothing is trained; for each call, what it would start from and its validation."""
    found = []

    def noted(loss, params, update, batches, validate, *args, **kwargs):
        found.append((params, validate))
        return params

    monkeypatch.setattr(training, "run_loop", noted)
    return found


def test_training_goes_on_from_heads(tmp_path, data_directory, exported, untrained):
    shape, initial, target = HEADS["medusa"], str(tmp_path / "heads"), load_params(exported)[1]
    save_heads(initial, shape, init_params(shape, jax.random.key(5)), target)
    train(tmp_path / "run", data_directory, exported, shape, initial=initial)
    jax.tree.map(np.testing.assert_array_equal, untrained[0][0], load_heads(initial, target)[1])
    with pytest.raises(ValueError, match=r"holds HeadsConfig\(kind='medusa'.* are to be trained"):
        train(tmp_path / "other", data_directory, exported, EAGLE, initial=initial)


@pytest.mark.parametrize("kind", [kind if kind == "eagle" else slow(kind) for kind in SHAPES])
def test_guesses_among_some_tokens(
    tmp_path, data_directory, exported, untrained, monkeypatch, kind
):
    """alpha is the sum of min(p, q) with a q that is 0 for all others; the file is beside heads."""
    tokens = list(range(0, 40, 2))
    save_draft_vocabulary(tmp_path, tokens)
    train(tmp_path / "run", data_directory, exported, SHAPES[kind], draft_vocabulary=str(tmp_path))
    [(params, validate)] = untrained
    found = validate(params)
    vocab_size = load_params(exported)[0].vocab_size
    assert load_draft_vocabulary(tmp_path / "run/heads", vocab_size) == tokens

    comparison = training.comparison

    def among_tokens(log_p, log_q):
        kept = jnp.isin(jnp.arange(log_q.shape[-1]), jnp.asarray(tokens))
        return comparison(log_p, jax.nn.log_softmax(jnp.where(kept, log_q, -jnp.inf)))

    monkeypatch.setattr(training, "comparison", among_tokens)
    train(tmp_path / "all", data_directory, exported, SHAPES[kind])
    expected = untrained[1][1](params)
    for guess in ("alpha_1", "alpha_2"):
        assert found[guess] == pytest.approx(expected[guess], rel=1e-4)


def test_no_draft_vocabulary_is_one_clear_error(tmp_path, data_directory, exported):
    with pytest.raises(ValueError, match=r"holds no draft vocabulary: make one by configs/"):
        train(tmp_path / "run", data_directory, exported, EAGLE, draft_vocabulary=str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_heads_are_no_draft_model(tmp_path, exported):
    shape = HEADS["medusa"]
    save_heads(tmp_path / "heads", shape, init_params(shape, jax.random.key(0)), {})
    with pytest.raises(CheckpointError, match=r"give them as draft=specdec\.Heads\("):
        specdec.load_pair(target=str(exported), draft=str(tmp_path / "heads"))


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


@pytest.mark.parametrize(
    "variant", ["v1.1", "gpt", "t5gemma", *map(slow, ("bart", "marian", "llama", "t5gemma2"))]
)
def test_states_along_a_text_have_the_networks_logits(variant):
    config = dataclasses.replace(EVERY[variant], pad_id=0)
    params = random_params(config, 0)
    pairs = [([3, 4, 5, 6], [7, 8]), ([9, 10], [11, 12, 13])]
    batch = batch_of(config, pairs, 12)
    model = architectures.decode_model(config, "in_out")
    packed = model.pack(params)
    _, _, hidden = teacher_forcing.states_along(model, packed, *map(jnp.asarray, batch))
    expected = apply(architectures.network(config), params, batch)
    counted = batch.targets != config.pad_id
    np.testing.assert_allclose(
        model.logits(packed, hidden)[counted], expected[counted], rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize(
    "kind",
    ["eagle", *(pytest.param(k, marks=pytest.mark.slow) for k in ("medusa", "look-ahead"))],
)
def test_heads_of_a_gpt_draft_for_it(tmp_path, kind):
    config = dataclasses.replace(TINY_GPT["gpt"])
    params = random_params(config, 4)
    save_huggingface(tmp_path / "target", config, params)
    shape = HeadsConfig("medusa", 2, config.d_model)
    if kind == "eagle":
        shape = dataclasses.replace(EAGLE, width=config.d_model, reads_encoding=False)
    elif kind == "look-ahead":
        shape = LookAheadConfig(1, config.d_model)
    save_heads(tmp_path / "heads", shape, init_params(shape, jax.random.key(0)), params)
    pair = specdec.load_pair(
        target=str(tmp_path / "target"), draft=specdec.Heads(str(tmp_path / "heads"))
    )
    greedy = {"sampling": specdec.SamplingConfig(0.0), "max_decode_len": 16, "max_input_len": 16}
    texts = [[2, 3, 4], [5, 6]]
    plain = pair.generate(texts, method="autoregressive", **greedy)
    out = pair.generate(texts, gamma=2, **greedy)
    assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "is not of heads"),
        ({"count": 2}, "does not hold the heads"),
        ({"kind": "other"}, "not a config of heads: kind must be 'blockwise' or 'medusa'"),
        ({"kind": []}, "not a config of heads: kind must be 'blockwise' or 'medusa'"),
        ({"width": 10**30}, "does not hold the heads"),
        ({"more": 1}, "not a config of heads: .*unexpected keyword"),
        ({"target": "a\nb"}, "was trained on another target"),
        (None, "holds no heads"),
    ],
)
def test_damaged_heads_are_one_clear_error(tmp_path, change, message):
    shape, target = SHAPES["medusa"], {"a": np.ones((2, 3))}
    directory = tmp_path / "heads"
    save_heads(directory, shape, init_params(shape, jax.random.key(0)), target)
    path = directory / "config.json"
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_heads(directory, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a * np.float16(np.nan), "model.safetensors: kernel holds NaN or infinite"),
        (lambda a: a.astype(np.float32) * 0 + np.inf, "kernel holds NaN or infinite"),
        (lambda a: a.astype(np.int32), "kernel is stored as I32, not as one of"),
        (lambda a: a[None], "does not hold the heads"),
    ],
)
def test_damaged_weights_of_heads_are_one_clear_error(tmp_path, change, message):
    shape, target = SHAPES["medusa"], {"a": np.ones((2, 3))}
    save_heads(tmp_path / "heads", shape, init_params(shape, jax.random.key(0)), target)
    path = tmp_path / "heads" / "model.safetensors"
    arrays = load_file(path)
    save_file(arrays | {"kernel": np.ascontiguousarray(change(arrays["kernel"]))}, path)
    with pytest.raises(CheckpointError, match=message):
        load_heads(tmp_path / "heads", target)


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
    for at in range(5):
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
    for at in range(8):
        cache = target.empty_cache(2, 16)
        states, _ = model.extend(params, encoded, cache, fed, jnp.full((2,), at + 1))
        np.testing.assert_allclose(states[:, 0], hidden[:, at], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(states[:, 1:], ahead[:, at], rtol=1e-4, atol=1e-5)


def test_a_layer_for_a_target_of_another_kind_is_refused(tmp_path, data_directory, exported):
    shape = dataclasses.replace(EAGLE, reads_encoding=False)
    with pytest.raises(ValueError, match="reads_encoding is False, but the target has an encoder"):
        train(tmp_path, data_directory, exported, shape)


def test_another_width_of_the_encoding_is_refused(tmp_path, data_directory, exported):
    shape = dataclasses.replace(EAGLE, encoding_width=8)
    with pytest.raises(ValueError, match=r"encoding_width 8 is not .* of a text, 16"):
        train(tmp_path, data_directory, exported, shape)


def test_another_width_than_the_targets_is_refused(tmp_path, data_directory, exported):
    with pytest.raises(ValueError, match="width 8 is not that of the target's hidden states, 16"):
        train(tmp_path, data_directory, exported, HeadsConfig("medusa", 2, 8))


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


@pytest.mark.parametrize("kind", ["eagle", pytest.param("medusa", marks=pytest.mark.slow)])
def test_heads_are_trained_on_a_gpu(tmp_path, data_directory, exported, monkeypatch, kind):
    """Its own kernels have no gradient: the compiler's operations are traced instead."""
    monkeypatch.setattr(fused, "MOST_ROWS", 1 << 20)  # A batch here has more tokens than 128.
    with platforms.compiling_for(platforms.GPU):
        trained = train(tmp_path / "run", data_directory, exported, SHAPES[kind])
    first = init_params(SHAPES[kind], jax.random.key(3))
    assert jax.tree.structure(trained) == jax.tree.structure(first)
