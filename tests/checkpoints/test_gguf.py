"""GGUF files: what transformers reads in them. Small ones are written here."""

import importlib.util

import numpy as np
import pytest
from log_probs import assert_same_log_probs

import specdec
from specdec.checkpoints import CheckpointError, find_vocabulary, load_huggingface

pytestmark = pytest.mark.filterwarnings("ignore")

D, H, G, F, LAYERS = 64, 4, 2, 96, 2
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a"]


def write(path, name, kind="F32", tokens=True):
    """A Llama or a Qwen 2, as llama.cpp's converter names its parts; queries' rows are its own."""
    gguf = pytest.importorskip("gguf", reason="writes the files")
    writer, random = gguf.GGUFWriter(path, name), np.random.default_rng(0)
    writer.add_context_length(128)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(G)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    writer.add_vocab_size(len(PIECES))
    if name == "llama":
        writer.add_rope_dimension_count(D // H)
    if tokens:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(PIECES)
        writer.add_token_scores([-float(i) for i in range(len(PIECES))])
        writer.add_token_types([2, 3, 3, *[6] * 256, 1, 1, 1, 1])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
    kv = G * (D // H)
    shapes = {"token_embd": (len(PIECES), D), "output_norm": (D,), "output": (len(PIECES), D)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm": (D,), f"blk.{i}.ffn_norm": (D,), f"blk.{i}.attn_q": (D, D),
            f"blk.{i}.attn_k": (kv, D), f"blk.{i}.attn_v": (kv, D), f"blk.{i}.attn_output": (D, D),
            f"blk.{i}.ffn_gate": (F, D), f"blk.{i}.ffn_up": (F, D), f"blk.{i}.ffn_down": (D, F),
        }  # fmt: skip
    biases = {
        f"blk.{i}.attn_{x}.bias": (D if x == "q" else kv,) for i in range(LAYERS) for x in "qkv"
    }
    named = {f"{part}.weight": shape for part, shape in shapes.items()}
    for tensor, shape in (named | (biases if name == "qwen2" else {})).items():
        values = random.normal(0, 0.3, shape).astype("f4") + (len(shape) == 1)
        if len(shape) == 2 and kind != "F32":
            of = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(tensor, gguf.quants.quantize(values, of), raw_dtype=of)
        else:
            writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("name", "kind"), [("llama", "F32"), ("llama", "Q8_0"), ("qwen2", "Q4_0")])
def test_log_probs_of_transformers(torch, tmp_path, name, kind):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    from transformers import AutoModelForCausalLM

    path = write(tmp_path / "it.gguf", name, kind, tokens=False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="it.gguf", dtype=torch.float32)
    assert model.config.num_key_value_heads == G
    assert_same_log_probs(model.eval(), path, (1, 24))


def test_its_tokenizer_and_its_end(torch, tmp_path):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    path = write(tmp_path / "it.gguf", "llama", "Q8_0")
    assert load_huggingface(path)[0].eos_id == 2
    assert find_vocabulary(path).parent == find_vocabulary(str(path)).parent
    pair = specdec.load_pair(target=path, draft=specdec.Quantized())
    plain = pair.generate(["a b"], method="autoregressive", max_decode_len=8)
    fast = pair.generate(["a b"], gamma=3, max_decode_len=8)
    assert plain.texts == fast.texts
    assert load_huggingface(tmp_path)[0].eos_id == 2  # The only one in its directory.
    write(tmp_path / "that.gguf", "llama")
    with pytest.raises(CheckpointError, match=r"pass the path of one, such as .*it\.gguf"):
        specdec.load_pair(target=tmp_path, draft=specdec.Quantized())


@pytest.mark.parametrize("keep", [0, 100, -10])
def test_damaged(torch, tmp_path, keep):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    path = write(tmp_path / "it.gguf", "llama")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError) as caught:
        load_huggingface(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    (tmp_path / "it.gguf").write_bytes(b"GGUF")
    found, absent = importlib.util.find_spec, ("gguf", "accelerate")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in absent else found(name, *a)
    )
    with pytest.raises(CheckpointError, match="gguf is not installed: pip install"):
        load_huggingface(tmp_path / "it.gguf")
