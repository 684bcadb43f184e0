"""Tiny checkpoints on disk, pairs of them, and texts."""

import jax
import numpy as np
from tiny import TINY, TINY_GPT, changed, random_params

import specdec
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.huggingface import save_huggingface
from specdec.models.heads.config import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig

V = 19


def write(root):
    """A T5 with a draft and heads, and a GPT."""
    gpt = changed(TINY_GPT["gpt"], max_positions=128)
    made = {"t5": (TINY["v1.1"], 3), "draft": (TINY["v1.0"], 1), "gpt": (gpt, 3)}
    for name, (config, seed) in made.items():
        save_huggingface(root / name, config, jax.device_get(random_params(config, seed)))
    width, target = TINY["v1.1"].d_model, jax.device_get(random_params(TINY["v1.1"], 3))
    heads = {"medusa": HeadsConfig("medusa", 2, width), "look-ahead": LookAheadConfig(2, width)}
    for name, shape in heads.items():
        save_heads(root / name, shape, init_params(shape, jax.random.key(0)), target)


def pair_of(paths, target, draft):
    """A target and a draft, which is a name or a spec."""
    model = str(paths["draft"])
    named = {
        "draft": model, "itself": str(paths[target]),
        "merged": specdec.Merged((model, specdec.Copying())),
        "hierarchical": specdec.Hierarchical(model, specdec.Copying()),
        **{name: specdec.Heads(str(paths[name])) for name in ("medusa", "look-ahead")},
    }  # fmt: skip
    made = named[draft] if isinstance(draft, str) else draft
    return specdec.load_pair(target=paths[target], draft=made)


def texts(count, seed=0, least=1, most=14):
    generator = np.random.default_rng(seed)
    return [
        np.array([*generator.integers(2, V, size), 1], np.int32)
        for size in generator.integers(least, most, count)
    ]
