"""``specdec-train``: what it refuses, it refuses before it writes anything."""

from pathlib import Path

import pytest

from specdec.runs.command_line import Given
from specdec.runs.train import main

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "config.T5Config.vocab_size = 278", "config.T5Config.d_model = 16",
    "config.T5Config.num_encoder_layers = 1", "config.T5Config.num_decoder_layers = 1",
    "config.T5Config.num_heads = 2", "config.T5Config.head_dim = 8", "config.T5Config.d_ff = 16",
    "config.T5Config.dtype = 'float32'", "train.train.make_translate = None",
    "batching.BatchingOptions.lengths = (32,)", "batching.BatchingOptions.tokens_per_batch = 256",
    "optimizer.OptimizerOptions.warmup_steps = 1",
    "loop.LoopOptions.checkpoint_every = 2",
)  # fmt: skip


@pytest.fixture
def bindings(data_directory):
    return (
        f"DATA_DIR = {str(data_directory)!r}", f"VOCABULARY = {str(data_directory)!r}", *SMALL,
        "loop.LoopOptions.total_steps = 2",
    )  # fmt: skip


def given(bindings, directory):
    config = "configs/training/quickstart_target.gin"
    return Given([config], bindings, str(directory), "test")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("loop.LoopOptions.total_steps = 'x'", "total_steps must be a whole number, got 'x'"),
        ("optimizer.OptimizerOptions.warmup_steps = 2", "warmup_steps=2 must be in"),
        ("batching.BatchingOptions.lengths = 32", "lengths must be a list of whole numbers"),
        ("batching.BatchingOptions.join_weights = (-1,)", "join_weights: a weight must be"),
        ("config.T5Config.vocab_size = 12", "the model only 12 rows"),
        ("DATA_DIR = 'nowhere'", "No data file at nowhere/train.tsv"),
        ("train.train.initial = 'nowhere'", "nowhere is not a local directory"),
    ],
)
def test_what_is_refused_leaves_nothing(bindings, tmp_path, binding, message):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        main(given([*bindings, binding], tmp_path / "run"), ROOT)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_directory_of_other_settings_stays_as_it_was(bindings, tmp_path):
    assert main(given(bindings, tmp_path / "run"), ROOT) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert tmp_path / "run" / "config.gin" in before
    with pytest.raises(ValueError, match=r"other settings: seed: 0 there, 1 here.*remove this"):
        main(given([*bindings, "loop.LoopOptions.seed = 1"], tmp_path / "run"), ROOT)
    for path, content in before.items():
        assert path.read_bytes() == content
