"""config.json, generation_config.json and the index: each field that is wrong is one clear line."""

import itertools
import json
import re

import jax
import numpy as np
import pytest
from tiny import TINY_GPT, random_params

from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.models.t5.config import T5Config
from specdec.models.transformer.network import init_params

CONFIG = T5Config(40, 8, 1, 1, 2, 4, 16)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(np.asarray, init_params(CONFIG, jax.random.key(0)))


@pytest.fixture
def checkpoint(tmp_path, params):
    save_huggingface(tmp_path / "t5", CONFIG, params)
    return tmp_path / "t5"


@pytest.fixture
def gpt(tmp_path):
    config = TINY_GPT["gpt"]
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_params(config, 0)))
    return tmp_path / "gpt"


def refusal(directory):
    with pytest.raises(CheckpointError) as caught:
        load_huggingface(directory)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def set_field(path, name, value):
    raw = json.loads(path.read_text()) | {name: value}
    path.write_text(json.dumps(raw))


DEEP = json.loads("[" * 400 + "]" * 400)
NO_SIZES = ["16", True, -1, 0, 2.0, 10**30, [8], {}, DEEP, "", 1e300]
SIZE = r"config.json: {} must be (a whole number|in 1\.\.)"
RATE = r"config.json: {} must be .*, got"
TRUTH = "config.json: {} must be True or False, got"
NO_TRUTHS = ["false", 0, 1, None, []]
NO_RATES = ["x", True, -0.1, 1, 10**400, [0.1], None, DEEP]
# Fields, values that are none, and what is said.
T5_FIELDS = [
    (["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads",
      "relative_attention_num_buckets", "encoding_width"], NO_SIZES, SIZE),
    (["layer_norm_epsilon", "dropout_rate"], NO_RATES, RATE),
    (["scale_decoder_outputs", "is_gated_act"], NO_TRUTHS, TRUTH),
    (["feed_forward_proj", "dense_act_fn"], [None, 3, ["relu"], {}, DEEP, "tanh", "a-b"], "{}"),
    (["model_type"], [3, ["t5"], {}, DEEP, True], "config.json: {} is "),
    (["num_layers", "num_decoder_layers"], [10_000], "is missing parameter"),
    (["num_layers", "num_decoder_layers"], [10_001, 2**24], r"in 1\.\.10000, got"),
]  # fmt: skip
GPT_FIELDS = [
    (["vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"], NO_SIZES, SIZE),
    (["scale_attn_weights", "add_cross_attention"], ["yes"], "{} must be true or false, got 'yes'"),
]


@pytest.mark.parametrize(("model", "fields"), [("t5", T5_FIELDS), ("gpt", GPT_FIELDS)])
def test_values_that_are_none(checkpoint, gpt, model, fields):
    """Each is one line, and layers that no model has take no memory."""
    directory = {"t5": checkpoint, "gpt": gpt}[model]
    good = (directory / "config.json").read_text()
    for names, values, words in fields:
        # The first field has each value, and each other one two of them.
        others = itertools.product(names[1:], values[:2])
        for name, value in (*((names[0], value) for value in values), *others):
            (directory / "config.json").write_text(good)
            set_field(directory / "config.json", name, value)
            assert re.search(words.format(name), refusal(directory)), (name, str(value)[:50])


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_special_tokens(checkpoint, file):
    if file == "config.json":
        (checkpoint / "generation_config.json").unlink()
    good = (checkpoint / file).read_text()
    one, several = "one token id, got", "one token id, or a list of them, got"
    for name, value, asked in (
        ("eos_token_id", [1, "x"], several), ("eos_token_id", [], several),
        ("eos_token_id", [1, 40], r"in 0\.\.39, got \[1, 40\]"),
        ("eos_token_id", -1, r"in 0\.\.39, got -1"),
        ("pad_token_id", 10**6, r"in 0\.\.39, got 1000000"), ("pad_token_id", [0, 2], one),
        ("decoder_start_token_id", "0", one),
    ):  # fmt: skip
        (checkpoint / file).write_text(good)
        set_field(checkpoint / file, name, value)
        message = refusal(checkpoint)
        assert f"{checkpoint / file}: {name} must be " in message
        # transformers' own checks of config.json may come first.
        assert re.search(asked, message) or (file == "config.json" and ", got" in message)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 990345061\n"
DAMAGED = [b"[1]", b'{"vocab_size": NaN}', b'{"vocab_size": 40, "vocab_size": 41}', b"", POINTER]


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_files_that_are_no_json_objects(checkpoint, file):
    for content in DAMAGED:
        (checkpoint / file).write_bytes(content)
        message = refusal(checkpoint)
        assert re.search(f"{checkpoint / file} is (not|a Git LFS pointer, not) ", message)
        assert re.search("copy or download it again|`git lfs pull` in that directory", message)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_directory_in_the_place_of_a_file(checkpoint, file):
    (checkpoint / file).unlink()
    (checkpoint / file).mkdir()
    assert f"{checkpoint / file}" in refusal(checkpoint)


def test_fields_of_the_feed_forward_that_transformers_prefers(checkpoint):
    """``dense_act_fn`` and ``is_gated_act`` over what ``feed_forward_proj`` says."""
    path = checkpoint / "config.json"
    assert json.loads(path.read_text())["feed_forward_proj"] == "gated-gelu"
    set_field(path, "dense_act_fn", "silu")
    assert load_huggingface(checkpoint)[0].decoder.activation == "silu"
    set_field(path, "is_gated_act", False)
    assert "DenseReluDense.wi.weight" in refusal(checkpoint)
