"""A tiny pair on disk, and a gin file that decodes with it."""

import dataclasses
from pathlib import Path

import jax
import pytest

from specdec.checkpoints import save_huggingface
from specdec.models.t5.config import T5Config
from specdec.models.transformer.network import init_params
from specdec.text.vocabulary import train_vocabulary

TARGET = T5Config(
    vocab_size=320, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
    head_dim=8, d_ff=16,
)  # fmt: skip
TEXTS = ("the cat sat on the mat", "a dog", "one two three four", "the dog sat on a cat")
GIN = """
include "configs/runs/decode.gin"
include "configs/methods/speculative.gin"
include "configs/sampling/temp0.gin"
include "configs/tasks/ende_tatoeba.gin"
TARGET = {target!r}
DRAFT = {draft!r}
DATA_DIR = {data!r}
GAMMA = 2
MAX_DECODE_LEN = 12
MAX_INPUT_LEN = 16
TIMING_EXAMPLES = 0
TIMING_REPETITIONS = 2
"""


@dataclasses.dataclass(frozen=True)
class TinyPair:
    """Files of a random pair that shares a vocabulary, and of a run that uses them."""

    root: Path

    @property
    def target(self):
        return self.root / "target"

    @property
    def draft(self):
        return self.root / "draft"

    @property
    def gin(self):
        return self.root / "tiny.gin"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    pair = TinyPair(tmp_path_factory.mktemp("tiny"))
    vocabulary = pair.root / "spiece.model"
    train_vocabulary([*TEXTS, "the quick brown fox jumps over the lazy dog"] * 20, 290, vocabulary)
    for seed, directory in enumerate((pair.target, pair.draft)):
        # Draft and target share most of their weights, so that some guesses are accepted.
        params = init_params(TARGET, jax.random.key(7))
        noise = init_params(TARGET, jax.random.key(8))
        params = jax.tree.map(lambda a, b, seed=seed: a + 0.2 * seed * b, params, noise)
        save_huggingface(directory, TARGET, params, vocabulary)
    data = "".join(f"{text}\tdie {text}\n" for text in TEXTS)
    (pair.root / "test.tsv").write_text(data, encoding="utf-8")
    pair.gin.write_text(
        GIN.format(target=str(pair.target), draft=str(pair.draft), data=str(pair.root))
    )
    return pair


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    """No model is opened, nor is an array left."""

    def refuse(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr("specdec.runs.prepared_run.load_pair", refuse)
    monkeypatch.setattr("specdec.checkpoints.loading.open_checkpoint", refuse)
    monkeypatch.setattr("specdec.data.tasks._seqio_tasks", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    arrays = len(jax.live_arrays())
    yield
    assert len(jax.live_arrays()) <= arrays
