"""Runs that are killed, stopped and resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from run_tiny import recipe

from specdec.training import train
from specdec.training.checkpointing import (
    checkpoints,
    load_params,
)

HERE = Path(__file__).parent


def start(data, directory, model, step="none", stop_signal="SIGKILL"):
    arguments = [data, directory, json.dumps(dataclasses.asdict(model)), step, stop_signal]
    return subprocess.run(
        [sys.executable, HERE / "run_tiny.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, data_directory, tiny_model):
    directory = tmp_path_factory.mktemp("uninterrupted")
    train.train(directory, model=tiny_model, **recipe(str(data_directory)))
    return load_params(directory)


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize(
    ("stop_signal", "code", "resumed_from"),
    [pytest.param("SIGKILL", -9, 5, marks=pytest.mark.slow), ("SIGTERM", 143, 8)],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    stop_signal, code, resumed_from, tmp_path, data_directory, tiny_model, uninterrupted
):
    stopped = start(data_directory, tmp_path, tiny_model, 7, stop_signal)
    assert stopped.returncode == code, stopped.stderr
    with checkpoints(tmp_path) as manager:
        assert manager.latest_step() == resumed_from

    train.train(tmp_path, model=tiny_model, **recipe(str(data_directory)))
    config, params = load_params(tmp_path)
    assert config == tiny_model
    assert_same(params, uninterrupted[1])


def test_a_divergent_run_stops_and_keeps_its_last_good_checkpoint(
    tmp_path, data_directory, tiny_model, monkeypatch
):
    settings = recipe(str(data_directory))

    def poisoned(self, step):
        for number, batch in enumerate(from_step(self, step), start=step):
            if number == 6:
                batch = batch._replace(targets=np.full_like(batch.targets, -(10**6)))
            yield batch

    def forced(network, params, batch, dropout_key=None):
        logits = plain(network, params, batch, dropout_key)
        return logits / (batch.targets >= 0)[..., None]

    from_step, plain = train.Batches.from_step, train.teacher_forcing.teacher_forced
    monkeypatch.setattr(train.Batches, "from_step", poisoned)
    monkeypatch.setattr(train.teacher_forcing, "teacher_forced", forced)
    with pytest.raises(FloatingPointError, match="Step 7: loss"):
        train.train(tmp_path, model=tiny_model, **settings)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_params(tmp_path)[1]))
