"""Decodes by several processes with one target: python run_on_hosts.py DIRECTORY SUITE I N ADDRESS.

For test_several_hosts.py; alone, as process 0 of 1, what they are compared with. Process I writes
report-I.json, and chains.hlo, the program that sampled chains.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import run_families_on_meshes as families
import run_on_meshes as t5
from run_on_meshes import MESHES, WAYS
from tiny import ragged_inputs, random_params

from specdec import Copying, DeviceMesh, NoRepeatNgram, load_pair
from specdec.checkpoints import save_huggingface, save_t5x
from specdec.checkpoints.parameters import StoredArray
from specdec.core.processes import exchange
from specdec.decoding import loop

# Chains whose numbers are told too: what rounding would change, they show.
CHAINS = WAYS["sampled"] | {"log_probs": True}
RULES = CHAINS | {"rules": [NoRepeatNgram(2)]}
PREFIX = CHAINS | {"prefix": [[5, 6, 7 + row % 40] for row in range(t5.ROWS)]}
WHOLE, CUT, HALVES = "1x8", "1x8, draft as target", "2x4"
# model -> (mesh, way) -> what generate is given.
SUITES = {
    "few": {"t5": {(WHOLE, "chains"): CHAINS}},
    "t5": {
        "t5": {
            (WHOLE, "greedy"): WAYS["greedy"], (WHOLE, "a tree"): WAYS["a tree"],
            (WHOLE, "beams"): WAYS["beams"], (WHOLE, "a prefix"): PREFIX,
            (CUT, "chains"): CHAINS, (HALVES, "chains"): CHAINS, (HALVES, "rules"): RULES,
            (HALVES, "speculative beams"): WAYS["speculative beams"],
        },
    },
    "gpt": {
        "gpt": {
            (WHOLE, "greedy"): families.WAYS["greedy"], (HALVES, "sampled"): CHAINS,
            (HALVES, "plain"): families.WAYS["plain"],
        },
        "copying": {(HALVES, "greedy"): families.WAYS["greedy"]},
        "t5x": {("8x1", "chains"): CHAINS},
    },
    "time": {"t5": {(WHOLE, "auto"): {"gamma": "auto", "max_decode_len": 8}}},
}  # fmt: skip
CONFIGS = {"t5": t5.CONFIGS, "gpt": {
    "target": families.TARGETS["gpt"], "draft": families.DRAFTS["gpt"],
}}  # fmt: skip


def main(directory: Path, suite: str, index: int, count: int, address: str) -> None:
    loop.FIRST_BUCKET = 16  # Arrays grow, as rows take the places of others.
    if count > 1:
        jax.distributed.initialize(address, count, index)
    report = {"devices": jax.device_count(), "mine": jax.local_device_count(), "decodes": {}}
    if not index:
        save(directory)
    exchange(b"")
    if suite == "few":
        reads, report["reads"] = measured_reads(), {}
        for model in ("t5", "t5x"):
            reads.bytes = 0
            holds = held(load(directory, model, MESHES[WHOLE]))
            report["reads"][model] = [reads.bytes, holds]
    for model, cases in SUITES.get(suite, {}).items():
        for (mesh, way), options in cases.items():
            pair = load(directory, model, MESHES[mesh])
            report["decodes"][f"{model}, {mesh}, {way}"] = decoded(pair, **options)
    if suite == "few":
        (directory / f"chains-{index}.hlo").write_text(t5.compiled(pair))
    if suite == "time":
        report["streamed"] = [
            token for piece in pair.stream(texts_of(pair)[0], max_decode_len=t5.LIMIT, seed=3)
            for token in piece.tokens.tolist()
        ]  # fmt: skip
        out = pair.generate(texts_of(pair), max_decode_len=t5.LIMIT, batch_size=8, time_limit=0.5)
        report["in time"] = [len(row) for row in out.tokens]
    (directory / f"report-{index}.json").write_text(json.dumps(report))


def save(directory: Path) -> None:
    for family, configs in CONFIGS.items():
        for name, config in configs.items():
            params = random_params(config, t5.SEEDS[name])
            if family == "gpt":
                params = jax.tree_util.tree_map_with_path(families.outweighing, params)
            params = jax.device_get(params)
            save_huggingface(directory / family / name, config, params)
            if family == "t5":
                save_t5x(directory / "t5x" / name, config, params, step=1)


def load(directory: Path, model: str, mesh: DeviceMesh):
    folder = directory / ("t5" if model == "copying" else model)
    draft = Copying() if model == "copying" else folder / "draft"
    return load_pair(target=folder / "target", draft=draft, mesh=mesh)


class measured_reads:
    """Counts the bytes of parameters that are read from now on."""

    def __init__(self):
        self.bytes, plain = 0, StoredArray.read

        def read(array, *parts):
            found = plain(array, *parts)
            self.bytes += found.nbytes
            return found

        StoredArray.read = read


def held(pair) -> int:
    """Bytes of what this process's devices hold, each part counted once, as they are stored."""
    parts = {}
    for which, params in {"target": pair.target.params, "draft": pair.draft.weights}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            for shard in leaf.addressable_shards:
                parts[which, jax.tree_util.keystr(path), str(shard.index)] = 4 * shard.data.size
    return sum(parts.values())


def texts_of(pair) -> list[list[int]]:
    if pair.target.model.reads_prefix:
        return families.PROMPTS
    rows = np.asarray(ragged_inputs(t5.ROWS, 12, t5.V)).tolist()
    return [[token for token in row if token] for row in rows]


def decoded(pair, **options) -> dict:
    """All that comes of it, as JSON: equal numbers have equal digits."""
    batch = families.BATCH if pair.target.model.reads_prefix else t5.BATCH
    options = {"max_decode_len": t5.LIMIT, "sampling": None, **options}
    options = {name: value for name, value in options.items() if value is not None}
    out = pair.generate(texts_of(pair), batch_size=batch, seed=t5.SEED, **options)
    return {
        "tokens": [row.tolist() for row in out.tokens],
        "log_probs": [row.tolist() for row in out.log_probs or ()],
        "beams": [[one.tokens.tolist() for one in row] for row in out.beams or ()],
        "scores": [[one.score for one in row] for row in out.beams or ()],
        "accepted": out.stats.accepted,
        "choice": str(out.choice),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
