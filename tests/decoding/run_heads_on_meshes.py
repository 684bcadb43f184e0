"""Decodes with heads on 8 simulated devices: python run_heads_on_meshes.py DIRECTORY.

Writes report.json for test_heads_meshes.py.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from run_on_meshes import BATCH, CONFIGS, LIMIT, MESHES, ROWS, SEED, SEEDS, V
from tiny import ragged_inputs, random_params

from specdec import Heads, SamplingConfig, load_pair
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.heads import init_params, save_heads
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.network import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig

WIDTH = CONFIGS["target"].d_model
HEADS = {
    "medusa": HeadsConfig("medusa", 3, WIDTH),
    "eagle": EagleConfig(WIDTH, 16, 2, 8, 24, reads_encoding=True),
    "look-ahead": LookAheadConfig(2, WIDTH),
}
WAYS = {
    "greedy": {"gamma": 3, "sampling": SamplingConfig(0.0)},
    "a sampled tree": {"tree": (2, 1), "sampling": SamplingConfig(1.0)},
}


def main(directory: Path) -> None:
    target, params = directory / "target", random_params(CONFIGS["target"], SEEDS["target"])
    save_huggingface(target, CONFIGS["target"], params)
    texts = [[t for t in row if t] for row in np.asarray(ragged_inputs(ROWS, 12, V)).tolist()]
    decodes = {}
    for kind, shape in HEADS.items():
        save_heads(directory / kind, shape, init_params(shape, jax.random.key(0)), params)
        for mesh in ("one device", "1x8", "2x4"):
            pair = load_pair(target=target, draft=Heads(str(directory / kind)), mesh=MESHES[mesh])
            for way, options in WAYS.items():
                out = pair.generate(
                    texts, max_decode_len=LIMIT, batch_size=BATCH, seed=SEED, **options
                )
                decodes[f"{mesh}, {kind}, {way}"] = {
                    "tokens": [row.tolist() for row in out.tokens],
                    "accepted": out.stats.accepted,
                    "target_calls": out.stats.target_calls,
                }
    report = {"devices": jax.device_count(), "decodes": decodes}
    (directory / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
