"""Target and draft learn to agree: the loss against numpy, and a short run."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from distilling import noted_loop
from run_tiny import recipe
from slow import slow
from tiny import changed

from specdec.checkpoints import save_huggingface
from specdec.models.transformer.network import Transformer, init_params
from specdec.training import mutual, scored
from specdec.training.checkpointing import load_params, load_vocabulary
from specdec.training.teacher_forcing import decoder_inputs


@pytest.fixture(scope="module", params=["tokens", slow("encoding")])
def draft_directory(request, tmp_path_factory, tiny_model, target_directory):
    directory = tmp_path_factory.mktemp("draft")
    model = changed(tiny_model, num_heads=1, dropout_rate=0.0)
    if request.param == "encoding":
        model = changed(model, num_encoder_layers=0, encoding_width=tiny_model.d_model)
    params = init_params(model, jax.random.key(5))
    save_huggingface(directory, model, params, target_directory / "spiece.model")
    return directory


def learn(directory, data, target, draft, steps=30, **options):
    settings = recipe(str(data))
    loop = dataclasses.replace(
        settings["loop"], total_steps=steps, eval_every=10, checkpoint_every=10
    )
    return mutual.learn_together(
        directory, files=settings["files"], batching=settings["batching"], loop=loop,
        mutual=mutual.MutualOptions(str(target), str(draft), **options),
        target_optimizer=settings["optimizer"], draft_optimizer=settings["optimizer"],
    )  # fmt: skip


def log_softmax(logits):
    return np.asarray(jax.nn.log_softmax(logits), np.float64)


def test_the_loss_is_the_drift_and_the_weighted_total_variation(
    tmp_path, data_directory, target_directory, draft_directory, monkeypatch
):
    seen = noted_loop(monkeypatch, mutual)
    config, before = load_params(target_directory)
    draft_config = load_params(draft_directory)[0]
    monkeypatch.setattr(scored, "TOP", config.vocab_size)
    learn(tmp_path / "run", data_directory, target_directory, draft_directory, agreement_weight=3.0)
    batch = next(seen["training"].from_step(0))
    moved = jax.tree.map(lambda x: 1.1 * x, seen["params"])
    figures = seen["figures"](moved, seen["frozen"], batch, jax.random.key(0))
    metrics = {name: each.total / each.count for name, each in figures.items()}
    loss = seen["loss"](metrics)

    def target(decoder):
        params = {"params": before | {"decoder": decoder}}
        tokens = decoder_inputs(config, batch.targets)
        return log_softmax(Transformer(config).apply(params, batch.inputs, tokens))

    encoding = None
    if draft_config.encoding_width is not None:
        whole = {"params": before}
        encoding = Transformer(config).apply(whole, batch.inputs, method="encode")
    p0, p = target(before["decoder"]), target(moved["target"])
    tokens = decoder_inputs(config, batch.targets)
    q = log_softmax(
        Transformer(draft_config).apply({"params": moved["draft"]}, batch.inputs, tokens, encoding)
    )
    mask = batch.targets != config.pad_id
    drift = np.mean(np.sum(np.exp(p0) * (p0 - p), -1)[mask])
    alpha = np.mean(np.sum(np.minimum(np.exp(p), np.exp(q)), -1)[mask])
    assert drift > 1e-3
    assert metrics["drift"] == pytest.approx(drift, rel=1e-2)
    assert metrics["alpha"] == pytest.approx(alpha, rel=1e-3)
    assert loss == pytest.approx(drift + 3 * (1 - alpha), rel=1e-3)


def test_target_and_draft_learn_to_agree(
    tmp_path, data_directory, target_directory, draft_directory, validations
):
    results, run = validations, tmp_path / "run"
    before = load_params(target_directory)[1]
    arguments = (data_directory, target_directory, draft_directory)
    learned = learn(run, *arguments, agreement_weight=4.0)
    assert results[-1]["alpha"] > results[0]["alpha"] > 0
    assert 0 < results[-1]["drift"] < 1
    assert results[-1]["accuracy"] != results[-1]["accuracy_before"] > 0

    for name, source in (("target", target_directory), ("draft", draft_directory)):
        found_config, found = load_params(run / name)
        assert found_config == load_params(source)[0]
        jax.tree.map(np.testing.assert_array_equal, found, jax.device_get(learned[name]))
        assert load_vocabulary(run / name).path.read_bytes() == (
            (target_directory / "spiece.model").read_bytes()
        )
    for part in ("token_embedder", "encoder"):  # What the inputs become stays.
        jax.tree.map(np.testing.assert_array_equal, found_target(run)[part], before[part])
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), found_target(run)["decoder"], before["decoder"]
    )
    assert all(jax.tree.leaves(moved))
    # It has ended: it stays, and one of other settings is refused.
    again = learn(run, *arguments, agreement_weight=4.0)
    jax.tree.map(np.testing.assert_array_equal, again, learned)
    kept = (run / "run.json").read_bytes()
    with pytest.raises(ValueError, match=r"other settings: total_steps: 30 there, 5 here"):
        learn(run, *arguments, steps=5, agreement_weight=4.0)
    assert (run / "run.json").read_bytes() == kept
    with pytest.raises(FileNotFoundError, match="neither a training run"):
        load_params(run)  # It is two.


def found_target(run):
    return load_params(run / "target")[1]
