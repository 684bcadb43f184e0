"""Learning, schedules and quality."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from run_tiny import recipe
from tiny import changed

from specdec.models.transformer.network import init_params
from specdec.text.vocabulary import Vocabulary
from specdec.training import train
from specdec.training.checkpointing import load_params
from specdec.training.optimizer import OptimizerOptions
from specdec.training.validation import greedy_translate


def test_loss_falls_and_bleu_is_reported(tmp_path, data_directory, tiny_model, capsys):
    settings = recipe(str(data_directory))
    settings["loop"] = dataclasses.replace(settings["loop"], total_steps=60, eval_every=30)
    train.train(tmp_path, model=tiny_model, make_translate=greedy_translate, **settings)
    lines = [line for line in capsys.readouterr().err.splitlines() if " validation: " in line]
    losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
    assert len(losses) == 2
    assert losses[1] < losses[0] < np.log(278)
    assert all("bleu" in line and "accuracy" in line for line in lines)


def test_a_run_can_start_from_another_ones_parameters(
    tmp_path, data_directory, tiny_model, target_directory
):
    settings = recipe(str(data_directory))
    settings["loop"] = dataclasses.replace(settings["loop"], total_steps=2)
    # No step of this size moves a parameter.
    settings["optimizer"] = OptimizerOptions(peak_learning_rate=1e-30, warmup_steps=1)
    dtype = dataclasses.replace(tiny_model, dtype="bfloat16")
    params = train.train(tmp_path, model=dtype, initial=str(target_directory), **settings)
    _, expected = load_params(target_directory)
    jax.tree.map(np.testing.assert_array_equal, params, expected)

    other = changed(tiny_model, d_ff=32)
    with pytest.raises(ValueError, match="is of another network"):
        train.train(tmp_path / "other", model=other, initial=str(target_directory), **settings)


def test_greedy_translate_stops_at_eos_and_fills_every_row(data_directory, tiny_model):
    params = init_params(tiny_model, jax.random.key(0))
    vocabulary = Vocabulary(data_directory)
    texts = ["ant bee", "cat", "dog eel fox"]
    together = greedy_translate(tiny_model, vocabulary, length=6, rows=2)(params, texts)
    alone = greedy_translate(tiny_model, vocabulary, length=6, rows=1)(params, texts)
    assert together == alone
