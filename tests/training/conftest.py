from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from distilling import noted_validations
from run_tiny import recipe

from specdec.models.t5.config import T5Config
from specdec.text.vocabulary import train_vocabulary
from specdec.training import train

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(2, 6))) for _ in range(count)]


@pytest.fixture(scope="session")
def data_directory(once):
    """A copying task with its vocabulary."""

    def write(directory):
        for seed, (name, count) in enumerate({"train": 200, "validation": 20}.items()):
            lines = [f"{text}\t{text}\n" for text in sentences(count, seed)]
            (directory / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
        train_vocabulary(sentences(300, 7), 275, directory / "spiece.model")

    return once("copying_task", write)


@pytest.fixture(scope="session")
def tiny_model() -> T5Config:
    return T5Config(
        vocab_size=278, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
        head_dim=8, d_ff=16, dropout_rate=0.1, tied_logits=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def target_directory(once, data_directory, tiny_model):
    settings = recipe(str(data_directory))
    settings["loop"] = dataclasses.replace(settings["loop"], total_steps=60, checkpoint_every=60)
    return once(
        "trained_target", lambda directory: train.train(directory, model=tiny_model, **settings)
    )


@pytest.fixture
def validations(monkeypatch):
    """The list of what each validation finds."""
    return noted_validations(monkeypatch)
