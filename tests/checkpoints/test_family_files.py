"""Files as they travel: of other versions, with leftovers, and such as are of other networks."""

import dataclasses
import json
import subprocess
import sys

import families
import jax
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from safetensors.numpy import load_file, save_file
from tiny import EVERY, TINY, changed, random_params

import specdec
from specdec.checkpoints import (
    CheckpointError,
    load_huggingface,
    open_huggingface,
    save_huggingface,
)
from specdec.checkpoints.hf_files import CONFIG

pytestmark = pytest.mark.filterwarnings("ignore")
ONE = np.ones(3, np.float32)


def renamed(tensors, before, after):
    return {after + name.removeprefix(before): array for name, array in tensors.items()}


def _copies(tensors):
    """The first T5s carry their embedding four times, and a bias that nothing reads."""
    names = ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    shared = tensors["shared.weight"]
    return tensors | {f"{n}.weight": shared for n in names} | {unused: np.zeros((32, 4), "f4")}


def _moved(to):
    def change(tensors):
        return {to if name == "shared.weight" else name: a for name, a in tensors.items()}

    return change


def _bare(tensors):
    """A model without its head, with tables twice, sines and numbers of versions."""
    found = renamed(tensors, "model.", "")
    tables = {
        f"{part}.embed_tokens.weight": found["shared.weight"] for part in ("encoder", "decoder")
    }
    return found | tables | {
        "encoder.embed_positions.weights": np.zeros((1, 2), "f4"), "encoder.version": ONE[:1],
    }  # fmt: skip


def _masks(prefix):
    def change(tensors):
        mask = np.tril(np.ones((1, 1, 96, 96), np.float32))
        more = {"h.0.attn.bias": mask, "h.0.attn.masked_bias": mask[0, 0, 0]}
        named = renamed(tensors, "transformer.", prefix)
        return named | {prefix + name: array for name, array in more.items()}

    return change


def _left(*names):
    return lambda tensors: tensors | dict.fromkeys(names, ONE)


SAME = {
    "T5, copies": ("t5", _copies),
    "T5, encoder.embed_tokens": ("t5", _moved("encoder.embed_tokens.weight")),
    "T5, lm_head": ("t5", _moved("lm_head.weight")),
    "M2M100, without its head": ("m2m_100", _bare),
    "GPT-2, without its head": ("gpt2", _masks("")),
    "GPT-2, masks": ("gpt2", _masks("transformer.")),
    "Llama, frequencies": (
        "llama",
        _left("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
    ),
    "Qwen 3, frequencies": ("qwen3", _left("model.rotary_emb.original_inv_freq")),
    "Gemma 3, frequencies": (
        "gemma3", _left("model.rotary_emb_local.inv_freq", "model.embed_tokens.embed_scale")
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAME)
def test_files_that_say_the_same(made, rewritten, tmp_path, kind):
    name, change = SAME[kind]
    expected = load_huggingface(made(name)[1])
    found = load_huggingface(rewritten(made(name)[1], tmp_path / "it", change))
    assert found[0] == expected[0]
    jax.tree.map(np.testing.assert_array_equal, found[1], expected[1])


def test_sines_that_are_others(made, rewritten, tmp_path):
    """A Marian's are those of its file, as in transformers; rounded ones are computed."""
    name = "model.{}.embed_positions.weight"
    model, directory = made("marian")
    sines = model.model.encoder.embed_positions.weight.detach().numpy()
    tables = {name.format(stack): sines for stack in ("encoder", "decoder")}
    other = {path: 0.5 * table for path, table in tables.items()}
    found = rewritten(directory, tmp_path / "other", lambda tensors: tensors | other)
    assert load_huggingface(found)[0].decoder.positions.kind == "learned"
    assert_same_log_probs(families.read(model, found), found)
    rounded = {path: table.astype("f2") for path, table in tables.items()}
    near = rewritten(directory, tmp_path / "near", lambda tensors: tensors | rounded)
    assert load_huggingface(near)[0] == load_huggingface(directory)[0]

    def without(tensors):
        kept = {path: array for path, array in tensors.items() if path not in tables}
        return kept | {name.format("encoder"): 0.5 * sines}

    with pytest.raises(CheckpointError, match=r"missing parameter model.decoder.embed_positions"):
        load_huggingface(rewritten(directory, tmp_path / "one", without))


def test_without_a_bias_of_the_logits_there_is_none(made, rewritten, tmp_path):
    def change(tensors):
        return {name: a for name, a in tensors.items() if name != "final_logits_bias"}

    assert not load_huggingface(rewritten(made("bart")[1], tmp_path / "it", change))[0].logits.bias


@pytest.mark.parametrize("name", ["bart_odd", "gpt2_untied"])
def test_a_head_that_is_not_the_embedding_though_the_config_ties_them(
    made, rewritten, tmp_path, name
):
    """transformers keeps all that differ."""
    tied = rewritten(made(name)[1], tmp_path / "tied", tie_word_embeddings=True)
    assert load_huggingface(tied)[0] == load_huggingface(made(name)[1])[0]


ROPE = "rope_parameters"
REFUSED = [
    ("whisper", {"scale_embedding": True}, "scale_embedding must be False"),
    ("whisper", {"decoder_attention_heads": 2}, "decoder_attention_heads must be .* 4, got 2"),
    ("whisper", {"num_mel_bins": 7}, r"conv1.weight has shape .*6.*, but config.json asks for"),
    ("bart", {"activation_function": "tanh"}, "activation_function 'tanh' is not supported"),
    ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads must be .* 4, got 2"),
    ("bart", {"normalize_before": True}, "normalize_before must be False"),
    ("marian", {"static_position_embeddings": False}, "static_position_embeddings must be True"),
    ("bart", {"d_model": 31}, "attention_heads must divide d_model"),
    ("bart", {"scale_embedding": "yes"}, "scale_embedding must be true or false"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention must be False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be False, got True"),
    ("gpt2", {"n_layer": 4}, r"is missing parameter h\.3\."),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ("llama", {"attention_bias": True}, "attention_bias must be False, got True"),
    ("llama", {ROPE: {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported"),
    ("llama", {ROPE: {"rope_type": "linear"}}, "Missing required keys.*factor"),
    ("llama", {ROPE: {"partial_rotary_factor": 0.5}}, "must be 1"),
    ("llama", {"per_layer_config": {"0": {"hidden_act": "relu"}}}, "per_layer_config is not supp"),
    ("gemma2", {"layer_types": ["full_attention"]}, "num_hidden_layers. .2. must be equal"),
    ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "must be a list of"),
    ("llama", {"model_type": "falcon"}, "can be loaded are, .* llama .*, t5gemma2 "),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_configs_of_other_networks(made, rewritten, tmp_path, name, changes, words):
    with pytest.raises(CheckpointError, match=words):
        load_huggingface(rewritten(made(name)[1], tmp_path / "it", **changes))


def test_settings_that_no_family_has(tmp_path):
    for name, fields in (
        ("llama", {"query_key_norms": True, "biases": "qkv"}),
        ("marian", {"positions": "tensor2tensor"}),
        ("whisper", {"scaled_embedding": True}),
        ("whisper", {"layer_norm_epsilon": 1e-3}),
        ("whisper", {"encoder": dataclasses.replace(EVERY["whisper"].encoder, activation="relu")}),
    ):
        config = changed(EVERY[name], **fields)
        with pytest.raises(CheckpointError, match="No family of transformers has these settings"):
            save_huggingface(tmp_path / name, config, jax.device_get(random_params(config, 0)))


def test_pairs_that_do_not_go_together(made):
    with pytest.raises(ValueError, match="texts have another vocabulary than its outputs"):
        specdec.load_pair(target=made("marian_apart")[1], draft=specdec.Copying())
    one, other = made("gpt2")[1], made("t5")[1]
    with pytest.raises(ValueError, match=r"is decoder-only, the draft .* encoder-decoder"):
        specdec.load_pair(target=one, draft=other)
    with pytest.raises(ValueError, match=r"is an encoder-decoder, the draft .* decoder-only"):
        specdec.load_pair(target=other, draft=one)


def test_texts_and_outputs_longer_than_the_positions(made):
    bart, gpt = (
        specdec.load_pair(target=made(name)[1], draft=specdec.Copying())
        for name in ("bart", "gpt2")
    )
    with pytest.raises(ValueError, match="text 0 has 81 tokens, more than the model's 80 pos"):
        bart.generate([[5] * 81], max_decode_len=8)
    with pytest.raises(ValueError, match=r"max_decode_len = 81 .* more than the model's 80 pos"):
        bart.generate([[5, 2]], max_decode_len=81)
    with pytest.raises(ValueError, match=r"text 0 has 77 tokens; .* more than the model's 96 pos"):
        gpt.generate([[5] * 77], max_decode_len=20)


def test_parameters_are_read_when_used_and_their_file_is_not_kept_open(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path / "model", config, jax.device_get(random_params(config, 0)))
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    weights["decoder.final_layer_norm.weight"][0] = np.nan
    save_file(weights, path, metadata={"format": "pt"})
    opened, params = open_huggingface(tmp_path / "model")
    assert opened == config
    head = params["decoder"]["logits_dense"]["kernel"]
    np.testing.assert_array_equal(np.asarray(head), weights["lm_head.weight"].T)
    with pytest.raises(CheckpointError, match=r"decoder.final_layer_norm.weight holds NaN"):
        np.asarray(params["decoder"]["decoder_norm"]["scale"])
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read"):
        np.asarray(head)


@pytest.fixture
def llama(made, rewritten, tmp_path):
    """As transformers writes it: what specdec wrote is read without transformers."""
    return rewritten(made("llama")[1], tmp_path / "llama")


def test_nothing_that_a_file_names_is_run_or_fetched(llama, monkeypatch, capfd):
    """A directory with code of its own is a Llama's; the network is not asked, and nothing said."""
    import socket

    raw = json.loads((llama / CONFIG).read_text())
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "other/place--own.Own"}
    families.edit(
        llama, auto_map=classes, custom_generate="own", pad_token_id=-1,
        rope_parameters=raw["rope_parameters"] | {"x": 1},
    )  # fmt: skip
    (llama / "own.py").write_text("raise SystemExit('run')")

    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    capfd.readouterr()
    load_huggingface(llama)
    assert capfd.readouterr() == ("", "")


def test_only_directories_of_hugging_face_import_transformers(llama, tmp_path):
    """And those import no torch, which need not be installed."""
    code = f"""
import importlib.util, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else found(name, *a)
import shutil, specdec
from specdec.checkpoints import load_huggingface, save_t5x
from specdec.checkpoints.loading import bundled
def seen(): return [n for n in ("transformers", "torch", "tensorflow") if n in sys.modules]
source = bundled("quickstart") / "target"
t5x = {str(tmp_path / "t5x")!r}
save_t5x(t5x, *load_huggingface(source), 1)
shutil.copy(source / "spiece.model", t5x)
copying = {{"target": t5x, "draft": specdec.Copying()}}
for given in ({{"name": "quickstart"}}, copying):
    words = specdec.load_pair(**given).vocabulary
    assert words.decode(words.encode("the house", add_eos=True)) == "the house"
print(seen())
pair = specdec.load_pair(target={str(llama)!r}, draft=specdec.Copying())
print(seen(), len(pair.generate([[3, 4, 5]], max_decode_len=4).tokens[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "['transformers'] 4"], done.stderr
    assert "PyTorch" not in done.stderr
