"""Other families by the recipes of T5s: they learn, drafts of them too, and heads on them."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_tiny import recipe
from slow import slow
from tiny import EVERY, random_params

import specdec
from specdec.checkpoints import architectures, save_huggingface
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.network import HeadsConfig
from specdec.training import distill, heads, teacher_forcing, train
from specdec.training.acceptance import capacity
from specdec.training.batching import BatchingOptions
from specdec.training.checkpointing import load_params
from specdec.training.on_policy import OnPolicy

FAMILIES = ("bart", "llama", "t5gemma", "t5gemma2")


def each_family(quick):
    return pytest.mark.parametrize(
        "family", [name if name in quick else slow(name) for name in FAMILIES]
    )


@each_family(FAMILIES)
def test_every_parameter_learns(family):
    """Gradients are finite, and none is zero."""
    config = EVERY[family]
    network = architectures.network(config)
    inputs = jnp.asarray([[3, 4, 5, 6, 7, 1], [9, 8, 1, 0, 0, 0]])
    targets = jnp.asarray([[7, 8, 9, 10, 5, 1], [11, 12, 1, 0, 0, 0]])

    @jax.jit
    def loss(params):
        logits = teacher_forcing.teacher_forced(network, params, inputs, targets)
        log_p = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(log_p, targets[..., None], -1))

    gradients = jax.grad(loss)(random_params(config, 0))
    for path, found in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(found).all(), name
        # A bias that all keys have changes no softmax.
        assert "['key']['bias']" in name or np.abs(found).max() > 1e-6, name


@pytest.mark.parametrize(("variant", "most"), [("gpt", 10), ("bart", 48), ("t5gemma", 60)])
def test_outputs_end_with_the_models_positions(variant, most):
    """Behind the longest prompt, where there is no encoder."""
    model = architectures.decode_model(EVERY[variant])
    assert capacity(model, [[5], [5] * 30], 60) == most


@pytest.mark.parametrize("family", ["t5gemma", slow("llama")])
def test_any_padding_is_left_out(tmp_path, data_directory, monkeypatch, family):
    """That of Marian is its last token: what is learnt does not depend on it."""
    found = []
    for pad_id in (0, 278):
        config = dataclasses.replace(EVERY[family], vocab_size=279, pad_id=pad_id)
        said: list[str] = []
        monkeypatch.setattr("specdec.training.loop.say", said.append)
        options = settings(data_directory, family, steps=4)
        train.train(tmp_path / str(pad_id), model=config, **options)
        found.append([validated("\n".join(said), name) for name in ("loss", "accuracy")])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_drafts_have_their_targets_padding():
    other = dataclasses.replace(EVERY["t5gemma2"], pad_id=3)
    with pytest.raises(ValueError, match="The draft's pad_id is 3, the target's 0"):
        distill.check_draft(other, EVERY["t5gemma2"])


def test_a_llama_does_not_learn_from_a_t5gemma():
    with pytest.raises(ValueError, match="draft is decoder-only, the target an encoder-decoder"):
        distill.check_draft(EVERY["llama"], EVERY["t5gemma2"])


def settings(data, family, steps=40):
    """Of a run that validates half-way and at its end."""
    found = recipe(str(data))
    if EVERY[family].reads_prefix:
        found["batching"] = BatchingOptions(512, (64,))
    found["loop"] = dataclasses.replace(
        found["loop"], total_steps=steps, eval_every=steps // 2, checkpoint_every=steps
    )
    return found


@pytest.fixture(scope="module")
def trained(once, data_directory):
    """family -> the directory of a run, with what it said."""

    def write(family, said):
        config = dataclasses.replace(EVERY[family], vocab_size=278, dropout_rate=0.1)

        def fill(directory):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("specdec.training.loop.say", said.append)
                train.train(directory / "run", model=config, **settings(data_directory, family))
            (directory / "said").write_text("\n".join(said))

        return fill

    return lambda family: once(f"trained-{family}", write(family, []))


def validated(text, name):
    """A number that a run said of each validation."""
    lines = [line for line in text.splitlines() if " validation: " in line]
    return [float(re.search(rf"\b{name} ([\d.]+)", line)[1]) for line in lines]


@each_family(["t5gemma"])
def test_it_learns_and_teaches_a_draft(trained, tmp_path, data_directory, capsys, family):
    directory = trained(family)
    losses = validated((directory / "said").read_text(), "loss")
    assert losses[1] < losses[0] < np.log(278)
    config, _ = load_params(directory / "run")
    for name, more in (("given", {}), ("own", {"on_policy": OnPolicy(0.5, refresh_every=10)})):
        options = settings(data_directory, family)
        del options["vocabulary_path"]
        options["distillation"] = distill.DistillationOptions(str(directory / "run"), **more)
        capsys.readouterr()
        distill.distill(tmp_path / name, model=config, **options)
        alphas = validated(capsys.readouterr().err, "alpha")
        assert alphas[1] > alphas[0] > 0


@each_family([])
@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_heads_learn_and_draft(trained, tmp_path, data_directory, capsys, family, kind):
    config, params = load_params(trained(family) / "run")
    target = tmp_path / "target"
    save_huggingface(target, config, params, data_directory / "spiece.model")
    width, encoding = config.d_model, config.encoder_width
    of = HeadsConfig("medusa", 2, width)
    if kind == "eagle":
        of = EagleConfig(width, 12, 2, 6, 20, encoding is not None, encoding)
    options = settings(data_directory, family)
    del options["vocabulary_path"]
    chosen = heads.HeadsOptions(str(target))
    heads.train_heads(tmp_path / "run", heads=of, options=chosen, **options)
    losses = validated(capsys.readouterr().err, "loss_1")
    assert losses[1] < losses[0]
    pair = specdec.load_pair(target=target, draft=specdec.Heads(str(tmp_path / "run/heads")))
    texts = ["ant bee cat", "dog", "eel fox"]
    limits = {"max_decode_len": 16, "max_input_len": 16}
    plain = pair.generate(texts, method="autoregressive", **limits)
    for way in ({"gamma": 2}, {"tree": (2, 1)}):
        out = pair.generate(texts, **way, **limits)
        assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]
