"""What loading and saving Hugging Face checkpoints refuse, and in which words. Needs no torch."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specdec
from specdec.checkpoints import (
    CheckpointError,
    find_vocabulary,
    load_huggingface,
    open_checkpoint,
    save_huggingface,
)
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import init_params

CONFIG = T5Config(40, 8, 1, 1, 2, 4, 16)
QUERY = "encoder.block.0.layer.0.SelfAttention.q.weight"


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(np.asarray, init_params(CONFIG, jax.random.key(0)))


@pytest.fixture
def checkpoint(tmp_path, params):
    """A good checkpoint, for each test to damage."""
    save_huggingface(tmp_path / "good", CONFIG, params)
    return tmp_path / "good"


@pytest.fixture
def sharded(tmp_path, params):
    save_huggingface(tmp_path / "sharded", CONFIG, params, max_shard_bytes=2000)
    return tmp_path / "sharded"


def refusal(*args, **kwargs):
    """The one line that load_huggingface refuses with."""
    with pytest.raises(CheckpointError) as caught:
        load_huggingface(*args, **kwargs)
    return str(caught.value)


def edit_config(directory, **changes):
    path = directory / "config.json"
    raw = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in raw.items() if value is not None}))


def edit_weights(directory, **changes):
    path = directory / "model.safetensors"
    weights = {**load_file(path), **changes}
    save_file({name: value for name, value in weights.items() if value is not None}, path)


def replaced(tree, path, value):
    """A copy of a nested dict with one leaf replaced, or dropped if ``value`` is None."""
    first, *rest = path.split("/")
    tree = dict(tree)
    new = replaced(tree.get(first, {}), "/".join(rest), value) if rest else value
    tree[first] = new
    return {name: leaf for name, leaf in tree.items() if leaf is not None}


# Where the checkpoint is


def test_missing_directory(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert re.search(r"nowhere is not a directory; pass one that holds config.json", message)


def test_a_file_is_not_a_directory(checkpoint):
    assert "model.safetensors is not a directory" in refusal(checkpoint / "model.safetensors")


def test_hub_id_without_network(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal("some-one/t5-nothing")
    assert message.startswith("some-one/t5-nothing is not a local directory")
    assert "pass a local directory with config.json" in message
    assert "LocalEntryNotFoundError" in message
    assert "\n" not in message


def test_hub_id_is_downloaded(checkpoint, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def snapshot_download(repo_id, *, revision, allow_patterns):
        asked.update(name=(repo_id, revision), allow_patterns=allow_patterns)
        return str(checkpoint)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    name = "google/flan-t5-small"
    for revision in (None, "main", "refs/pr/3", "0e3f5b", "v1.0"):
        asked.clear()
        assert load_huggingface(f"{name}@{revision}" if revision else name)[0] == CONFIG
        assert asked["name"] == (name, revision)
    for wrong in ("google/flan@", "@main", "google/flan@a b", "google/flan@@main", "a/b/c@main"):
        assert "or google/flan-t5-small@main" in refusal(wrong)
    assert {"config.json", "model.safetensors", "spiece.model"} <= set(asked["allow_patterns"])
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])


def test_a_pair_of_revisions(checkpoint, monkeypatch):
    hub, asked = pytest.importorskip("huggingface_hub"), []

    def snapshot_download(repo_id, *, revision, allow_patterns):
        asked.append((repo_id, revision))
        return str(checkpoint)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    pair = specdec.load_pair(target="some/target@v2", draft="some/draft@v1")
    assert set(asked) == {("some/target", "v2"), ("some/draft", "v1")}
    assert pair.target.source == "some/target@v2"


# config.json


def test_config_missing(checkpoint):
    (checkpoint / "config.json").unlink()
    assert "has no config.json; pass the directory of a checkpoint" in refusal(checkpoint)


@pytest.mark.parametrize("model_type", ["bert", "led", None])
def test_model_is_no_t5(checkpoint, model_type):
    """One line names all that can be loaded."""
    edit_config(checkpoint, model_type=model_type, architectures=["BertModel"])
    message = refusal(checkpoint)
    assert f"model_type is {model_type!r}. Checkpoints that can be loaded are" in message
    for name in ("t5 (Flan-T5", "UL2", "MADLAD-400", "ByT5", "CodeT5+", "mt5 (Aya-101)", "umt5",
                 "gpt2 (DistilGPT2)", "m2m_100 (NLLB-200", "t5gemma2 (without"):  # fmt: skip
        assert name in message
    assert "\n" not in message


def test_the_class_tells_the_model_type_where_nothing_else_does(checkpoint):
    """Google's UMT5s have no model_type."""
    edit_config(checkpoint, model_type=None)
    assert load_huggingface(checkpoint)[0] == CONFIG


def test_an_encoder_alone(checkpoint):
    """Such as T5EncoderModel's."""
    path = checkpoint / "model.safetensors"
    weights = {name: w for name, w in load_file(path).items() if not name.startswith("decoder.")}
    save_file(weights, path)
    message = refusal(checkpoint)
    assert "good has no decoder, only an encoder, which cannot generate" in message
    assert "Load a checkpoint with both" in message


def test_size_missing_from_config(checkpoint):
    """transformers' default of the class does not fit."""
    edit_config(checkpoint, d_kv=None)
    assert ".weight has shape (8, 8), but config.json asks for (128, 8)" in refusal(checkpoint)


def test_special_tokens_come_from_the_generation_config(checkpoint):
    text = '{"eos_token_id": [5], "decoder_start_token_id": 6, "pad_token_id": null}'
    (checkpoint / "generation_config.json").write_text(text)
    config, _ = load_huggingface(checkpoint)
    assert (config.eos_id, config.decoder_start_id, config.pad_id) == (5, 6, 0)


# The weights' files


def test_no_weights(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    assert "has neither model.safetensors nor model.safetensors.index.json" in refusal(checkpoint)


def test_only_pytorch_weights(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    message = refusal(checkpoint)
    assert "good has pytorch_model.bin, but no model.safetensors: convert it with" in message
    assert f"AutoModelForSeq2SeqLM.from_pretrained({str(checkpoint)!r}).save_pretrained" in message


@pytest.mark.parametrize(
    ("name", "argument"),
    [("flax_model.msgpack", "from_flax=True"), ("tf_model.h5", "from_tf=True")],
)
def test_only_weights_of_other_libraries(checkpoint, name, argument):
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    message = refusal(checkpoint)
    assert f"good has {name}, but no model.safetensors: convert it with transformers 4" in message
    assert f"from_pretrained({str(checkpoint)!r}, {argument}).save_pretrained" in message


def test_a_shard_that_is_a_pointer_of_git_lfs(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 9\n")
    assert f"{shard} is a Git LFS pointer" in refusal(sharded)


@pytest.mark.parametrize("whole", [False, True], ids=["the adapter alone", "beside a model"])
def test_an_adapter(checkpoint, whole):
    """Beside a model, transformers would load both."""
    (checkpoint / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if not whole:
        (checkpoint / "config.json").unlink()
    message = refusal(checkpoint)
    assert "good holds an adapter (adapter_config.json), such as LoRA's" in message
    assert ".merge_and_unload().save_pretrained(" in message
    assert "\n" not in message


@pytest.mark.parametrize("keep", [4, 200, -1])
def test_truncated_weights(checkpoint, keep):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors is truncated or corrupt" in refusal(checkpoint)


def test_listed_shard_is_absent(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    message = refusal(sharded)
    assert f"{shard.name} is missing, though model.safetensors.index.json lists it" in message


@pytest.mark.parametrize("name", [None, 3, "", "/etc/passwd", "../other.safetensors"])
def test_listed_file_is_outside_the_directory(sharded, name):
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["shared.weight"] = name
    path.write_text(json.dumps(index))
    assert f"gives shared.weight the file {name!r}" in refusal(sharded)


def test_index_without_weight_map(sharded):
    (sharded / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in refusal(sharded)


# The weights


def test_missing_parameter(checkpoint):
    edit_weights(checkpoint, **{QUERY: None})
    assert f"is missing parameter {QUERY}; check that config.json" in refusal(checkpoint)


def test_missing_embedding(checkpoint):
    edit_weights(checkpoint, **{"shared.weight": None, "lm_head.weight": None})
    assert "is missing parameter shared.weight;" in refusal(checkpoint)


def test_unexpected_parameters(checkpoint):
    edit_weights(checkpoint, **{f"lora.{x}": np.zeros(2, np.float32) for x in "ab"})
    assert "has the unexpected parameter lora.a and 1 more;" in refusal(checkpoint)


def test_wrong_shape(checkpoint):
    edit_weights(checkpoint, **{QUERY: np.zeros((8, 7), np.float32)})
    message = refusal(checkpoint)
    assert f"{QUERY} has shape (8, 7), but config.json asks for (8, 8)" in message


@pytest.mark.parametrize(
    ("head", "prefix"),
    [("classification_head.dense.weight", ""), ("classifier.weight", "transformer."),
     ("qa_outputs.bias", "")],
)  # fmt: skip
def test_a_classifier(checkpoint, head, prefix):
    """Those of one's own T5, with and without a decoder."""
    path = checkpoint / "model.safetensors"
    weights = {prefix + name: weight for name, weight in load_file(path).items()}
    del weights[f"{prefix}lm_head.weight"]
    save_file(weights | {head: np.zeros(2, np.float32)}, path)
    message = refusal(checkpoint)
    assert f"good is a classifier (it has {head}), which makes no tokens" in message


def test_names_of_a_model_inside_of_another(checkpoint):
    path = checkpoint / "model.safetensors"
    save_file({f"model.{name}": weight for name, weight in load_file(path).items()}, path)
    message = refusal(checkpoint)
    assert "names of parameters begin with model., such as model.decoder.block.0." in message
    assert "Save the inner one with save_pretrained" in message


def test_float64_is_rounded(checkpoint, params):
    path = checkpoint / "model.safetensors"
    save_file({name: w.astype(np.float64) for name, w in load_file(path).items()}, path)
    jax.tree.map(np.testing.assert_array_equal, load_huggingface(checkpoint)[1], params)
    stored = open_checkpoint(checkpoint, None)[1]["decoder"]["decoder_norm"]["scale"]
    assert stored.dtype == np.float32
    edit_weights(checkpoint, **{QUERY: np.full((8, 8), 1e300)})
    assert f"{QUERY} holds NaN or infinite values in float32" in refusal(checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(checkpoint, value):
    weight = np.zeros((8, 8), np.float32)
    weight[3, 4] = value
    edit_weights(checkpoint, **{QUERY: weight})
    assert f"{QUERY} holds NaN or infinite values in float32" in refusal(checkpoint)


def test_weights_out_of_the_range_asked_for(checkpoint):
    edit_weights(checkpoint, **{QUERY: np.full((8, 8), 1e5, np.float32)})
    load_huggingface(checkpoint, dtype="bfloat16")
    message = refusal(checkpoint, dtype="float16")
    assert f"{QUERY} holds NaN or infinite values in float16" in message
    assert "wider range" in message


def test_quantized_weights(checkpoint):
    edit_weights(checkpoint, **{QUERY: np.zeros((8, 8), np.int8)})
    assert f"{QUERY} is stored as I8" in refusal(checkpoint)


def test_separate_decoder_embedding(checkpoint):
    edit_weights(checkpoint, **{"decoder.embed_tokens.weight": np.zeros((40, 8), np.float32)})
    assert "decoder.embed_tokens.weight differs from shared.weight" in refusal(checkpoint)


def test_unknown_dtype(checkpoint):
    assert "dtype must be one of float32, bfloat16, float16" in refusal(checkpoint, dtype="int8")


# Saving


def test_saving_never_overwrites(checkpoint, params):
    with pytest.raises(CheckpointError, match="good exists and is not an empty directory"):
        save_huggingface(checkpoint, CONFIG, params)
    with pytest.raises(CheckpointError, match=r"config\.json exists and is not an empty directory"):
        save_huggingface(checkpoint / "config.json", CONFIG, params)
    assert load_huggingface(checkpoint)[0] == CONFIG


def test_saving_into_an_empty_directory(tmp_path, params):
    (tmp_path / "empty").mkdir()
    save_huggingface(tmp_path / "empty", CONFIG, params)
    assert load_huggingface(tmp_path / "empty")[0] == CONFIG


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("encoder/encoder_norm/scale", None, "is missing parameter encoder/encoder_norm/scale;"),
        ("encoder/extra", np.zeros(2), "has the unexpected parameter encoder/extra;"),
        (
            "encoder/layers_0/attention/query/kernel",
            np.zeros((8, 9)),
            r"query/kernel has shape \(8, 9\), but the config asks for \(8, 8\)",
        ),
        (
            "decoder/decoder_norm/scale",
            np.full(8, np.nan),
            "decoder/decoder_norm/scale holds NaN or infinite values",
        ),
    ],
)
def test_saving_parameters_that_do_not_fit(tmp_path, params, path, value, message):
    with pytest.raises(CheckpointError, match=message):
        save_huggingface(tmp_path / "m", CONFIG, replaced(params, path, value))
    assert not list(tmp_path.iterdir()), "a failed save left something behind"


def test_saving_tied_parameters_as_untied(tmp_path, params):
    with pytest.raises(CheckpointError, match="missing parameter decoder/logits_dense/kernel"):
        save_huggingface(
            tmp_path / "m", CONFIG, replaced(params, "decoder/logits_dense/kernel", None)
        )


def test_saving_with_an_unknown_dtype(tmp_path, params):
    with pytest.raises(CheckpointError, match="dtype must be one of"):
        save_huggingface(tmp_path / "m", CONFIG, params, dtype="float64")


def test_an_interrupted_save_leaves_nothing(tmp_path, params, monkeypatch):
    def interrupt(path, contents):
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec.checkpoints.huggingface.write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_huggingface(tmp_path / "m", CONFIG, params)
    assert not list(tmp_path.iterdir())


# Vocabularies


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A SentencePiece model of 40 pieces with T5's special tokens."""
    sentencepiece = pytest.importorskip("sentencepiece")
    directory = tmp_path_factory.mktemp("vocabulary")
    text = "the quick brown fox jumps over the lazy dog again and again the thing jumping dogs"
    (directory / "text").write_text("\n".join(text[i:] for i in range(len(text))))
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "text"), model_prefix=str(directory / "v"), vocab_size=40,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return directory / "v.model"


def test_find_vocabulary(tmp_path, checkpoint, params, vocabulary):
    assert find_vocabulary(checkpoint) is None
    save_huggingface(tmp_path / "m", CONFIG, params, vocabulary_file=vocabulary)
    found = find_vocabulary(tmp_path / "m")
    assert found == tmp_path / "m" / "spiece.model"
    assert found.read_bytes() == vocabulary.read_bytes()
    with pytest.raises(CheckpointError, match="nowhere is not a directory"):
        find_vocabulary(tmp_path / "nowhere")


@pytest.mark.parametrize("rows", [40, 256])
def test_transformers_tokenizer_agrees_with_sentencepiece(tmp_path, vocabulary, rows):
    pytest.importorskip("transformers", reason="opens the checkpoint with T5Tokenizer")
    import sentencepiece
    from transformers import AutoTokenizer

    config = T5Config(rows, 8, 1, 1, 2, 4, 16)
    params = init_params(config, jax.random.key(0))
    save_huggingface(tmp_path / "m", config, params, vocabulary_file=vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    reference = sentencepiece.SentencePieceProcessor(str(vocabulary))
    text = "the lazy fox jumps again"
    assert tokenizer(text).input_ids == [*reference.encode(text), reference.eos_id()]
    assert tokenizer.decode(reference.encode(text)) == text
    assert len(tokenizer) == min(rows, 140)
    if rows > 40:
        # T5's sentinels count down from the last row that has a meaning.
        assert tokenizer("<extra_id_0>").input_ids[0] == len(tokenizer) - 1


def test_vocabulary_larger_than_the_embedding(tmp_path, vocabulary):
    config = T5Config(39, 8, 1, 1, 2, 4, 16)
    with pytest.raises(CheckpointError, match="has 40 pieces, but the embedding only 39 rows"):
        save_huggingface(tmp_path / "m", config, init_params(config, jax.random.key(0)), vocabulary)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [None, "no model"])
def test_unreadable_vocabulary(tmp_path, params, text):
    pytest.importorskip("sentencepiece")
    path = tmp_path / "v.model"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        CheckpointError, match=r"v.model (is not a SentencePiece model|cannot be read)"
    ):
        save_huggingface(tmp_path / "m", CONFIG, params, vocabulary_file=path)
