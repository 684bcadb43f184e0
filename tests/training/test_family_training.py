"""Other families by the recipes of T5s: they learn, drafts of them too, and heads on them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_tiny import recipe
from tiny import EVERY, random_params

from specdec.checkpoints import architectures
from specdec.training import distill, teacher_forcing, train
from specdec.training.batching import TokenBatch
from specdec.training.validation import capacity


@pytest.mark.parametrize("family", ["bart", "llama", "t5gemma", "t5gemma2"])
def test_every_parameter_learns(family):
    """Gradients are finite, and none is zero."""
    config = EVERY[family]
    network = architectures.network(config)
    inputs = np.array([[3, 4, 5, 6, 7, 1], [9, 8, 1, 0, 0, 0]])
    targets = np.array([[7, 8, 9, 10, 5, 1], [11, 12, 1, 0, 0, 0]])

    @jax.jit
    def loss(params):
        logits = teacher_forcing.teacher_forced(network, params, TokenBatch(inputs, targets))
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


def test_drafts_are_of_their_targets_kind():
    other = dataclasses.replace(EVERY["t5gemma2"], pad_id=3)
    with pytest.raises(ValueError, match="The draft's pad_id is 3, the target's 0"):
        distill.check_draft(other, EVERY["t5gemma2"])
    with pytest.raises(ValueError, match="draft is decoder-only, the target an encoder-decoder"):
        distill.check_draft(EVERY["llama"], EVERY["t5gemma2"])


def test_any_padding_is_left_out(data_directory, tmp_path, validations):
    """That of Marian is its last token: what is learnt does not depend on it."""
    settings = recipe(str(data_directory))
    settings["loop"] = dataclasses.replace(settings["loop"], total_steps=4, eval_every=2)
    for pad_id in (0, 278):
        config = dataclasses.replace(EVERY["t5gemma"], vocab_size=279, pad_id=pad_id)
        train.train(tmp_path / str(pad_id), model=config, **settings)
    assert validations[2:] == [pytest.approx(each, rel=1e-4) for each in validations[:2]]
