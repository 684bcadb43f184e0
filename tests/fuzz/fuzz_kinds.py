"""The kinds of files that the project reads: a good one of each, and how a user has it read.

``GOOD`` makes directories of good files. ``KINDS`` names the file that is damaged in a copy of one,
and what reads it: a function of the copy that loads as a user would and returns a check, to be
called once the file was taken. A check raises Changed where outputs would follow another law than
the loaded target's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from t5x_layouts import write_native, write_orbax, write_single_file
from tiny import TINY, TINY_GPT, random_gpt_params, random_t5_params

import specdec
from specdec.checkpoints import open_checkpoint, save_huggingface, save_t5x
from specdec.checkpoints.draft_vocabulary import save_draft_vocabulary
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.ngrams import save_ngrams
from specdec.core.files import write_json
from specdec.core.randomness import BlockRandom
from specdec.data.tasks import openings, pairs_file, text_file
from specdec.data.text import BadRow
from specdec.data.vocabulary import train_vocabulary
from specdec.decoding.batches import make_batches
from specdec.drafters.ngram_tables import distribution
from specdec.measure import rows
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.network import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig
from specdec.models.toy import ToyModel
from specdec.reproduction import page_files, pages
from specdec.runs import cli
from specdec.runs.command_line import Given
from specdec.runs.kept import kept_of
from specdec.training import checkpointing
from specdec.training.ngrams import count_ngrams

Check = Callable[[], Any]
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
V = 19
IDS = [[2, 3, 4, 1], [5, 6, 1]]
TEXTS = ["the cat sat on the mat", "a dog"]
LINES = [*TEXTS, "the quick brown fox jumps over the lazy dog"] * 20
GREEDY, SAMPLED = specdec.SamplingConfig(0.0), specdec.SamplingConfig(1.0)
HEADS = {
    "heads": HeadsConfig("medusa", 3, 16), "blockwise": HeadsConfig("blockwise", 3, 16, 8),
    "eagle": EagleConfig(16, 12, 2, 6, 20, reads_encoding=True), "ahead": LookAheadConfig(3, 16),
}  # fmt: skip


class Changed(AssertionError):
    """A file was taken, and what came of it is not what the target says."""


# Good files


def _save(directory: Path, config: Any, seed: int, vocabulary: Path | None = None, **options):
    random = random_gpt_params if config in TINY_GPT.values() else random_t5_params
    shape = dataclasses.replace(config, vocab_size=320) if vocabulary else config
    save_huggingface(directory, shape, jax.device_get(random(shape, seed)), vocabulary, **options)


def _ids(directory: Path, **ids: Any) -> None:
    write_json(directory / "generation_config.json", ids)


def _drafts(root: Path) -> None:
    """A target of 19 tokens, and all that can draft for it."""
    config = TINY["v1.1"]
    for seed, name in enumerate(("target", "draft")):
        _save(root / name, config, seed)
        _ids(root / name, eos_token_id=[1], pad_token_id=0, decoder_start_token_id=0)
    save_draft_vocabulary(root / "draft", range(1, 15))
    _, target = open_checkpoint(root / "target", None)
    for name, shape in HEADS.items():
        tokens = range(1, 17) if name == "heads" else None
        save_heads(root / name, shape, init_params(shape, jax.random.key(0)), target, tokens)
    random = np.random.default_rng(0)
    sequences = [[*random.integers(2, V, random.integers(1, 12)), 1] for _ in range(200)]
    tables = count_ngrams(sequences, V, order=3, start_id=0)
    save_ngrams(root / "ngrams.safetensors", tables, None)


def _shards(root: Path) -> None:
    _save(root / "target", TINY["v1.1"], 0, max_shard_bytes=4000)


def _vocabulary(root: Path) -> Path:
    train_vocabulary(LINES, 288, root / "spiece.model")
    return root / "spiece.model"


def _t5(root: Path) -> None:
    """With all that is read beside a model."""
    _save(root / "target", TINY["v1.0"], 0, _vocabulary(root))
    write_json(root / "target" / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})
    ids = {"eos_token_id": [1, 5], "pad_token_id": 0, "decoder_start_token_id": 0}
    _ids(root / "target", **ids, num_beams=1, max_new_tokens=20)


def _fast(root: Path) -> None:
    """A T5's tokenizer.json, as transformers 5 writes it, with its config."""
    import transformers

    _vocabulary(root)
    theirs = transformers.T5Tokenizer.from_pretrained(str(root))
    theirs.save_pretrained(root / "saved")
    _save(root / "target", TINY["v1.1"], 0, root / "saved" / "tokenizer.json")
    for file in (root / "saved").iterdir():
        shutil.copyfile(file, root / "target" / file.name)
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write_json(root / "target" / "special_tokens_map.json", special)


def _gpt(root: Path) -> None:
    """GPT-2's own files."""
    import tokenizers

    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=280, special_tokens=["<|endoftext|>"])
    trained.save_model(str(root))
    _save(root / "target", TINY_GPT["gpt"], 0, root / "vocab.json")
    size = trained.get_vocab_size()
    write_json(root / "target" / "added_tokens.json", {"<a>": size, "<b>": size + 1})
    special = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    write_json(root / "target" / "special_tokens_map.json", special)
    write_json(root / "target" / "tokenizer_config.json", special | {"model_max_length": 40})
    _ids(root / "target", bos_token_id=2, eos_token_id=1)


def _bytes(root: Path) -> None:
    _save(root / "target", dataclasses.replace(TINY["v1.1"], vocab_size=384), 0)
    ends = {"eos_token": {"content": "</s>"}, "pad_token": "<pad>", "extra_ids": 125}
    write_json(
        root / "target" / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer", **ends}
    )


def _t5x(root: Path) -> None:
    """Every layout."""
    params = jax.device_get(random_t5_params(TINY["v1.1"], 0))
    write_native(root / "native" / "checkpoint_3", params)
    save_t5x(root / "ours", TINY["v1.1"], params, 3)
    write_single_file(root / "single" / "checkpoint_3", params)
    for name, ocdbt in (("orbax", True), ("plain", False)):
        write_orbax(root / name, params, 3, use_ocdbt=ocdbt)


def _run(root: Path) -> None:
    """A training run's directory."""
    config = TINY["v1.1"]
    vocabulary = _vocabulary(root)
    checkpointing.prepare_directory(root / "run", config, SETTINGS, vocabulary)
    params = random_t5_params(config, 0)
    checkpointing.save_params(root / "run", config, params, 3)


SETTINGS = {"seed": 3, "steps": [1, 2], "lengths": {"a": 0.5}, "files": None}
GIN = """
include "configs/runs/decode.gin"
include "configs/methods/speculative.gin"
include "configs/sampling/temp0.gin"
include "configs/tasks/ende_tatoeba.gin"
TARGET = 'target'
DRAFT = 'draft'
DATA_DIR = '.'
GAMMA = 2
BATCH_SIZE = 2
MAX_DECODE_LEN = 8
MAX_INPUT_LEN = 16
TIMING_EXAMPLES = 0
BAD_ROWS = "skip"
"""


def _texts(root: Path) -> None:
    lines = [f"{text}\tdie {text}\n" for text in LINES[:12]]
    (root / "test.tsv").write_text("".join(lines))
    (root / "texts.txt").write_text("".join(f"{text} and so on\n" for text in LINES[:12]))


def _decoded(root: Path) -> None:
    """A decode run that was done before its last row was taken away."""
    vocabulary = _vocabulary(root)
    for seed, name in enumerate(("target", "draft")):
        _save(root / name, TINY["v1.1"], seed, vocabulary)
    (root / "test.tsv").write_text("a dog\tein Hund\nthe cat\tdie Katze\nno tab\nthe mat\tdas\n")
    (root / "run.gin").write_text(GIN)
    told(*decoded(root, root / "out"))
    shutil.copytree(root / "out", root / "good")
    rows = root / "out" / "decodes.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:-1]))


def _measured(root: Path) -> None:
    """What runs keep to go on: rows, a study, choices."""
    lines = [rows.line_of(Measured(i, [i, 2 * i], 0.5 * i)) for i in range(4)]
    (root / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines[:3]))
    kept_of(root / "study.json", {"seed": 3, "names": ["a", "b"]}, lambda: {"alpha": [0.5, 0.25]})


@dataclasses.dataclass(frozen=True)
class Measured:
    """A row of a measurement."""

    id: int
    tokens: list[int]
    value: float


def _pages(root: Path) -> None:
    """This repository's results and pages."""
    (root / "results").mkdir()
    names = ["docs", "configs", "README.md", *(f"results/{p.name}" for p in RESULTS.iterdir())]
    for name in names:
        path = ROOT / name
        if name in PAGES.values():
            shutil.copytree(path, root / name)
        else:
            (root / name).symlink_to(path)


GOOD: dict[str, Callable[[Path], None]] = {
    "drafts": _drafts, "shards": _shards, "t5": _t5, "fast": _fast, "gpt": _gpt, "bytes": _bytes,
    "t5x": _t5x, "run": _run, "texts": _texts, "decoded": _decoded, "measured": _measured,
    "pages": _pages,
}  # fmt: skip


# Reading


def _drafted(root: Path, draft: Any) -> Check:
    pair = specdec.load_pair(target=root / "target", draft=draft)
    return lambda: exact(pair)


def exact(pair: specdec.Pair) -> None:
    """Greedy tokens are plain decoding's, and each q is the law that its guess was drawn from."""
    options = {"max_decode_len": 8, "batch_size": 2, "max_input_len": 16}
    plain = pair.generate(IDS, method="autoregressive", sampling=GREEDY, **options)
    fast = pair.generate(IDS, gamma=2, sampling=GREEDY, **options)
    if [row.tolist() for row in plain.tokens] != [row.tolist() for row in fast.tokens]:
        raise Changed("greedy tokens are not those of plain decoding")
    decoder = pair.decoder(
        method="speculative", gamma=2, sampling=SAMPLED, max_decode_len=8, seed=0
    )
    (batch,) = make_batches([np.array(ids) for ids in IDS], 2, pair.target.model)
    params, *rest = decoder.arguments(batch)
    state = _start(decoder.engine, params, *rest, output_bucket=decoder.output_bucket)
    for _ in range(3):
        tokens, probs, state = _block(decoder.engine, params, state)
        if np.any(state.nan):
            pair.generate(IDS, gamma=2, sampling=SAMPLED, **options)  # Refuses it.
        check_law(np.asarray(probs))
        if np.any(np.take_along_axis(np.asarray(probs), np.asarray(tokens)[..., None], -1) <= 0):
            raise Changed("a guess has probability 0 by its own q")


def check_law(probs: np.ndarray) -> None:
    """Raises Changed unless the last axis are probabilities."""
    # What a sum of float32 numbers rounds.
    if not np.all(probs >= -1e-6) or not np.all(np.abs(probs.sum(-1, dtype=float) - 1) < 1e-4):
        raise Changed(f"q is no distribution: least {probs.min()}, sums {probs.sum(-1)}")


_start = jax.jit(
    lambda engine, *args, output_bucket: engine.start(*args, output_bucket=output_bucket),
    static_argnums=0, static_argnames="output_bucket",
)  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _block(engine: Any, params: Any, state: Any) -> tuple[Any, Any, Any]:
    """A block's guesses, their q, and the state after it."""
    random = BlockRandom.of(state.row_keys, state.block)
    draft, state = engine.propose(params, state, random)
    scored = engine.score(params, state, draft)
    state, _ = engine.commit(state, draft, scored, engine.verify(scored, draft, random))
    return draft.tokens, draft.probs, state


def ngrams(root: Path) -> Check:
    pair = specdec.load_pair(target=root / "target", draft=specdec.Ngram(str(root)))

    def check() -> None:
        contexts = np.stack(np.meshgrid(*[np.arange(V)] * 2), -1).reshape(-1, 2)
        check_law(np.asarray(_laws(pair.draft.weights, jnp.asarray(contexts))))
        exact(pair)

    return check


_laws = jax.jit(distribution)


def target(root: Path, source: str = "target", texts: Any = TEXTS) -> Check:
    """A model whose law outputs follow, whatever it is: that it decodes is enough."""
    pair = specdec.load_pair(target=root / source, draft=specdec.Copying())
    options = {"max_decode_len": 4, "batch_size": 2, "max_input_len": 64}
    given = texts if pair.vocabulary else IDS
    return lambda: pair.generate(given, method="autoregressive", sampling=GREEDY, **options)


def of_ids(source: str) -> Callable[[Path], Check]:
    return functools.partial(target, source=source, texts=IDS)


def draft_model(root: Path) -> Check:
    return _drafted(root, root / "draft")


def heads(name: str) -> Callable[[Path], Check]:
    return lambda root: _drafted(root, specdec.Heads(str(root / name)))


def training_run(root: Path) -> Check:
    checkpointing.load_params(root / "run")
    checkpointing.load_vocabulary(root / "run")
    return lambda: None


def training_settings(root: Path) -> Check:
    """A run is resumed with the settings that it began with, or is refused."""
    config, vocabulary = TINY["v1.1"], root / "spiece.model"
    checkpointing.prepare_directory(root / "run", config, SETTINGS, vocabulary)
    return lambda: None


def decoded(root: Path, out: Path, *, dry_run: bool = False) -> tuple[int, str]:
    """Runs the command line; its code, and what it said on stderr."""
    heard, printed = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stderr(heard), contextlib.redirect_stdout(printed)
    with contextlib.chdir(root), quiet[0], quiet[1]:
        given = Given([str(root / "run.gin")], (), str(out), "test")
        code = cli.decode(given, ROOT, dry_run=dry_run)
    return code, heard.getvalue()


def told(code: int, message: str) -> None:
    """Raises what a command that failed told its user."""
    if code:
        raise ValueError(message.splitlines()[-1].removeprefix("error: "))


def gin_file(root: Path) -> Check:
    """Planned, as by ``--dry_run``. An error names a file or, of a value, the setting."""
    told(*decoded(root, root / "new", dry_run=True))
    return lambda: None


def resumed(root: Path) -> Check:
    """A run that goes on ends with the same rows."""
    good = json.loads((root / "good" / "results.json").read_text())
    told(*decoded(root, root / "out"))

    def check() -> None:
        found = json.loads((root / "out" / "results.json").read_text())
        for name in ("num_tokens", "target_calls", "alpha", "greedy_mismatches", "quality"):
            if found[name] != good[name]:
                raise Changed(f"{name} is {found[name]} after it was {good[name]}")
        lines = (root / "out" / "decodes.jsonl").read_bytes()
        if lines != (root / "good" / "decodes.jsonl").read_bytes():
            raise Changed("the rows are not those of the run that was not damaged")

    return check


def all_rows(open_task: Callable[[Path], Any]) -> Callable[[Path], Check]:
    """A file of texts: each bad row is named by its line, and no other row changes its text."""

    def read(root: Path) -> Check:
        found = list(open_task(root).read())

        def check() -> None:
            for row in found:
                bad = isinstance(row, BadRow)
                if bad and (row.origin not in row.reason or "\n" in row.reason):
                    raise Changed(f"a bad row is told so: {row.reason!r}")
                if not bad and set("\r\n\0") & set(row.input):
                    raise Changed(f"a row has {row.input!r}")

        return check

    return read


def measured_rows(root: Path) -> Check:
    batches = list(make_batches([np.array([2, 1])] * 4, 2, ToyModel(3)))
    made = [Measured(i, [i, 2 * i], 0.5 * i) for i in range(4)]

    def measure(batch: Any, places: Any) -> list[Measured]:
        return [made[row] for row in places]

    found = rows.measure_rows(root / "rows.jsonl", batches, Measured, measure)

    def check() -> None:
        if found != made:
            raise Changed(f"rows are {found}")

    return check


def study(root: Path) -> Check:
    settings = {"seed": 3, "names": ["a", "b"]}
    found = kept_of(root / "study.json", settings, lambda: {"alpha": [0.5, 0.25]})

    def check() -> None:
        if not {"alpha", "settings"} <= found.keys():
            raise Changed(f"the study is {found}")

    return check


# A page, and a directory of results that it shows.
PAGES = {
    "docs/trees.md": "results/trees", "docs/drafts.md": "results/drafts",
    "docs/beams.md": "results/benchmark_beams", "docs/distillation.md": "results/distillation",
    "docs/performance.md": "results/benchmark_quickstart", "README.md": "results/accelerators",
}  # fmt: skip


def page(name: str) -> Callable[[Path], Check]:
    def read(root: Path) -> Check:
        section = pages.sections(root, dict, draw=False)[name]
        changed = page_files.rewrite(root / name, section, check=True)
        return lambda: changed

    return read


# The kinds


@dataclasses.dataclass(frozen=True)
class Kind:
    """A file (a pattern: the first that matches) in a directory of ``GOOD``, and its reader."""

    good: str
    file: str
    form: str  # See fuzz_mutations; "bytes" for no form.
    read: Callable[[Path], Check]
    named: bool = True  # Whether a refusal names the file, or the directory that it is in.


def _kinds() -> dict[str, Kind]:
    found = {
        "draft: config.json": Kind("drafts", "draft/config.json", "json", draft_model),
        "draft: generation_config.json": Kind(
            "drafts", "draft/generation_config.json", "json", draft_model
        ),
        "draft: weights": Kind("drafts", "draft/model.safetensors", "tensors", draft_model),
        "draft: draft_vocabulary.json": Kind(
            "drafts", "draft/draft_vocabulary.json", "json", draft_model
        ),
        "ngrams.safetensors": Kind("drafts", "ngrams.safetensors", "tensors", ngrams),
        "heads: draft_vocabulary.json": Kind(
            "drafts", "heads/draft_vocabulary.json", "json", heads("heads")
        ),
        "T5: config.json": Kind("t5", "target/config.json", "json", target),
        "T5: generation_config.json": Kind("t5", "target/generation_config.json", "json", target),
        "T5: model.safetensors": Kind("t5", "target/model.safetensors", "tensors", target),
        "T5: spiece.model": Kind("t5", "target/spiece.model", "bytes", target),
        "T5: tokenizer_config.json": Kind("t5", "target/tokenizer_config.json", "json", target),
        "T5: index": Kind(
            "shards", "target/model.safetensors.index.json", "json", of_ids("target")
        ),
        "T5: a shard": Kind("shards", "target/model-00002*.safetensors", "tensors",
                            of_ids("target")),
        "T5: tokenizer.json": Kind("fast", "target/tokenizer.json", "json", target),
        "T5: tokenizer_config.json of it": Kind(
            "fast", "target/tokenizer_config.json", "json", target
        ),
        "T5: special_tokens_map.json": Kind(
            "fast", "target/special_tokens_map.json", "json", target
        ),
        "ByT5: tokenizer_config.json": Kind(
            "bytes", "target/tokenizer_config.json", "json", target
        ),
        **{
            f"GPT-2: {name}": Kind("gpt", f"target/{name}", form, target)
            for name, form in {
                "config.json": "json", "generation_config.json": "json",
                "model.safetensors": "tensors", "vocab.json": "json", "merges.txt": "lines",
                "added_tokens.json": "json", "special_tokens_map.json": "json",
                "tokenizer_config.json": "json",
            }.items()
        },
        **{
            f"T5X: {name}": Kind("t5x", f"{layout}/{file}", form, of_ids(layout))
            for name, (layout, file, form) in {
                "msgpack": ("native", "checkpoint_3/checkpoint", "msgpack"),
                ".zarray": ("native", "checkpoint_3/*query*/.zarray", "json"),
                "chunk": ("native", "checkpoint_3/*query*/0.0", "bytes"),
                "specdec's msgpack": ("ours", "checkpoint_3/checkpoint", "msgpack"),
                "specdec's chunk": ("ours", "checkpoint_3/*query*/0*", "bytes"),
                "one file": ("single", "checkpoint_3", "msgpack"),
                "Orbax _METADATA": ("orbax", "checkpoint_3/state/_METADATA", "json"),
                "Orbax manifest": ("orbax", "checkpoint_3/state/manifest.ocdbt", "bytes"),
                "Orbax data": ("orbax", "checkpoint_3/state/**/d/*", "bytes"),
                "Orbax checkpoint metadata": (
                    "orbax", "checkpoint_3/_CHECKPOINT_METADATA", "json"
                ),
                "Orbax .zarray": ("plain", "checkpoint_3/state/target*query*/.zarray", "json"),
                "Orbax chunk": ("plain", "checkpoint_3/state/target*query*/0*", "bytes"),
            }.items()
        },
        "training: model.json": Kind("run", "run/model.json", "json", training_run),
        "training: run.json": Kind("run", "run/run.json", "json", training_settings),
        "training: _METADATA": Kind(
            "run", "run/checkpoints/3/params/_METADATA", "json", training_run
        ),
        "gin": Kind("decoded", "run.gin", "lines", gin_file, named=False),
        "texts: .tsv": Kind(
            "texts", "test.tsv", "lines", all_rows(lambda root: pairs_file("t", root, "test"))
        ),
        "texts: .txt": Kind(
            "texts", "texts.txt", "lines", all_rows(lambda root: text_file(root / "texts.txt"))
        ),
        "texts: openings": Kind(
            "texts", "texts.txt", "lines",
            all_rows(lambda root: openings("o", root / "texts.txt", 2)),
        ),
        "run: decodes.jsonl": Kind("decoded", "out/decodes.jsonl", "lines", resumed),
        "run: operative_config.gin": Kind(
            "decoded", "out/operative_config.gin", "lines", resumed
        ),
        "run: results.json": Kind("decoded", "out/results.json", "json", resumed),
        "run: skipped.jsonl": Kind("decoded", "out/skipped.jsonl", "lines", resumed),
        "measurement: rows": Kind("measured", "rows.jsonl", "lines", measured_rows),
        "measurement: a study": Kind("measured", "study.json", "json", study),
    }  # fmt: skip
    for name in HEADS:
        found[f"{name}: config.json"] = Kind("drafts", f"{name}/config.json", "json", heads(name))
        found[f"{name}: weights"] = Kind(
            "drafts", f"{name}/model.safetensors", "tensors", heads(name)
        )
    for name in PAGES:
        found[f"results: {name}"] = Kind("pages", f"{PAGES[name]}/*.json", "json", page(name))
    return found


KINDS = _kinds()
