from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from run_tiny import recipe

from specdec.data.vocabulary import train_vocabulary
from specdec.models.t5.config import T5Config
from specdec.training import train

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(2, 6))) for _ in range(count)]


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
    """Runs of one network compile once, also in processes of their own."""
    directory = str(tmp_path_factory.mktemp("jax_cache"))
    settings = {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def data_directory(tmp_path_factory):
    """A copying task with its vocabulary."""
    directory = tmp_path_factory.mktemp("data")
    for seed, (name, count) in enumerate({"train": 200, "validation": 20}.items()):
        lines = [f"{text}\t{text}\n" for text in sentences(count, seed)]
        (directory / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    train_vocabulary(sentences(300, 7), 275, directory / "spiece.model")
    return directory


@pytest.fixture(scope="session")
def tiny_model() -> T5Config:
    return T5Config(
        vocab_size=278, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
        head_dim=8, d_ff=16, dropout_rate=0.1, tied_logits=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def target_directory(tmp_path_factory, data_directory, tiny_model):
    directory = tmp_path_factory.mktemp("target")
    settings = recipe(str(data_directory))
    settings["loop"] = dataclasses.replace(settings["loop"], total_steps=60, checkpoint_every=60)
    train.train(directory, model=tiny_model, **settings)
    return directory
