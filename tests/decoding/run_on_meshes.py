"""Decodes on 8 simulated devices, for test_meshes.py: python run_on_meshes.py DIRECTORY PART.

Writes report.json, and <program>.hlo for programs as they were compiled. PART is one of PARTS.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from tiny import ragged_inputs, random_params

from specdec import BeamConfig, DeviceMesh, SamplingConfig, TraversalVerifier, Tree, load_pair
from specdec.checkpoints import save_huggingface
from specdec.decoding import loop
from specdec.decoding.batches import Batch
from specdec.decoding.loop import decode
from specdec.models.partitioning import REPLICATED_RULES, T5X_RULES
from specdec.models.t5.config import T5Config

V = 64
CONFIGS = {
    "target": T5Config(
        vocab_size=V, d_model=32, num_encoder_layers=1, num_decoder_layers=2, num_heads=8,
        head_dim=4, d_ff=48,
    ),
    "draft": T5Config(
        vocab_size=V, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=8,
        head_dim=2, d_ff=32, activation="relu", gated=False, tied_logits=True,
    ),
    "six_heads": T5Config(
        vocab_size=V, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=6,
        head_dim=2, d_ff=20,
    ),
}  # fmt: skip
SEEDS = {"target": 3, "draft": 1, "six_heads": 0}
# T5X's rules with parameters cut in two dimensions: d_model by the data axis.
TWO_DIMENSIONS = (*(rule for rule in T5X_RULES if rule[0] != "embed"), ("embed", "data"))
MESHES = {
    "one device": None,
    "1x8": DeviceMesh(1, 8),
    "2x4": DeviceMesh(2, 4),
    "8x1": DeviceMesh(8, 1),
    "1x8, draft as target": DeviceMesh(1, 8, draft_rules=T5X_RULES),
    "2x4, in two dimensions": DeviceMesh(2, 4, target_rules=TWO_DIMENSIONS),
}
GAMMA, SAMPLED = 3, SamplingConfig(1.0)
TREES = {
    "a tree": {"tree": (2, 1)},
    "a tree from its leaves": {"tree": (2, 1), "verifier": TraversalVerifier()},
    "a best-first tree": {"tree": Tree(nodes=5, depth=3, siblings=2)},
}
WAYS = {
    "greedy": {"gamma": GAMMA, "sampling": SamplingConfig(0.0)},
    "sampled": {"gamma": GAMMA, "sampling": SAMPLED},
    **{name: {"sampling": SAMPLED, **tree} for name, tree in TREES.items()},
}
_BEAMS = {"beam": BeamConfig(3), "num_return": 3}
BEAMS = {
    "beams": {"method": "beam", **_BEAMS},
    # A draft of random weights seldom guesses what all hypotheses go on with, unless it has many.
    "speculative beams": {"method": "speculative_beam", "gamma": 1, "draft_beams": 48, **_BEAMS},
}
WAYS |= BEAMS
CUT = [name for name, mesh in MESHES.items() if mesh]
# What is decoded, on one device too: but for sampled chains only on some meshes, for each takes
# seconds to compile.
DECODES = [
    (mesh, way)
    for mesh in CUT
    for way in WAYS
    if way == "sampled" or mesh == "2x4" or (mesh == "1x8" and way in (*TREES, *BEAMS))
]
# The few of the plain run, and the rest.
FEW = [("2x4", "sampled"), ("2x4", "a tree")]
PARTS = {"few": FEW, "rest": [each for each in DECODES if each not in FEW]}
ROWS, BATCH, LIMIT, SEED = 104, 56, 24, 7
# Of these, programs are read: those of the decodes, with the shapes that they have. And their part.
PROGRAMS = {"2x4": "few", "1x8": "rest", "8x1": "rest", "1x8, draft as target": "rest"}
INPUT_BUCKET, OUTPUT_BUCKET = 16, 32


def main(directory: Path, part: str) -> None:
    loop.FIRST_BUCKET = 16  # Arrays grow, as rows take the places of others.
    for name, config in CONFIGS.items():
        save_huggingface(directory / name, config, random_params(config, SEEDS[name]))
    inputs = ragged_inputs(ROWS, 12, V)
    texts = [[t for t in row if t] for row in np.asarray(inputs).tolist()]
    report = {"devices": jax.device_count(), "decodes": {}, "shards": {}}
    for mesh_name, mesh in MESHES.items():
        pair = load(directory, mesh)
        if mesh:
            report["shards"][mesh_name] = {
                "target": shards(pair.target.params), "draft": shards(pair.draft.weights),
            }  # fmt: skip
        ways = {way for name, way in PARTS[part] if mesh_name in (name, "one device")}
        for name in (way for way in WAYS if way in ways):
            output = pair.generate(
                texts, max_decode_len=LIMIT, batch_size=BATCH, seed=SEED, **WAYS[name]
            )
            beams = [[one.tokens.tolist() for one in row] for row in output.beams or ()]
            report["decodes"][f"{mesh_name}, {name}"] = {
                "tokens": [row.tolist() for row in output.tokens],
                "accepted": output.stats.accepted,
                "accepted_by_rank": output.stats.accepted_by_rank,
                "target_calls": output.stats.target_calls,
                "beams": beams,
            }
        if PROGRAMS.get(mesh_name) == part:
            (directory / f"{mesh_name}.hlo").write_text(compiled(pair))
    if part == "few":
        report["errors"] = errors(directory)
    (directory / "report.json").write_text(json.dumps(report))


def load(directory: Path, mesh: DeviceMesh | None, target: str = "target"):
    return load_pair(target=directory / target, draft=directory / "draft", mesh=mesh)


def shards(params) -> dict[str, list[int]]:
    """For each parameter its size, and how much of it every device holds."""
    return {
        jax.tree_util.keystr(path): [leaf.size, *{s.data.size for s in leaf.addressable_shards}]
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def compiled(pair) -> str:
    """The text of the program that sampled chains."""
    decoder = pair.decoder(
        method="speculative", gamma=GAMMA, sampling=SAMPLED, max_decode_len=LIMIT, seed=SEED,
    )  # fmt: skip
    model, lengths = pair.target.model, np.zeros(BATCH, np.int32)
    prompt = model.prompt(np.zeros((BATCH, INPUT_BUCKET), np.int32), lengths)
    given = decoder.arguments(Batch(prompt, np.arange(BATCH, dtype=np.int32)))
    bucket = decoder.output_bucket
    assert bucket == OUTPUT_BUCKET
    program = decode.jitted(decoder.engine, *given, output_bucket=bucket)
    lowered = program.lower(decoder.engine, *given, output_bucket=bucket, trace=False)
    return lowered.compile().as_text()


def errors(directory: Path) -> dict[str, str]:
    """What is said of meshes that do not fit."""
    attempts = {
        "heads": lambda: load(directory, DeviceMesh(1, 8), "six_heads"),
        "batch": lambda: load(directory, DeviceMesh(2, 4)).generate([[5, 1]], batch_size=3),
        "devices": lambda: load(directory, DeviceMesh(4, 4)),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            said[name] = str(error)
    # What such a model may do instead.
    rules = (*REPLICATED_RULES, ("vocab", "model"))
    load(directory, DeviceMesh(1, 8, target_rules=rules), "six_heads")
    # A row alone, to look into it, is not cut.
    target = load(directory, DeviceMesh(2, 4)).target
    prompt = target.model.prompt(np.ones((1, 4), np.int32), np.full(1, 4, np.int32))
    target.model.start(target.params, prompt, 8)
    return said


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
