"""Trains the tiny model in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import sys

from absl import logging

from specdec.data.batching import BatchingOptions
from specdec.models.t5.config import T5Config
from specdec.training import train
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

    class Stop(logging.logging.Handler):
        """Sends this process a signal once its log reports the step."""

        def emit(self, record):
            if record.getMessage().startswith(f"step {stop_step}/"):
                os.kill(os.getpid(), getattr(signal, stop_signal))

    logging.set_verbosity(logging.INFO)
    logging.get_absl_logger().addHandler(Stop())
    train.train(directory, model=T5Config(**json.loads(model)), **recipe(data))
