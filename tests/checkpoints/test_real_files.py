"""Files as they travel: fields left out, leftovers of older versions; and what reading imports.

transformers reads the same directories; log-probabilities are compared.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from log_probs import assert_same_log_probs
from safetensors.numpy import load_file, save_file
from slow import slow

import specdec
from specdec.checkpoints import CheckpointError, load_huggingface
from specdec.checkpoints.hf_files import CONFIG

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 8, "max_position_embeddings": 128,
}  # fmt: skip
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# The class, fields, those that the file leaves out, and those that it has then.
FILES = {
    "llama, no pad": ("Llama", {}, ("num_key_value_heads", "head_dim"), {"pad_token_id": -1}),
    "llama 3.1": (
        "Llama", {}, ("rope_parameters",),
        {"rope_scaling": LLAMA_3, "rope_theta": 500.0, "original_max_position_embeddings": 32},
    ),
    "qwen2": (
        "Qwen2", {"num_key_value_heads": 8}, ("layer_types", "rope_parameters"),
        {"rope_theta": 500.0},
    ),
    "qwen3, no head_dim": ("Qwen3", {"num_key_value_heads": 8}, ("head_dim",), {}),
    "gemma2, no head_dim": (
        "Gemma2", {}, ("head_dim", "num_key_value_heads", "layer_types", "eos_token_id"),
        {"pad_token_id": None},
    ),
    "gemma3": (
        "Gemma3Text", {"head_dim": 8}, ("rope_parameters", "layer_types"),
        {"rope_theta": 500.0, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2,
         "sliding_window": 5, "pad_token_id": -1},
    ),
}  # fmt: skip


def rewrite(directory, change):
    path = directory / CONFIG
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def add(directory, names, value=1.0):
    path = directory / "model.safetensors"
    save_file(load_file(path) | dict.fromkeys(names, np.full(3, value, "f4")), path)


@pytest.fixture
def made(torch, tmp_path):
    """A function of a class and fields: the directory of a model that tells something."""
    import transformers

    def made(kind, **fields):
        transformers.logging.disable_progress_bar()
        config = getattr(transformers, f"{kind}Config")(**fields)
        model = transformers.AutoModelForCausalLM.from_config(config)
        torch.manual_seed(0)
        for weight in model.parameters():
            weight.data.add_(torch.randn(weight.shape) * (0.3 if weight.ndim < 2 else 0.15))
        model.save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").unlink()
        return tmp_path

    return made


@pytest.mark.parametrize("name", FILES)
def test_fields_left_out_are_those_of_the_class(made, name):
    kind, fields, gone, there = FILES[name]
    directory = made(kind, **SMALL | fields)
    rewrite(directory, lambda raw: {n: v for n, v in raw.items() if n not in gone} | there)
    assert_same_log_probs(directory, directory, (1, 40))


LEFT = {
    "Llama": ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"],
    "Qwen2": ["model.layers.1.self_attn.rotary_emb.cos_cached", "model.rotary_emb.inv_freq"],
    "Qwen3": ["model.rotary_emb.original_inv_freq"],
    "Gemma2": ["model.layers.0.self_attn.rotary_emb.inv_freq"],
    "Gemma3Text": ["model.rotary_emb_local.inv_freq", "model.embed_tokens.embed_scale"],
    "GPT2": ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
}
OWN = {"Qwen2": {"num_key_value_heads": 8}, "Qwen3": {"num_key_value_heads": 8}}
OWN["GPT2"] = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
} | dict.fromkeys(("bos_token_id", "eos_token_id"), 1)


@pytest.mark.parametrize("kind", [kind if kind != "Qwen2" else slow(kind) for kind in LEFT])
def test_leftovers_are_passed_over(made, kind):
    directory = made(kind, **({} if kind == "GPT2" else SMALL) | OWN.get(kind, {}))
    before = load_huggingface(directory)
    add(directory, LEFT[kind])
    config, params = load_huggingface(directory)
    assert config == before[0]
    assert jax_equal(params, before[1])
    add(directory, ["model.layers.0.self_attn.rotary_emb.weight"])
    with pytest.raises(CheckpointError, match="unexpected parameter model"):
        load_huggingface(directory)


def jax_equal(a, b):
    import jax

    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_layers_that_differ_are_refused(made):
    directory = made("Llama", **SMALL)
    rewrite(directory, lambda raw: raw | {"per_layer_config": {"0": {"hidden_act": "relu"}}})
    with pytest.raises(CheckpointError, match=r"config.json: per_layer_config is not supported"):
        load_huggingface(directory)


def test_nothing_that_a_file_names_is_run_or_fetched(made, monkeypatch, capfd):
    """A directory with code of its own is a Llama's; the network is not asked, and nothing said."""
    import socket

    directory = made("Llama", **SMALL)
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "other/place--own.Own"}
    rewrite(
        directory,
        lambda raw: raw | {"auto_map": classes, "custom_generate": "own", "pad_token_id": -1,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "x": 1}},
    )  # fmt: skip
    (directory / "own.py").write_text("raise SystemExit('run')")

    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    capfd.readouterr()
    load_huggingface(directory)
    assert capfd.readouterr() == ("", "")


def test_only_directories_of_hugging_face_import_transformers(made):
    """And those import no torch. It is there for who needs it."""
    directory = made("Llama", **SMALL)
    code = f"""
import sys, specdec
from specdec.checkpoints import load_huggingface, open_checkpoint
def seen(): return [n for n in ("transformers", "torch") if n in sys.modules]
pair = specdec.load_pair("quickstart")
specdec.load_pair("quickstart_lm")
print(seen())
open_checkpoint({str(directory)!r})
print(seen())
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(directory)!r})
print(seen(), model.dtype, model(model.dummy_inputs["input_ids"] % 61).logits.shape[-1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[]", "['transformers']", "['transformers', 'torch'] torch.float32 61"
    ], done.stderr  # fmt: skip


def test_without_torch(made):
    """Where it is not installed."""
    directory = made("Llama", **SMALL)
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else found(name, *a)
import specdec
pair = specdec.load_pair(target={str(directory)!r}, draft=specdec.Copying())
print(len(pair.generate([[3, 4, 5]], max_decode_len=4).tokens[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "4\n", done.stderr
    assert "PyTorch" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "name"), [("Llama", "AutoModelForCausalLM"), ("T5", "AutoModelForSeq2SeqLM")]
)
def test_messages_speak_of_the_family(tmp_path, kind, name):
    (tmp_path / CONFIG).write_text(json.dumps({"model_type": kind.lower()}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        specdec.load_pair(target=tmp_path, draft=specdec.Copying())
    assert f"transformers, {name}.from_pretrained" in str(caught.value)
    other = {"AutoModelForCausalLM", "AutoModelForSeq2SeqLM"} - {name}
    assert not any(each in str(caught.value) for each in other)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        load_huggingface(tmp_path)
    assert f"peft.{name.replace('Auto', 'AutoPeft')}.from_pretrained" in str(caught.value)
    assert not any(each.replace("Auto", "AutoPeft") in str(caught.value) for each in other)
