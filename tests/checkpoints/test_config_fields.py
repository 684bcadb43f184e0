"""config.json, generation_config.json and the index: each field that is wrong is one clear line."""

import json
import re

import jax
import numpy as np
import pytest
from tiny import TINY_GPT, random_gpt_params

from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import init_params

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
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_gpt_params(config, 0)))
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
SIZES = ["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"]
GPT_SIZES = ["vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"]
NO_SIZES = ["16", True, -1, 0, 2.0, 10**30, [8], {}, DEEP, [], "", 1e300]


@pytest.mark.parametrize("value", NO_SIZES, ids=range(len(NO_SIZES)))
@pytest.mark.parametrize("name", [*SIZES, "relative_attention_num_buckets", "encoding_width"])
def test_sizes_of_a_t5(checkpoint, name, value):
    set_field(checkpoint / "config.json", name, value)
    assert re.search(rf"config.json: {name} must be (a whole number|in 1\.\.)", refusal(checkpoint))


@pytest.mark.parametrize("value", NO_SIZES, ids=range(len(NO_SIZES)))
@pytest.mark.parametrize("name", GPT_SIZES)
def test_sizes_of_a_gpt(gpt, name, value):
    set_field(gpt / "config.json", name, value)
    assert re.search(rf"config.json: {name} must be (a whole number|in 1\.\.)", refusal(gpt))


@pytest.mark.parametrize("name", ["num_layers", "num_decoder_layers"])
@pytest.mark.parametrize(
    ("count", "told"),
    [(10_000, "is missing parameter"), (10_001, "in 1..10000, got 10001"), (2**24, "in 1..10000,")],
)
def test_more_layers_than_any_model_has_take_no_memory(checkpoint, name, count, told):
    set_field(checkpoint / "config.json", name, count)
    assert told in refusal(checkpoint)


@pytest.mark.parametrize("value", ["x", True, -0.1, 1, 1.0, 10**400, [0.1], None, DEEP])
@pytest.mark.parametrize("name", ["layer_norm_epsilon", "dropout_rate"])
def test_rates(checkpoint, name, value):
    set_field(checkpoint / "config.json", name, value)
    assert re.search(rf"config.json: {name} must be .*, got", refusal(checkpoint))


@pytest.mark.parametrize("value", ["false", 0, 1, None, [], 0.0])
@pytest.mark.parametrize("name", ["scale_decoder_outputs", "is_gated_act"])
def test_truths(checkpoint, name, value):
    set_field(checkpoint / "config.json", name, value)
    assert f"config.json: {name} must be True or False, got" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["scale_attn_weights", "add_cross_attention"])
def test_truths_of_a_gpt(gpt, name):
    set_field(gpt / "config.json", name, "yes")
    assert f"config.json: {name} must be true or false, got 'yes'" in refusal(gpt)


@pytest.mark.parametrize("value", [None, 3, ["relu"], {}, DEEP, "tanh", "a-b-c"])
@pytest.mark.parametrize("name", ["feed_forward_proj", "dense_act_fn"])
def test_activations(checkpoint, name, value):
    set_field(checkpoint / "config.json", name, value)
    assert name in refusal(checkpoint)


@pytest.mark.parametrize("value", [3, ["t5"], {}, DEEP, True])
def test_model_types(checkpoint, value):
    set_field(checkpoint / "config.json", "model_type", value)
    assert "config.json: model_type is " in refusal(checkpoint)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("name", "value", "asked"),
    [
        ("eos_token_id", True, "one token id, or a list of them, got True"),
        ("eos_token_id", [1, "x"], "one token id, or a list of them, got"),
        ("eos_token_id", [], "one token id, or a list of them, got []"),
        ("eos_token_id", DEEP, "one token id, or a list of them, got"),
        ("eos_token_id", 1.0, "one token id, or a list of them, got 1.0"),
        ("eos_token_id", [1, 40], "in 0..39, got [1, 40]"),
        ("eos_token_id", -1, "in 0..39, got -1"),
        ("pad_token_id", 10**6, "in 0..39, got 1000000"),
        ("pad_token_id", [0, 2], "one token id, got [0, 2]"),
        ("decoder_start_token_id", "0", "one token id, got '0'"),
    ],
)
def test_special_tokens(checkpoint, file, name, value, asked):
    if file == "config.json":
        (checkpoint / "generation_config.json").unlink()
        asked = r".*, got" if " got" in asked and "in 0" not in asked else asked
    set_field(checkpoint / file, name, value)
    message = refusal(checkpoint)
    assert f"{checkpoint / file}: {name} must be " in message
    assert re.search(asked if asked.startswith(".") else re.escape(asked), message)


DAMAGED = {
    "nested without end": b"[" * 200_000,
    "objects without end": b'{"a":' * 200_000,
    "no object": b"[1]",
    "a number": b"1",
    "nothing": b"",
    "cut": b'{"vocab_size": 4',
    "NaN": b'{"vocab_size": NaN}',
    "Infinity": b'{"vocab_size": -Infinity}',
    "no UTF-8": b'{"vocab_size\xff": 40}',
    "UTF-16": '{"vocab_size": 40}'.encode("utf-16"),
    "twice": b'{"vocab_size": 40, "vocab_size": 41}',
    "a number without end": b'{"vocab_size": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_files_that_are_no_json_objects(checkpoint, params, tmp_path, file, kind):
    if "index" in file:
        checkpoint = tmp_path / "sharded"
        save_huggingface(checkpoint, CONFIG, params, max_shard_bytes=2000)
    (checkpoint / file).write_bytes(DAMAGED[kind])
    message = refusal(checkpoint)
    assert f"{checkpoint / file} is not " in message
    assert "copy or download it again" in message


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
    assert load_huggingface(checkpoint)[0].activation == "silu"
    set_field(path, "is_gated_act", False)
    assert "DenseReluDense.wi.weight" in refusal(checkpoint)


def header_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_header(path, header, rest):
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + rest)


NAME = "decoder.final_layer_norm.weight"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "I32"}, {"dtype": "F8_E4M3"}, {"dtype": "NONE"}, {"dtype": 3},
        {"dtype": "F16", "shape": [16]}, {"dtype": "F64", "shape": [4]}, {"shape": [2, 4]},
        {"shape": [-8]}, {"shape": [2**62, 2**62]}, {"shape": []}, {"shape": "8"},
        {"data_offsets": [0, 2**60]}, {"data_offsets": [64, 32]}, {"data_offsets": []},
    ],
    ids=str,
)  # fmt: skip
def test_headers_of_weights(checkpoint, change):
    """Retyped, and of other shapes and places."""
    path = checkpoint / "model.safetensors"
    header, rest = header_of(path)
    header[NAME] |= change
    write_header(path, header, rest)
    assert str(checkpoint) in refusal(checkpoint)


def test_every_byte_of_a_header(checkpoint):
    """A flipped one is an error, or changes nothing; no other error than CheckpointError."""
    path = checkpoint / "model.safetensors"
    data, expected = path.read_bytes(), load_huggingface(checkpoint)
    size = 8 + int.from_bytes(data[:8], "little")
    generator, refused = np.random.default_rng(0), 0
    for _ in range(300):
        at, bit = generator.integers(size), 1 << generator.integers(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            found = load_huggingface(checkpoint)
        except CheckpointError:
            refused += 1
        else:
            assert found[0] == expected[0]
            jax.tree.map(np.testing.assert_array_equal, found[1], expected[1])
    assert refused > 150
