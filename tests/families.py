"""Families of checkpoints: a row each, from which transformers' own small model is made.

A new family needs a row here; checkpoints/test_every_family.py holds it to transformers' numbers,
reads what is written, and decodes with it.
"""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

VOCABULARY = 61
ENDS = (7, 11, 19, 20)  # They end an output, too, so that rows end apart.


@dataclasses.dataclass(frozen=True)
class Family:
    """A model of transformers.

    Args:
      kind: its class.
      fields: its configuration; of T5Gemma the encoder's and the decoder's.
      generation: what its generation_config.json says.
      own_head: the head is not the embedding, whatever the configuration says.
      gone: fields that its config.json does not have, as in files of other versions.
      there: fields that it has then.
      tied: of T5Gemma, whose two configurations do not say it.
    """

    kind: str
    fields: Any
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    own_head: bool = False
    gone: tuple[str, ...] = ()
    there: dict[str, Any] = dataclasses.field(default_factory=dict)
    tied: bool = True


UNTIED = {"tie_word_embeddings": False}
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
    "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
_GELU = _T5 | UNTIED | {"feed_forward_proj": "gated-gelu"}
_SILU = {"feed_forward_proj": "gated-silu", "dense_act_fn": "silu", "is_gated_act": True}
_UNSAID = ("scale_decoder_outputs",)  # As all files of transformers 4.
T5S = {
    "t5": Family("T5ForConditionalGeneration", _T5),
    "t5_v1.1": Family("T5ForConditionalGeneration", _GELU, own_head=True),
    "t5_odd": Family(
        "T5ForConditionalGeneration",
        _GELU | {
            "num_layers": 1, "num_decoder_layers": 3, "num_heads": 3, "d_kv": 16,
            "relative_attention_num_buckets": 12, "relative_attention_max_distance": 20,
            "layer_norm_epsilon": 0.3, "pad_token_id": 2, "eos_token_id": 7,
            "decoder_start_token_id": 5,
        },
        own_head=True,
    ),
    "t5_scaled": Family("T5ForConditionalGeneration", _T5, own_head=True),
    "t5_unscaled": Family("T5ForConditionalGeneration", _GELU | {"num_heads": 2}),
    "t5_gelu_new": Family("T5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gelu_new"}),
    "ul2": Family(
        "T5ForConditionalGeneration", _T5 | UNTIED | _SILU, own_head=True, gone=_UNSAID,
        there={"n_positions": 512, "output_past": True},
    ),
    "madlad400": Family(
        "T5ForConditionalGeneration", _GELU | {"pad_token_id": 1, "eos_token_id": 2},
        own_head=True, gone=(*_UNSAID, "num_decoder_layers", "relative_attention_max_distance",
                             "is_gated_act", "dense_act_fn", "layer_norm_epsilon"),
    ),
    "codet5p": Family(
        "T5ForConditionalGeneration", _T5 | {"bos_token_id": 1, "eos_token_id": 2}, gone=_UNSAID,
        there={"gradient_checkpointing": False},
    ),
    "mt5": Family("MT5ForConditionalGeneration", _GELU, own_head=True, gone=_UNSAID),
    "mt5_tied": Family("MT5ForConditionalGeneration", _T5),
    "umt5": Family(
        "UMT5ForConditionalGeneration", _GELU, own_head=True, gone=("model_type",),
        there={"scalable_attention": True},
    ),
    "umt5_tied": Family("UMT5ForConditionalGeneration", _T5),
}  # fmt: skip

_BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "max_position_embeddings": 80, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "eos_token_id": 2, "pad_token_id": 1,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_ODD = _BART | {
    "vocab_size": 53, "d_model": 18, "encoder_layers": 1, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29, "max_position_embeddings": 77,
}  # fmt: skip
_TWICE = {"no_repeat_ngram_size": 2}  # Else many outputs would soon be one token alone.
BARTS = {
    "bart": Family(
        "BartForConditionalGeneration", _BART, _TWICE | {"forced_bos_token_id": 0}
    ),
    "bart_odd": Family(
        "BartForConditionalGeneration",
        _ODD | UNTIED | {"scale_embedding": True, "activation_function": "gelu_new"},
        _TWICE | {"forced_eos_token_id": 2},
    ),
    "mbart": Family("MBartForConditionalGeneration", _BART | {"scale_embedding": True}, _TWICE),
    "mbart_odd": Family(
        "MBartForConditionalGeneration",
        _ODD | {"decoder_start_token_id": 44, "activation_function": "relu"}, _TWICE,
    ),
    "m2m_100": Family(
        "M2M100ForConditionalGeneration", _BART,
        _TWICE | {"forced_bos_token_id": 41, "suppress_tokens": [1]},
    ),
    "m2m_100_odd": Family(
        "M2M100ForConditionalGeneration",
        _ODD | {"scale_embedding": False, "activation_function": "gelu", "pad_token_id": 4},
        _TWICE | {"suppress_tokens": [4]},
    ),
    "marian": Family(
        "MarianMTModel",
        _ODD | {
            "pad_token_id": 52, "decoder_start_token_id": 52, "eos_token_id": 0,
            "scale_embedding": True, "activation_function": "swish",
        },
        _TWICE | {
            "bad_words_ids": [[52]], "renormalize_logits": True, "forced_eos_token_id": 0,
        },
    ),
    "marian_apart": Family(
        "MarianMTModel",
        _BART | {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47,
            "pad_token_id": 46, "decoder_start_token_id": 46, "eos_token_id": 0,
        },
        _TWICE | {"bad_words_ids": [[46]]},
    ),
    "pegasus": Family(
        "PegasusForConditionalGeneration",
        _BART | {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1,
                 "scale_embedding": True, "activation_function": "relu"},
        {"no_repeat_ngram_size": 3},
    ),
    "pegasus_odd": Family("PegasusForConditionalGeneration", _ODD | UNTIED, _TWICE),
}  # fmt: skip

_WHISPER = {
    "vocab_size": VOCABULARY, "num_mel_bins": 6, "d_model": 32, "max_source_positions": 20,
    "max_target_positions": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 2,
    "decoder_start_token_id": 3, "begin_suppress_tokens": None,
}  # fmt: skip
_NOT_AT_FIRST = _TWICE | {"begin_suppress_tokens": [2, 30], "suppress_tokens": [5, 8]}
WHISPERS = {
    "whisper": Family("WhisperForConditionalGeneration", _WHISPER, _NOT_AT_FIRST),
    "whisper_odd": Family(
        "WhisperForConditionalGeneration",
        _WHISPER | {
            "vocab_size": 53, "num_mel_bins": 7, "d_model": 18, "max_source_positions": 9,
            "max_target_positions": 43, "encoder_layers": 1, "decoder_layers": 3,
            "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 29,
            "decoder_ffn_dim": 29, "activation_function": "relu", "pad_token_id": 1,
        },
        _TWICE,
    ),
    "whisper_untied": Family(
        "WhisperForConditionalGeneration", _WHISPER | UNTIED | {"decoder_layers": 1}, _TWICE
    ),
}  # fmt: skip

_GPT = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 1, "n_positions": 96}
GPTS = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        _GPT | {"n_embd": 128, "n_layer": 3, "n_head": 2, "vocab_size": VOCABULARY},
    ),
    "gpt2_odd": Family(
        "GPT2LMHeadModel",
        _GPT | {"n_embd": 27, "n_layer": 3, "n_head": 3, "vocab_size": 53, "n_inner": 41,
                "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    ),
    "gpt2_untied": Family(
        "GPT2LMHeadModel",
        _GPT | UNTIED | {"n_embd": 16, "n_layer": 1, "n_head": 1, "vocab_size": VOCABULARY,
                         "activation_function": "relu"},
    ),
}  # fmt: skip

_TOKENS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
_LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128, **_TOKENS,
}  # fmt: skip
# Queries have keys of their own, and heads are not as wide together as the stream.
_WHOLE = _LLAMA | {
    "vocab_size": 47, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 12,
}  # fmt: skip
# As wide as files that do not say it have them.
_PLAIN = _LLAMA | {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4}
_TIED = {"tie_word_embeddings": True}
_WINDOW = {"sliding_window": 5}
_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0, "query_pre_attn_scalar": 16}
_NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
_LLAMA_3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def _ropes(full, **more):
    local = {"rope_type": "default", "rope_theta": 100.0}
    full = {"rope_type": "default", "rope_theta": full, **more}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": local}}


_GEMMA_3 = _WINDOW | {"query_pre_attn_scalar": 16, "sliding_window_pattern": 2}
ROTARY = {
    "llama": Family(
        "LlamaForCausalLM", _LLAMA | {"rope_parameters": _LLAMA_3 | {"rope_theta": 500.0}}
    ),
    "llama_whole": Family("LlamaForCausalLM", _WHOLE | _TIED),
    "qwen2": Family("Qwen2ForCausalLM", _LLAMA | _TIED | {"hidden_size": 32}),
    "qwen2_whole": Family(
        "Qwen2ForCausalLM",
        _WHOLE | _WINDOW | {"hidden_size": 24, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": Family("Qwen3ForCausalLM", _LLAMA),
    "qwen3_whole": Family("Qwen3ForCausalLM", _WHOLE | _TIED),
    "mistral": Family("MistralForCausalLM", _LLAMA | _WINDOW),
    "mistral_whole": Family("MistralForCausalLM", _WHOLE | _TIED | {"sliding_window": None}),
    "gemma2": Family("Gemma2ForCausalLM", _LLAMA | _WINDOW | _CAPS),
    "gemma2_whole": Family(
        "Gemma2ForCausalLM", _WHOLE | {"sliding_window": 8} | _NO_CAPS | UNTIED
    ),
    "gemma3": Family("Gemma3ForCausalLM", _LLAMA | _GEMMA_3 | _ropes(1e4)),
    "gemma3_whole": Family(
        "Gemma3ForCausalLM",
        _WHOLE | _GEMMA_3 | UNTIED | _ropes(1e3, rope_type="linear", factor=8.0)
        | {"final_logit_softcapping": 5.0},
    ),
    "t5gemma": Family(
        "T5GemmaForConditionalGeneration",
        (_LLAMA | _WINDOW | _CAPS, _LLAMA | _WINDOW | _CAPS | {
            "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1
        }),
    ),
    "t5gemma_whole": Family(
        "T5GemmaForConditionalGeneration",
        (_WHOLE | {"sliding_window": 4} | _NO_CAPS, _WHOLE | _WINDOW | _NO_CAPS), tied=False,
    ),
    "t5gemma2": Family(
        "T5Gemma2ForConditionalGeneration",
        (_LLAMA | _GEMMA_3 | _ropes(1e4), _LLAMA | _GEMMA_3 | _ropes(1e4)),
    ),
    "t5gemma2_whole": Family(
        "T5Gemma2ForConditionalGeneration",
        (_WHOLE | _GEMMA_3 | _ropes(1e3) | {"sliding_window": 4},
         _WHOLE | _GEMMA_3 | _ropes(1e3) | {"sliding_window": 6}),
    ),
    # Files of other versions: fields left out, which are then those of the class.
    "llama, no pad": Family(
        "LlamaForCausalLM", _PLAIN, gone=("num_key_value_heads", "head_dim"),
        there={"pad_token_id": -1},
    ),
    "llama 3.1": Family(
        "LlamaForCausalLM", _PLAIN, gone=("rope_parameters",),
        there={"rope_scaling": _LLAMA_3, "rope_theta": 500.0},
    ),
    "qwen2, no rope": Family(
        "Qwen2ForCausalLM", _PLAIN, gone=("layer_types", "rope_parameters"),
        there={"rope_theta": 500.0},
    ),
    "gemma2, no layers": Family(
        "Gemma2ForCausalLM", _LLAMA, gone=("layer_types", "eos_token_id"),
        there={"pad_token_id": None},
    ),
    "gemma3, no layers": Family(
        "Gemma3ForCausalLM", _LLAMA, gone=("rope_parameters", "layer_types"),
        there={"rope_theta": 500.0, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2,
               "sliding_window": 5, "pad_token_id": -1},
    ),
}  # fmt: skip
FAMILIES = {**T5S, **BARTS, **WHISPERS, **GPTS, **ROTARY}


def random_model(name: str, seed: int = 0) -> Any:
    """transformers' own model of a row, in which every weight matters and logits spread."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    family, generator = FAMILIES[name], torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = _made(transformers, family)
    if family.own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    config = model.config.get_text_config(decoder=True)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            _fill(weight, path, name, config, generator)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.5, generator=generator)
    ends = list(dict.fromkeys((model.config.eos_token_id, *ENDS)))
    for field, value in {"eos_token_id": ends, **family.generation}.items():
        setattr(model.generation_config, field, value)
    return model


def _made(transformers: Any, family: Family) -> Any:
    kind = getattr(transformers, family.kind)
    if family.kind.startswith("T5Gemma"):
        encoder, decoder = map(copy.deepcopy, family.fields)
        more = {"vocab_size": encoder["vocab_size"], "tie_word_embeddings": family.tied, **_TOKENS}
        if family.kind.startswith("T5Gemma2"):
            vision = {
                "model_type": "siglip_vision_model", "hidden_size": 4, "intermediate_size": 4,
                "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 4,
            }  # fmt: skip
            encoder = {"text_config": encoder, "vision_config": vision, "mm_tokens_per_image": 4}
        config = kind.config_class(encoder=encoder, decoder=decoder, **more)
    else:
        names = {"Gemma3ForCausalLM": transformers.Gemma3TextConfig}
        config = names.get(family.kind, kind.config_class)(**copy.deepcopy(family.fields))
    return kind._from_config(config, attn_implementation="eager").float().eval()


def _fill(weight: Any, path: str, name: str, config: Any, generator: Any) -> None:
    """Layers outweigh the embedding, or else every token would predict itself."""
    width = weight.shape[1:].numel()
    noise = {"generator": generator}
    if name in GPTS or name in ROTARY:
        wide = weight.ndim > 1 and "embed" not in path
        std = 1.5 * config.hidden_size**-0.5 if name in GPTS else width**-0.5 if wide else 0.3
        weight += weight.new_empty(weight.shape).normal_(std=std, **noise)
        if "gemma" in name and "post_" in path:
            weight += 4.0
    elif "norm" in path and path.endswith("weight"):
        weight.uniform_(0.5, 1.5, **noise)
    elif name in T5S and "lm_head" in path:
        scaled = getattr(config, "scale_decoder_outputs", False)  # mT5 has no such field.
        weight.normal_(std=3 if scaled else 3 * width**-0.5, **noise)
    elif name in T5S and ("shared" in path or "relative_attention_bias" in path):
        weight.normal_(std=1.0, **noise)
    elif name in T5S and path.endswith((".q.weight", ".k.weight")):
        weight.normal_(std=(config.d_model * config.d_kv**0.5) ** -0.5, **noise)
    elif name in T5S:
        outer = path.endswith((".o.weight", ".wo.weight"))
        weight.normal_(std=(3 if outer else 1) * width**-0.5, **noise)
    elif path.endswith("bias"):
        weight.normal_(std=0.2, **noise)
    elif "embed_positions" in path:
        if "bart" in name or name in WHISPERS:  # Sines stay as they are.
            weight.normal_(std=1.0, **noise)
    elif "embed_tokens" in path or "shared" in path or "lm_head" in path:
        weight.normal_(std=2.5 * width**-0.5, **noise)
    else:
        outer = path.endswith(("out_proj.weight", "fc2.weight"))
        weight.normal_(std=(4 if outer else 2) * width**-0.5, **noise)


def save(model: Any, name: str, directory: Path) -> Path:
    """A directory that transformers writes, its config.json as the row has it."""
    model.save_pretrained(directory)
    edit(directory, FAMILIES[name].gone, **FAMILIES[name].there)
    return directory


def edit(directory: Path, gone: tuple[str, ...] = (), **there: Any) -> None:
    """Changes fields of config.json."""
    path = directory / "config.json"
    raw = {
        field: value for field, value in json.loads(path.read_text()).items() if field not in gone
    }
    path.write_text(json.dumps(raw | there))


def read(model: Any, directory: Path) -> Any:
    """What transformers reads from a directory, in float32."""
    import torch

    # Read in bfloat16 and then widened, sines and the root of d_model would stay rounded.
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return type(model).from_pretrained(directory, **options).eval()
