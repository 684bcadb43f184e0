"""T5X's config.gin beside a checkpoint: what it adds, and files of another network."""

import jax
import numpy as np
import pytest
from t5x_layouts import write_native
from tiny import TINY, changed, random_params

from specdec.checkpoints import CheckpointError, open_t5x

CONFIG = changed(TINY["v1.1"], relative_attention_max_distance=128)
GIN = """
from __gin__ import dynamic_registration
from t5x.examples.scalable_t5 import network

# Macros:
DROPOUT_RATE = 0.0
ACTIVATIONS = ('silu', 'linear')

network.Transformer.config = @network.T5Config()
network.T5Config.vocab_size = 19
network.T5Config.emb_dim = 16
network.T5Config.dropout_rate = %DROPOUT_RATE
network.T5Config.mlp_activations = %ACTIVATIONS
train/network.T5Config.mlp_activations = ('relu',)
network.T5Config:
  num_heads = 2
  head_dim = @width()
  mlp_dim = %ELSEWHERE
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    params = jax.tree.map(np.asarray, random_params(CONFIG, 0))
    write_native(directory / "checkpoint_3", params)
    return directory / "checkpoint_3"


@pytest.fixture
def gin_file(checkpoint):
    file = checkpoint.parent / "config.gin"
    yield file
    file.unlink(missing_ok=True)


def test_the_activation_is_read_from_above_or_beside(checkpoint, gin_file):
    assert open_t5x(checkpoint)[0] == CONFIG
    gin_file.write_text(GIN)
    swish = changed(CONFIG, activation="silu")
    assert open_t5x(checkpoint)[0] == open_t5x(checkpoint.parent)[0] == swish
    beside = checkpoint / "config.gin"
    beside.write_text("network.T5Config.mlp_activations = ['relu', 'linear']")
    try:
        assert open_t5x(checkpoint)[0] == changed(CONFIG, activation="relu")
    finally:
        beside.unlink()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("network.T5Config.emb_dim = 512", "T5Config.emb_dim is 512, but the checkpoint's arrays"),
        ("network.T5Config.num_heads = '2'", "T5Config.num_heads is '2', but"),
        ("network.T5Config.logits_via_embedding = True", "logits_via_embedding is True, but"),
        ("network.T5Config.mlp_activations = ('gelu',)", r"must be \(activation, 'linear'\)"),
        ("network.T5Config.mlp_activations = ('tanh', 'linear')", "one of relu, gelu, silu"),
        ("network.T5Config.mlp_activations = 3", "mlp_activations is 3;"),
        ("network.T5Config.emb_dim = " + "[" * 3000 + "]" * 3000, "cannot be parsed"),
        ("network.T5Config.emb_dim = __import__('os').getpid()", "cannot be parsed"),
        ("three words here", "cannot be parsed"),
        (b"\xff\xfe\x00", "cannot be parsed"),
    ],
)
def test_a_file_of_another_network_or_none(line, problem, checkpoint, gin_file):
    gin_file.write_bytes(line if isinstance(line, bytes) else line.encode())
    with pytest.raises(CheckpointError, match=problem) as caught:
        open_t5x(checkpoint)
    message = str(caught.value)
    assert str(gin_file) in message
    assert "\n" not in message
    assert len(message) < 600


def test_nothing_in_it_is_run(checkpoint, gin_file):
    gin_file.write_text("import no_such_module\ninclude 'no_such_file.gin'\nf.x = @g()\n")
    assert open_t5x(checkpoint)[0] == CONFIG
