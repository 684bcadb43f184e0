"""What loading and saving Hugging Face checkpoints refuse, and in which words. Needs no torch."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_vocabularies import train_pieces

import specdec
from specdec.checkpoints import (
    CheckpointError,
    find_vocabulary,
    load_huggingface,
    open_checkpoint,
    save_huggingface,
)
from specdec.models.t5.config import T5Config
from specdec.models.transformer.network import init_params

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


def replaced(tree, path, value):
    """A copy of a nested dict with one leaf replaced, or dropped if ``value`` is None."""
    first, *rest = path.split("/")
    tree = dict(tree)
    new = replaced(tree.get(first, {}), "/".join(rest), value) if rest else value
    tree[first] = new
    return {name: leaf for name, leaf in tree.items() if leaf is not None}


def test_no_directory(checkpoint, tmp_path):
    words = "is not a directory; pass one that holds config.json"
    assert f"nowhere {words}" in refusal(tmp_path / "nowhere")
    assert f"model.safetensors {words}" in refusal(checkpoint / "model.safetensors")


def test_hub_id_without_network(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal("some-one/t5-nothing")
    assert message.startswith("some-one/t5-nothing is not a local directory")
    assert "pass a local directory with config.json" in message
    assert "LocalEntryNotFoundError" in message
    assert "\n" not in message


def test_hub_ids_are_downloaded(checkpoint, monkeypatch):
    hub, asked = pytest.importorskip("huggingface_hub"), []

    def snapshot_download(repo_id, *, revision, allow_patterns):
        asked.append((repo_id, revision))
        assert {"config.json", "model.safetensors", "spiece.model"} <= set(allow_patterns)
        assert not any("bin" in pattern for pattern in allow_patterns)
        return str(checkpoint)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    name = "google/flan-t5-small"
    for revision in (None, "main", "refs/pr/3", "0e3f5b", "v1.0"):
        asked.clear()
        assert load_huggingface(f"{name}@{revision}" if revision else name)[0] == CONFIG
        assert asked == [(name, revision)]
    for wrong in ("google/flan@", "@main", "google/flan@a b", "google/flan@@main", "a/b/c@main"):
        assert "or google/flan-t5-small@main" in refusal(wrong)
    asked.clear()
    pair = specdec.load_pair(target="some/target@v2", draft="some/draft@v1")
    assert set(asked) == {("some/target", "v2"), ("some/draft", "v1")}
    assert pair.target.source == "some/target@v2"


def weights(change):
    """A function of a directory that changes its arrays by name."""

    def edited(directory):
        path = directory / "model.safetensors"
        save_file(change(load_file(path)), path)

    return edited


def arrays(**changes):
    """Arrays that are others, or are not there where they are None."""
    return weights(lambda found: {n: a for n, a in (found | changes).items() if a is not None})


def config(**changes):
    return lambda directory: edit_config(directory, **changes)


def moved(name):
    return lambda directory: (directory / "model.safetensors").rename(directory / name)


def gone(name):
    return lambda directory: (directory / name).unlink()


def cut(keep):
    def cut(directory):
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])

    return cut


def of_query(array):
    return arrays(**{QUERY: array})


def adapter(directory):
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    gone("config.json")(directory)


def classifier(head, prefix=""):
    def change(found):
        named = {prefix + name: a for name, a in found.items() if name != "lm_head.weight"}
        return named | {head: np.zeros(2, np.float32)}

    return weights(change)


NAN, HUGE = (np.full((8, 8), value, np.float32) for value in (np.nan, 1e5))
DAMAGES = {
    "no config.json": (gone("config.json"), "has no config.json; pass the directory of a check"),
    "a BERT": (
        config(model_type="bert", architectures=["BertModel"]),
        r"model_type is 'bert'. Checkpoints that can be loaded are, .* gpt2 \(DistilGPT2\), "
        r".*m2m_100 \(NLLB-200.* mt5 \(Aya-101\), .*t5 \(Flan-T5.*UL2.*CodeT5\+.* umt5",
    ),
    "an encoder alone": (
        weights(lambda found: {n: a for n, a in found.items() if not n.startswith("decoder.")}),
        "good has no decoder, only an encoder, which cannot generate. .*Load a checkpoint with b",
    ),
    "a size of the class": (
        config(d_kv=None), r"\.weight has shape \(8, 8\), but config.json asks for \(128, 8\)"
    ),
    "an activation": (config(feed_forward_proj="gelu"), "feed_forward_proj 'gelu' is not supp"),
    "no weights": (
        gone("model.safetensors"), "has neither model.safetensors nor model.safetensors.index"
    ),
    "weights of PyTorch": (
        moved("pytorch_model.bin"),
        r"has neither model.safetensors .*AutoModelForSeq2SeqLM"
        r".from_pretrained\('.*good'\).save_pretrained",
    ),
    "an adapter": (
        adapter, r"holds an adapter \(adapter_config.json\), .*\.merge_and_unload\(\)\.save_pre"
    ),
    "cut to 200 bytes": (cut(200), "model.safetensors is truncated or corrupt"),
    "no query": (of_query(None), f"is missing parameter {QUERY}; check that config.json"),
    "no embedding": (
        arrays(**{"shared.weight": None, "lm_head.weight": None}), "missing parameter shared.weig"
    ),
    "more arrays": (
        arrays(**{f"lora.{x}": np.zeros(2, np.float32) for x in "ab"}),
        "has the unexpected parameter lora.a and 1 more;",
    ),
    "another shape": (
        of_query(np.zeros((8, 7), np.float32)),
        rf"{QUERY} has shape \(8, 7\), but config.json asks for \(8, 8\)",
    ),
    "a classifier": (
        classifier("classifier.weight"),
        r"is a classifier \(it has classifier.weight\), which makes no tokens",
    ),
    "a model inside": (
        weights(lambda found: {f"model.{name}": a for name, a in found.items()}),
        r"names of parameters begin with model\., such as model.decoder.block.0.*"
        "Save the inner one with save_pretrained",
    ),
    "NaN": (of_query(NAN), f"{QUERY} holds NaN or infinite values in float32"),
    "integers": (of_query(np.zeros((8, 8), np.int8)), f"{QUERY} is stored as I8"),
    "two embeddings": (
        arrays(**{"decoder.embed_tokens.weight": np.zeros((40, 8), np.float32)}),
        "decoder.embed_tokens.weight differs from shared.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged(checkpoint, kind):
    """One line says what is wrong and what to do."""
    damage, words = DAMAGES[kind]
    damage(checkpoint)
    message = refusal(checkpoint)
    assert re.search(words, message), message
    assert "\n" not in message


def test_shards(sharded):
    """One that is absent, a pointer, or listed elsewhere; an index without its map."""
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 9\n")
    assert f"{shard} is a Git LFS pointer" in refusal(sharded)
    shard.unlink()
    message = refusal(sharded)
    assert f"{shard.name} is missing, though model.safetensors.index.json lists it" in message
    shard.write_bytes(content)
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name in (None, 3, "", "/etc/passwd", "../other.safetensors"):
        path.write_text(json.dumps({"weight_map": index["weight_map"] | {"shared.weight": name}}))
        assert f"gives shared.weight the file {name!r}" in refusal(sharded)
    path.write_text("{}")
    assert "has no weight_map" in refusal(sharded)


def test_the_class_tells_the_model_type_where_nothing_else_does(checkpoint):
    """Google's UMT5s have no model_type."""
    edit_config(checkpoint, model_type=None)
    assert load_huggingface(checkpoint)[0] == CONFIG


def test_special_tokens_come_from_the_generation_config(checkpoint, tmp_path):
    text = '{"eos_token_id": [5, 3], "decoder_start_token_id": 6, "pad_token_id": null}'
    (checkpoint / "generation_config.json").write_text(text)
    config, params = load_huggingface(checkpoint)
    assert (config.eos_id, config.more_eos_ids) == (5, (3,))
    assert (config.start_id, config.pad_id) == (6, 0)
    save_huggingface(tmp_path / "again", config, params)
    assert load_huggingface(tmp_path / "again")[0] == config


def test_dtypes(checkpoint, params):
    """float64 is rounded; what is beyond a narrow one's range is refused."""
    weights(lambda found: {n: a.astype(np.float64) for n, a in found.items()})(checkpoint)
    jax.tree.map(np.testing.assert_array_equal, load_huggingface(checkpoint)[1], params)
    stored = open_checkpoint(checkpoint, None)[1]["decoder"]["decoder_norm"]["scale"]
    assert stored.dtype == np.float32
    of_query(HUGE)(checkpoint)
    load_huggingface(checkpoint, dtype="bfloat16")
    message = refusal(checkpoint, dtype="float16")
    assert f"{QUERY} holds NaN or infinite values in float16" in message
    assert "wider range" in message
    assert "dtype must be one of float32, bfloat16, float16" in refusal(checkpoint, dtype="int8")


def test_saving_never_overwrites(checkpoint, params):
    with pytest.raises(CheckpointError, match="good exists and is not an empty directory"):
        save_huggingface(checkpoint, CONFIG, params)
    with pytest.raises(CheckpointError, match=r"config\.json exists and is not an empty directory"):
        save_huggingface(checkpoint / "config.json", CONFIG, params)
    assert load_huggingface(checkpoint)[0] == CONFIG


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("encoder/encoder_norm/scale", None, "is missing parameter encoder/encoder_norm/scale;"),
        ("encoder/extra", np.zeros(2), "has the unexpected parameter encoder/extra;"),
        ("decoder/decoder_norm/scale", np.ones(7), r"has shape \(7,\), but the config asks for"),
        ("decoder/decoder_norm/scale", np.full(8, np.nan), "scale holds NaN or infinite values"),
    ],
)
def test_saving_parameters_that_do_not_fit(tmp_path, params, path, value, message):
    with pytest.raises(CheckpointError, match=message):
        save_huggingface(tmp_path / "m", CONFIG, replaced(params, path, value))
    assert not list(tmp_path.iterdir()), "a failed save left something behind"


def test_an_interrupted_save_leaves_nothing(tmp_path, params, monkeypatch):
    def interrupt(path, contents):
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec.checkpoints.huggingface.write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_huggingface(tmp_path / "m", CONFIG, params)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    text = "the quick brown fox jumps over the lazy dog again and again the thing jumping dogs"
    lines = [text[i:] for i in range(len(text))]
    return train_pieces(tmp_path_factory.mktemp("vocabulary"), lines, 40)


def test_find_vocabulary(tmp_path, checkpoint, params, vocabulary):
    assert find_vocabulary(checkpoint) is None
    save_huggingface(tmp_path / "m", CONFIG, params, vocabulary_file=vocabulary)
    found = find_vocabulary(tmp_path / "m")
    assert found == tmp_path / "m" / "spiece.model"
    assert found.read_bytes() == vocabulary.read_bytes()
    with pytest.raises(CheckpointError, match="nowhere is not a directory"):
        find_vocabulary(tmp_path / "nowhere")


def test_vocabulary_larger_than_the_embedding(tmp_path, vocabulary):
    config = T5Config(39, 8, 1, 1, 2, 4, 16)
    with pytest.raises(CheckpointError, match="has 40 pieces, but the embedding only 39 rows"):
        save_huggingface(tmp_path / "m", config, init_params(config, jax.random.key(0)), vocabulary)
    assert not list(tmp_path.iterdir())
