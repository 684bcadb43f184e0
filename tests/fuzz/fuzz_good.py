"""Good files of every kind, for tests to damage: directories that each function of GOOD fills."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from t5x_layouts import write_native, write_orbax, write_single_file
from tiny import TINY, TINY_GPT

from specdec.checkpoints import open_checkpoint, save_huggingface, save_t5x
from specdec.checkpoints.architectures import parameter_shapes
from specdec.checkpoints.draft_vocabulary import save_draft_vocabulary
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.ngrams import save_ngrams
from specdec.core.files import write_json
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.config import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig
from specdec.runs import main
from specdec.runs.command_line import Given
from specdec.text.vocabulary import train_vocabulary
from specdec.training import checkpointing
from specdec.training.ngrams import count_ngrams

ROOT = Path(__file__).resolve().parents[2]
V = 19
IDS = [[2, 3, 4, 1], [5, 6, 1]]
TEXTS = ["the cat sat on the mat", "a dog"]
LINES = [*TEXTS, "the quick brown fox jumps over the lazy dog"] * 20
HEADS = {
    "heads": HeadsConfig("medusa", 3, 16), "blockwise": HeadsConfig("blockwise", 3, 16, 8),
    "eagle": EagleConfig(16, 12, 2, 6, 20, reads_encoding=True), "ahead": LookAheadConfig(3, 16),
}  # fmt: skip


def _save(directory: Path, config: Any, seed: int, vocabulary: Path | None = None, **options):
    shape = dataclasses.replace(config, vocab_size=400) if vocabulary else config
    save_huggingface(
        directory, shape, _random(parameter_shapes(shape), seed), vocabulary, **options
    )


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict:
    """Weights by which logits spread by a few units. (NumPy's: nothing is compiled.)"""
    draw = np.random.default_rng(seed)
    flat = {name: draw.normal(0.0, 0.4, shape).astype("f4") for name, shape in shapes.items()}
    flat = {name: a + (a.ndim == 1 and "bias" not in name) for name, a in flat.items()}
    return unflatten_dict(flat, sep="/")


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
        like = jax.eval_shape(functools.partial(init_params, shape, jax.random.key(0)))
        shapes = {name: leaf.shape for name, leaf in flatten_dict(like, sep="/").items()}
        save_heads(root / name, shape, _random(shapes, 0), target, tokens)
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
    end = {"content": "</s>", "__type": "AddedToken"}
    ends = {"eos_token": end, "pad_token": "<pad>", "extra_ids": 125}
    write_json(
        root / "target" / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer", **ends}
    )


def _t5x(layout: str) -> Callable[[Path], None]:
    """A checkpoint of T5X's, in one of its layouts."""

    def write(root: Path) -> None:
        params = _random(parameter_shapes(TINY["v1.1"]), 0)
        if layout == "native":
            write_native(root / "checkpoint_3", params)
        elif layout == "ours":
            save_t5x(root, TINY["v1.1"], params, 3)
        elif layout == "single":
            write_single_file(root / "checkpoint_3", params)
        else:
            write_orbax(root, params, 3, use_ocdbt=layout == "orbax")

    return write


def _run(root: Path) -> None:
    """A training run's directory."""
    config = TINY["v1.1"]
    vocabulary = _vocabulary(root)
    checkpointing.prepare_directory(root / "run", config, SETTINGS, vocabulary)
    params = _random(parameter_shapes(config), 0)
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


def _gin(root: Path) -> None:
    """Of public shapes, which a plan needs no files for."""
    text = GIN.replace("'target'", "'t5-v1_1-base'").replace("'draft'", "'t5-v1_1-small'")
    (root / "run.gin").write_text(text)


def _texts(root: Path) -> None:
    lines = [f"{text}\tdie {text}\n" for text in LINES[:12]]
    (root / "test.tsv").write_text("".join(lines))
    for name in ("texts", "openings"):
        (root / f"{name}.txt").write_text("".join(f"{text} and so on\n" for text in LINES[:12]))


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


GOOD: dict[str, Callable[[Path], None]] = {
    "drafts": _drafts, "shards": _shards, "t5": _t5, "fast": _fast, "gpt": _gpt, "bytes": _bytes,
    **{name: _t5x(name) for name in ("native", "ours", "single", "orbax", "plain")},
    "run": _run, "gin": _gin, "texts": _texts, "decoded": _decoded,
}  # fmt: skip


def decoded(root: Path, out: Path, *, dry_run: bool = False) -> tuple[int, str]:
    """Runs the command line; its code, and what it said on stderr."""
    heard, printed = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stderr(heard), contextlib.redirect_stdout(printed)
    with contextlib.chdir(root), quiet[0], quiet[1]:
        given = Given([str(root / "run.gin")], (), str(out), "test")
        code = main.decode(given, ROOT, dry_run=dry_run)
    return code, heard.getvalue()


def told(code: int, message: str) -> None:
    """Raises what a command that failed told its user."""
    if code:
        raise ValueError(message.splitlines()[-1].removeprefix("error: "))
