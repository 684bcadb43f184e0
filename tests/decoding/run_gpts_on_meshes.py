"""GPTs on 8 simulated devices, for test_gpt_meshes.py: python run_gpts_on_meshes.py DIRECTORY.

Writes report.json.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from run_on_meshes import shards
from tiny import random_gpt_params

from specdec import DeviceMesh, SamplingConfig, load_pair
from specdec.checkpoints import save_huggingface
from specdec.models.gpt.config import GPTConfig
from specdec.models.partitioning import T5X_RULES

TOKENS = {"eos_id": 1, "start_id": 2, "max_positions": 48}
CONFIGS = {
    "target": GPTConfig(vocab_size=64, d_model=32, num_layers=2, num_heads=8, d_ff=48, **TOKENS),
    "draft": GPTConfig(vocab_size=64, d_model=16, num_layers=1, num_heads=2, d_ff=20, **TOKENS),
    # As GPT-2's own 50,257 tokens, no mesh divides these.
    "prime": GPTConfig(vocab_size=61, d_model=24, num_layers=1, num_heads=4, d_ff=20, **TOKENS),
    "six_heads": GPTConfig(vocab_size=64, d_model=24, num_layers=1, num_heads=6, d_ff=24, **TOKENS),
}
SEEDS = {"target": 3, "draft": 1, "prime": 0, "six_heads": 0}
WHOLE_VOCABULARY = tuple(rule for rule in T5X_RULES if rule[0] != "vocab")
MESHES = {"one device": None, "1x8": DeviceMesh(1, 8), "2x4": DeviceMesh(2, 4)}
WAYS = {
    "plain": {"method": "autoregressive"},
    "greedy": {"gamma": 3},
    "sampled": {"gamma": 3, "sampling": SamplingConfig(1.0)},
}
ROWS, BATCH, LIMIT = 128, 64, 24
# Of each length from none on; the longest one fills the last of the model's positions.
PROMPTS = [np.random.default_rng(row).integers(3, 61, row % 25).tolist() for row in range(ROWS)]


def main(directory: Path) -> None:
    for name, config in CONFIGS.items():
        save_huggingface(directory / name, config, random_gpt_params(config, SEEDS[name]))
    report = {"devices": jax.device_count(), "decodes": {}, "shards": {}}
    for mesh_name, mesh in MESHES.items():
        pair = load_pair(target=directory / "target", draft=directory / "draft", mesh=mesh)
        report["shards"][mesh_name] = {
            "target": shards(pair.target.params), "draft": shards(pair.draft.weights),
        }  # fmt: skip
        for way, options in WAYS.items():
            report["decodes"][f"{mesh_name}, {way}"] = decoded(pair, **options)
    # The prime vocabulary drafts for itself.
    rules = {"target_rules": WHOLE_VOCABULARY}
    for mesh_name, mesh in {"one device": None, "2x4": DeviceMesh(2, 4, **rules)}.items():
        pair = load_pair(target=directory / "prime", draft=directory / "prime", mesh=mesh)
        report["decodes"][f"{mesh_name}, prime"] = decoded(pair, gamma=3)
    report["errors"] = {name: said(directory, name) for name in ("prime", "six_heads")}
    (directory / "report.json").write_text(json.dumps(report))


def decoded(pair, **options) -> dict:
    """Tokens and counts."""
    out = pair.generate(PROMPTS, max_decode_len=LIMIT, batch_size=BATCH, seed=7, **options)
    stats = out.stats
    return {
        "tokens": [row.tolist() for row in out.tokens],
        "accepted": stats.accepted,
        "target_calls": stats.target_calls,
    }


def said(directory: Path, name: str) -> str:
    """What is said of a target that 8 devices do not divide."""
    try:
        load_pair(target=directory / name, draft=directory / "draft", mesh=DeviceMesh(1, 8))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
