"""Trains the tiny model in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import sys

from specdec.checkpoints.architectures import config_of
from specdec.training import loop, train
from specdec.training.batching import BatchingOptions
from specdec.training.loop import LoopOptions
from specdec.training.optimizer import OptimizerOptions


def recipe(data: str) -> dict:
    return {
        "files": train.TextFiles(data),
        "vocabulary_path": data,
        "batching": BatchingOptions(256, (32,), (0.5, 0.5)),
        "optimizer": OptimizerOptions(peak_learning_rate=1e-2, warmup_steps=3),
        "loop": LoopOptions(total_steps=12, log_every=1, eval_every=12, checkpoint_every=5, seed=3),
    }


if __name__ == "__main__":
    data, directory, model, stop_step, stop_signal = sys.argv[1:]

    def stop(message):
        """Sends this process a signal once it reports the step."""
        if message.startswith(f"step {stop_step}/"):
            os.kill(os.getpid(), getattr(signal, stop_signal))

    loop.say = stop
    train.train(directory, model=config_of(json.loads(model)), **recipe(data))
