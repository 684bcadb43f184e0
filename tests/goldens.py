"""Compares what two checkouts decode: tokens, log-probabilities and the text of their programs.

    python tests/goldens.py write FILE              in the one
    python tests/goldens.py compare FILE [CASES]    in the other; CASES: a regular expression

Run both on one machine. ``write FILE.npz`` makes tiny random models of every family in FILE.models,
unless they are there. Both checkouts read these files, and decode them by public names.
``compare`` exits with 1 if tokens, statistics or log-probabilities differ in a bit. Programs that
differ are listed with the case that compiled them first, and are kept, old and new, for diff. They
are no failure: a change may be meant. A program's text is StableHLO as JAX lowered it, without
locations and names.
"""

import collections
import os
import re
import sys
import tempfile
import zlib
from pathlib import Path

PROGRAMS = Path(tempfile.mkdtemp(prefix="goldens-"))
# Set before JAX reads them: cheap compilation, and a copy of each program that is compiled.
os.environ |= {
    "JAX_PLATFORMS": "cpu", "JAX_DUMP_IR_TO": str(PROGRAMS), "JAX_DUMP_IR_MODES": "stablehlo",
    "JAX_INCLUDE_DEBUG_INFO_IN_DUMPS": "false",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0",
}  # fmt: skip
sys.path[:0] = [str(Path.cwd()), str(Path.cwd() / "tests")]

import jax
import numpy as np

import specdec

LEAST = 150  # Lines of a program; shorter ones are single operations of the host's.
SEEDS = {"m2m_100": 15, "llama": 10, "t5gemma": 12}  # Else 21: texts have different outputs.
GENERATOR = np.random.default_rng(0)
TEXTS = [GENERATOR.integers(2, 18, size).tolist() for size in (1, 9, 3, 12)]
SENTENCES = [
    "Where is the station?", "The house is old.", "I have never seen such a beautiful garden.",
    "Tom!", "She reads a book while it rains, and her brother sleeps.",
]  # fmt: skip

CHAIN, TREE = {"gamma": 3}, {"tree": (2, 1)}
BEAMS = {
    "beams, t5x": {"method": "beam", "beam": specdec.BeamConfig(3)},
    "beams, huggingface": {"method": "beam", "beam": specdec.BeamConfig(3, "huggingface")},
    "speculative beams": {"method": "speculative_beam", "beam": specdec.BeamConfig(3), "gamma": 2},
}
RULES = (specdec.NoRepeatNgram(3), specdec.RepetitionPenalty(1.1), specdec.MinNewTokens(4))
SAMPLED = {"sampling": specdec.SamplingConfig(0.8, top_k=50, top_p=0.9)}
KEPT = CHAIN | SAMPLED | {"log_probs": True, "top_log_probs": 2, "num_samples": 2}
OWN = ("quickstart", "quickstart")
BUNDLED = {
    "plain": (OWN, {"method": "autoregressive"}), "chain": (OWN, CHAIN),
    "plain sampled": (OWN, {"method": "autoregressive"} | SAMPLED),
    "chain sampled": (OWN, CHAIN | SAMPLED), "tree": (OWN, {"tree": (3, 1)} | SAMPLED),
    "beams": (OWN, {"method": "beam"}),
    "refilled beams": (OWN, {"method": "beam", "batch_size": 2}),
    "speculative beams": (OWN, {"method": "speculative_beam", "gamma": 3}),
    "refilled": (OWN, CHAIN | SAMPLED | {"batch_size": 2, "rules": RULES, "stop": ["e", 7]}),
    "long": (OWN, CHAIN | {"max_decode_len": 90, "rules": (specdec.MinNewTokens(70),)}),
    "eagle": (("quickstart", specdec.Heads("quickstart/eagle")), {"tree": (2, 1)} | SAMPLED),
    "8-bit weights": (OWN, KEPT | {"weights": "int8"}),
    "bfloat16": (OWN, KEPT | {"dtype": "bfloat16"}),
    "language model": (("quickstart_lm", "quickstart_lm"), KEPT),
}  # fmt: skip


def _drafts(home):
    """Drafts and options: those of every family, and those that only some families have."""
    model, tables = f"{home}/draft", specdec.Ngram(f"{home}/ngrams.safetensors")
    medusa, eagle = specdec.Heads(f"{home}/medusa"), specdec.Heads(f"{home}/eagle")
    plain = model, {"method": "autoregressive"}
    everywhere = {"plain": plain, "chain": (model, CHAIN), "tree": (model, TREE)}
    kseq = {"tree": specdec.Tree((2, 1), independent=True), "verifier": specdec.KSeqVerifier()}
    in_turn = {
        "best-first tree": (model, {"tree": specdec.Tree(nodes=4, depth=2, siblings=2)}),
        "8 bits": (specdec.Quantized(), CHAIN),
        "4 bits": (specdec.Quantized(bits=4, group=4), TREE),
        "n-gram": (tables, CHAIN), "n-gram tree": (tables, TREE),
        "copying": (specdec.Copying(), CHAIN), "medusa": (medusa, TREE),
        "eagle": (eagle, CHAIN), "eagle tree": (eagle, TREE),
        "over copying": (specdec.Hierarchical(model, specdec.Copying()), CHAIN),
        "merged copying": (specdec.Merged((model, specdec.Copying())), TREE),
        "stops early": (model, CHAIN | {"stop_below": 0.3}),
        "block": (model, CHAIN | {"verifier": specdec.BlockVerifier()}),
        "lenient": (model, CHAIN | {"verifier": specdec.LenientVerifier(0.7)}),
        "traversal": (model, TREE | {"verifier": specdec.TraversalVerifier()}),
        "kseq": (model, kseq),
    }  # fmt: skip
    if home.name == "marian":  # Its texts have another vocabulary than its outputs.
        in_turn = {name: way for name, way in in_turn.items() if "copying" not in name}
    return everywhere, in_turn


def make_models(at):
    """A target and what drafts for it, of every family, as files."""
    from tiny import EVERY, random_params

    from specdec.checkpoints import save_huggingface
    from specdec.checkpoints.heads import init_params, save_heads
    from specdec.checkpoints.ngrams import save_ngrams
    from specdec.models.eagle.config import EagleConfig
    from specdec.models.heads.network import HeadsConfig
    from specdec.training.ngrams import count_ngrams

    noise = np.random.default_rng(1)
    for name, config in EVERY.items():
        home = at / name
        params = jax.device_get(random_params(config, SEEDS.get(name, 21)))
        # Layers' outputs are larger than their inputs, or each token would predict itself.
        params = jax.tree_util.tree_map_with_path(
            lambda path, a: a + 4 if "post_" in jax.tree_util.keystr(path) else a, params
        )
        near = jax.tree.map(lambda a: a * noise.normal(1, 0.1, a.shape).astype(a.dtype), params)
        save_huggingface(home / "target", config, params)
        save_huggingface(home / "draft", config, near)
        width, encoder = config.d_model, config.encoder_width
        other = encoder if encoder != width else None
        eagle = EagleConfig(width, 8, 2, 4, 16, not config.reads_prefix, other)
        for kind, shape in ("medusa", HeadsConfig("medusa", 3, width)), ("eagle", eagle):
            save_heads(home / kind, shape, init_params(shape, jax.random.key(0)), params)
        rows = noise.integers(2, 18, (20, 8)).tolist()
        tables = count_ngrams(rows, config.vocab_size, order=2, start_id=config.start_id)
        save_ngrams(home / "ngrams.safetensors", tables, None)


def cases(models):
    """Name, how a pair is loaded, texts and options of each case."""
    tiny = {"max_decode_len": 16, "batch_size": 4, "log_probs": True}
    for number, home in enumerate(sorted(models.iterdir())):
        target = str(home / "target")
        chosen, in_turn = _drafts(home)
        for i in range(3):
            name = list(in_turn)[(3 * number + i) % len(in_turn)]
            chosen[name] = in_turn[name]
        for kind, (draft, way) in chosen.items():
            for t in (0.0, 1.0):
                how = tiny | way | {"sampling": specdec.SamplingConfig(t)}
                yield f"{home.name}/{kind}/t{t:.0f}", (target, draft), TEXTS, how
        kind, pair = list(BEAMS)[number % len(BEAMS)], (target, f"{home}/draft")
        yield f"{home.name}/{kind}", pair, TEXTS, tiny | BEAMS[kind] | {"num_return": 2}
    for kind, (pair, way) in BUNDLED.items():
        yield f"quickstart/{kind}", pair, SENTENCES, {"batch_size": 5} | way


def arrays(out):
    """Tokens, log-probabilities and so on of an output, by name."""
    rows = out.samples if out.beams is None else out.beams
    names = ("tokens", "log_probs", "adjusted_log_probs", "score", "text", "ended")
    found = {
        f"{name} {i}.{j}": vars(each).get(name)
        for name in names for i, row in enumerate(rows) for j, each in enumerate(row)
    }  # fmt: skip
    for i, (tokens, log_probs) in enumerate(out.alternatives or ()):
        found[f"alternatives {i}"], found[f"log_probs of alternatives {i}"] = tokens, log_probs
    found["alpha"], found["block_efficiency"] = out.stats.alpha, out.stats.block_efficiency
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


def normalized(text):
    """A program's text without locations, names, and paths of results in pytrees."""
    text = re.sub(r" loc\(.*?\)$|^#loc.*$|^module @\S+", "", text, flags=re.M)
    text = re.sub(r',? ?jax\.(result_info|arg_info) = "[^"]*"', "", text)
    names = {}
    return re.sub(r"@[\w.]+", lambda m: names.setdefault(m[0], f"@f{len(names)}"), text)


def new_programs():
    """The programs that were compiled since the last call: their texts by hash, and their names."""
    found, seen = {}, collections.Counter()
    for path in sorted(PROGRAMS.glob("*.mlir")):
        text = normalized(path.read_text())
        path.unlink()
        if text.count("\n") >= LEAST:
            name = re.sub(r"^jax_ir\d+_|_compile.mlir$", "", path.name)
            seen[name] += 1
            found[f"{zlib.crc32(text.encode()):08x}"] = f"{name} {seen[name]}", text
    return found


def decoded(models, wanted=""):
    """Everything that is compared: arrays by case and name; programs by hash, with their case."""
    results, programs = {}, {}
    for case, (target, draft), texts, options in cases(models):
        if not re.search(wanted, case):
            continue
        if case.endswith("plain/t0"):  # A family's first case: no other shares its programs.
            jax.clear_caches()
        how = {name: options.pop(name) for name in ("weights", "dtype") if name in options}
        pair = specdec.load_pair(target=target, draft=draft, **how)
        found = arrays(pair.generate(texts, **options))
        results |= {f"{case}: {name}": value for name, value in found.items()}
        for key, (name, text) in new_programs().items():
            programs.setdefault(key, (f"{case}: {name}", text))
        print(f"{case}: {found['tokens 0.0'].tolist()}", flush=True)
    return results, programs


def differences(old, new):
    """A line for each array that differs, and how much floats do at most."""
    lines, most = [], 0.0
    for name in sorted({*old, *new}):
        one, other = old.get(name, np.array("nothing")), new.get(name, np.array("nothing"))
        if (one.dtype, one.shape, one.tobytes()) != (other.dtype, other.shape, other.tobytes()):
            apart = f"{one} is now {other}"
            if one.dtype == other.dtype and one.dtype.kind == "f" and one.shape == other.shape:
                apart = float(np.nanmax(np.abs(one - other), initial=0.0))
                most = max(most, apart)
            lines.append(f"{name}: {apart}")
    return lines, most


def main(command, file, wanted=""):
    """Writes or compares; the exit status."""
    file, models = Path(file), Path(file).with_suffix(".models")
    if command == "write":
        if not models.exists():
            make_models(models)
        results, programs = decoded(models)
        texts = {f"program {key} {name}": text for key, (name, text) in programs.items()}
        np.savez_compressed(file, **results, **texts)
        print(f"{len(results)} arrays and {len(programs)} programs are in {file}")
        return 0
    with np.load(file) as kept:
        old = {each: kept[each] for each in kept.files if re.search(wanted, each.split(": ")[0])}
    names = [name.split(" ", 2)[1:] for name in old if name.startswith("program ")]
    known = {key: (name, str(old.pop(f"program {key} {name}"))) for key, name in names}
    results, programs = decoded(models, wanted)
    lines, most = differences(old, results)
    print(*lines, sep="\n")
    for kind, some, others in (("old", known, programs), ("new", programs, known)):
        place = PROGRAMS / kind
        place.mkdir()
        for name, text in [some[key] for key in some if key not in others]:
            print(f"program only in the {kind} one: {name}")
            (place / re.sub(r"\W+", "-", name)).write_text(text)
    gone, new = len(known.keys() - programs.keys()), len(programs.keys() - known.keys())
    print("DIFFERENT" if lines else "EQUAL", end=f": {len(lines)} of {len(old)} arrays differ, ")
    print(f"floats by {most:.3g}; of {len(known)} programs {gone} are gone, {new} new: {PROGRAMS}")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:2] in (["write"], ["compare"]) else __doc__)
