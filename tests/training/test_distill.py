"""Short distillations: what they learn from, and what they refuse."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from distilling import distill_tiny, from_encoding, noted_loop
from run_tiny import recipe
from slow import slow
from tiny import changed

from specdec.checkpoints import save_huggingface
from specdec.data.text import write_pairs
from specdec.models.transformer.network import init_params
from specdec.training import distill
from specdec.training import scored as scored_batches
from specdec.training.batching import TokenBatch
from specdec.training.checkpointing import load_params
from specdec.training.on_policy import OnPolicy
from specdec.training.train import first_params


@pytest.mark.parametrize("starts", ["tokens", slow("encoding")])
def test_a_distilled_draft_agrees_more_with_its_target(
    tmp_path, data_directory, tiny_model, target_directory, validations, starts
):
    draft = changed(tiny_model, num_heads=1)
    if starts == "encoding":
        draft = from_encoding(draft)
    distill_tiny(tmp_path, data_directory, draft, target_directory, cross_entropy_weight=0.25)
    first, last = validations
    assert last["loss"] < first["loss"]
    assert last["alpha"] > first["alpha"] > 0
    assert 0 < last["agreement"] <= 1
    copied, original = (path / "spiece.model" for path in (tmp_path, data_directory))
    assert copied.read_bytes() == original.read_bytes()
    assert load_params(tmp_path)[0] == draft


def test_a_draft_equal_to_its_target_has_alpha_1(
    tmp_path, data_directory, tiny_model, target_directory, monkeypatch
):
    """A Hugging Face checkpoint is as good a target as a training run."""
    settings = recipe(str(data_directory))
    config, params = load_params(target_directory)
    source = tmp_path / "exported"
    save_huggingface(source, config, params, target_directory / "spiece.model")
    seen = noted_loop(monkeypatch, distill)
    monkeypatch.setattr(distill, "first_params", lambda *_: params)
    distill.distill(
        tmp_path / "run", model=tiny_model,
        distillation=distill.DistillationOptions(str(source)),
        **{name: settings[name] for name in ("files", "batching", "optimizer", "loop")},
    )  # fmt: skip
    found = seen["means"](params) | seen["measure"](params)
    blocks = [found.pop(f"tokens_a_block_t{temperature}") for temperature in (0, 1)]
    assert found == pytest.approx(
        {"loss": 0, "alpha": 1, "agreement": 1, "alpha_t0": 1, "alpha_t1": 1}, abs=1e-5
    )
    assert all(1 < each <= 4 for each in blocks)
    assert (tmp_path / "run" / "spiece.model").is_file()


def test_generated_outputs_are_trained_on_beside_the_data(
    tmp_path, data_directory, tiny_model, target_directory, monkeypatch
):
    write_pairs(tmp_path / "generated.tsv", [("ant bee", "bee ant"), ("cat", "cat cat")])
    noted_loop(monkeypatch, distill)
    distill_tiny(
        tmp_path / "run", data_directory, tiny_model, target_directory,
        generated_file=str(tmp_path / "generated.tsv"),
    )  # fmt: skip
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["data"].startswith("202 examples")


@pytest.mark.parametrize(
    ("starts", "loss"), [("tokens", "forward_kl"), ("encoding", "total_variation")]
)
def test_scored_batches_give_the_loss_of_a_forward_pass(
    tmp_path, data_directory, tiny_model, target_directory, monkeypatch, loss, starts
):
    """With every token kept; what is kept in float16 is off by 2**-11 of itself."""
    monkeypatch.setattr(scored_batches, "TOP", tiny_model.vocab_size)
    seen = noted_loop(monkeypatch, distill)
    model = tiny_model if starts == "tokens" else from_encoding(tiny_model)
    distill_tiny(
        tmp_path / "run", data_directory, model, target_directory, loss=loss,
        scored_epochs=1,
    )  # fmt: skip
    draft = init_params(model, jax.random.key(5))
    scored = next(seen["training"].from_step(0))
    plain = TokenBatch(scored.inputs, scored.targets)
    once, late = (
        seen["figures"](draft, seen["frozen"], batch, jax.random.key(0))
        for batch in (scored, plain)
    )
    for name in ("loss", "alpha"):
        assert late[name].total > 0.1 * late[name].count
        assert once[name].total == pytest.approx(float(late[name].total), rel=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scored_epochs": -1}, "scored_epochs must be at least 0"),
        ({"scored_epochs": 1, "loss": "jensen_shannon"}, "every token"),
        ({"loss": "kl"}, "loss must be 'forward_kl' or 'reverse_kl' or 'jensen_shannon' or"),
        ({"jensen_shannon_weight": 1.0}, "jensen_shannon_weight must be between 0 and 1, got 1.0"),
        ({"on_policy": OnPolicy(), "cross_entropy_weight": 0.1}, "repeat its own outputs"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        distill.DistillationOptions("target", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 320}, "320 is not the target's 278"),
        ({"encoding_width": 17}, "is not the width of the target's encoding"),
    ],
)
def test_drafts_of_other_sizes_are_refused(
    tmp_path, data_directory, tiny_model, target_directory, change, message
):
    draft = changed(tiny_model, **change)
    with pytest.raises(ValueError, match=message):
        distill_tiny(tmp_path, data_directory, draft, target_directory)


def test_a_draft_can_begin_as_one_that_starts_from_tokens_alone(tiny_model, target_directory):
    model = changed(tiny_model, encoding_width=tiny_model.d_model)
    params = first_params(model, 0, str(target_directory))
    _, expected = load_params(target_directory)
    encoder = dict(params["encoder"])
    projection = encoder.pop("input_projection")["kernel"]
    jax.tree.map(np.testing.assert_array_equal, {**params, "encoder": encoder}, expected)
    assert 0 < np.std(projection) < 0.2 * tiny_model.d_model**-0.5
    with pytest.raises(ValueError, match="is of another network"):
        first_params(changed(model, d_ff=3), 0, str(target_directory))
