"""A family on 8 simulated devices: python run_families_on_meshes.py DIRECTORY FAMILY.

Writes report.json for test_family_meshes.py.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from run_on_meshes import shards
from tiny import changed, random_params, sounds

from specdec import DeviceMesh, SamplingConfig, load_pair
from specdec.checkpoints import save_huggingface
from specdec.models.bart.config import BartConfig
from specdec.models.gpt.config import GPTConfig
from specdec.models.partitioning import T5X_RULES
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.whisper.config import WhisperConfig

TOKENS = {"vocab_size": 64, "eos_id": 1}
GPT = TOKENS | {"start_id": 2, "max_positions": 48}
# Several end an output, or greedy rows would not end apart.
ENDS = TOKENS | {"more_eos_ids": (7, 11, 19)}
BART = ENDS | {
    "max_positions": 48, "d_model": 32, "num_encoder_layers": 1, "num_heads": 4, "d_ff": 24,
    "pad_id": 0,
}  # fmt: skip
# Two queries share a key.
SHARED = {
    "d_model": 32, "num_heads": 8, "num_kv_heads": 4, "head_dim": 4, "d_ff": 24,
    "norms_after": True, "shifted_norms": True, "activation": "gelu",
}  # fmt: skip
WINDOWS = {"sliding": (True, False), "window": (4, 0)}
T5GEMMA2 = SHARED | WINDOWS | {"query_key_norms": True}
TARGETS = {
    "gpt": GPTConfig(d_model=32, num_layers=2, num_heads=8, d_ff=48, **GPT),
    # Biases, and an embedding of the encoder's own.
    "marian": BartConfig(
        num_decoder_layers=2, positions="sinusoidal", position_offset=0, embedding_norm=False,
        scaled_embedding=True, activation="silu", tied_logits=False, encoder_vocab_size=72,
        decoder_start_id=0, **BART,
    ),
    "whisper": WhisperConfig(
        **ENDS, features=5, d_model=32, num_encoder_layers=1, num_decoder_layers=2, num_heads=4,
        d_ff=24, encoder_positions=6, decoder_positions=48, pad_id=0, decoder_start_id=2,
    ),
    # An encoder of another width, with heads of its own.
    "t5gemma": RotaryConfig(
        **ENDS, **SHARED | WINDOWS, num_layers=2, attention_softcap=3.0, logits_softcap=5.0,
        scaled_embedding=True, shared_embedding=False, encoder=Stack(
            **SHARED | {"num_kv_heads": 8, "head_dim": 6, "d_model": 24}, num_layers=1,
            sliding=(True,), window=(4, 4), attention_softcap=4.0,
        ),
    ),
    "t5gemma2": RotaryConfig(
        **ENDS, **T5GEMMA2, num_layers=2, scaled_embedding=True, merged_attention=True,
        encoder=Stack(**T5GEMMA2 | {"window": (2, 3)}, num_layers=1),
    ),
}  # fmt: skip
DRAFTS = {
    "gpt": GPTConfig(d_model=16, num_layers=1, num_heads=2, d_ff=20, **GPT),
    **{family: changed(TARGETS[family], d_ff=8) for family in ("marian", "whisper")},
    **{family: changed(TARGETS[family], num_layers=1) for family in ("t5gemma", "t5gemma2")},
}
SEEDS = {"target": 3, "draft": 1, "prime": 0}
ALONE = "one device"
MESHES = {family: {ALONE: None, "2x2": DeviceMesh(2, 2)} for family in TARGETS}
MESHES["gpt"] = {ALONE: None, "1x8": DeviceMesh(1, 8), "2x4": DeviceMesh(2, 4)}
WAYS = {
    "plain": {"method": "autoregressive"},
    "greedy": {"gamma": 3},
    "sampled": {"gamma": 3, "sampling": SamplingConfig(1.0), "log_probs": True},
}
# GPTs alone: as GPT-2's own 50,257 tokens, no mesh divides these.
PRIME = GPTConfig(**GPT | {"vocab_size": 61}, d_model=24, num_layers=1, num_heads=4, d_ff=20)
WHOLE_VOCABULARY = tuple(rule for rule in T5X_RULES if rule[0] != "vocab")
ROWS, BATCH, LIMIT = 128, 64, 24
# Of each length from none on; the longest one fills the last of a GPT's positions.
PROMPTS = [np.random.default_rng(row).integers(3, 61, row % 25).tolist() for row in range(ROWS)]


def main(directory: Path, family: str) -> None:
    configs = {"target": TARGETS[family], "draft": DRAFTS[family]}
    if family == "gpt":
        configs |= {"prime": PRIME}
    for name, config in configs.items():
        params = random_params(config, SEEDS[name])
        params = jax.tree_util.tree_map_with_path(outweighing, params)
        save_huggingface(directory / name, config, jax.device_get(params))
    report = {"devices": jax.device_count(), "decodes": {}, "shards": {}}
    for mesh_name, mesh in MESHES[family].items():
        pair = load_pair(target=directory / "target", draft=directory / "draft", mesh=mesh)
        report["shards"][mesh_name] = {
            "target": shards(pair.target.params), "draft": shards(pair.draft.weights),
        }  # fmt: skip
        for way, options in WAYS.items():
            report["decodes"][f"{mesh_name}, {way}"] = decoded(pair, **options)
    if family == "gpt":
        # The prime vocabulary drafts for itself.
        rules = {"target_rules": WHOLE_VOCABULARY}
        for mesh_name, mesh in {ALONE: None, "2x4": DeviceMesh(2, 4, **rules)}.items():
            pair = load_pair(target=directory / "prime", draft=directory / "prime", mesh=mesh)
            report["decodes"][f"{mesh_name}, prime"] = decoded(pair, gamma=3)
        report["error"] = error_of(directory)
    (directory / "report.json").write_text(json.dumps(report))


def outweighing(path, array):
    """What layers add, several times as large, or else every token would predict itself."""
    return array + 4 if "post_" in jax.tree_util.keystr(path) else array


def decoded(pair, **options) -> dict:
    """Tokens, their log-probabilities and counts."""
    model = pair.target.model
    texts = PROMPTS if model.reads_prefix else [row for row in PROMPTS if row]
    texts += texts[: ROWS - len(texts)]
    if model.input_shape is not None:
        texts = list(sounds(ROWS, model.input_shape))
    out = pair.generate(texts, max_decode_len=LIMIT, batch_size=BATCH, seed=7, **options)
    stats = out.stats
    return {
        "tokens": [row.tolist() for row in out.tokens],
        "log_probs": [row.tolist() for row in out.log_probs or ()],
        "accepted": stats.accepted,
        "target_calls": stats.target_calls,
    }


def error_of(directory: Path) -> str:
    """The error of a target whose vocabulary 8 devices do not divide."""
    try:
        load_pair(target=directory / "prime", draft=directory / "draft", mesh=DeviceMesh(1, 8))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
