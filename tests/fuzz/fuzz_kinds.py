"""The kinds of files that the project reads, less those that runs keep to go on: their tests are
in tests/measure, tests/training and tests/reproduce.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from fuzz_good import HEADS
from fuzz_readers import (
    Check,
    all_rows,
    draft_model,
    gin_file,
    heads,
    ngrams,
    of_ids,
    resumed,
    target,
    training_run,
    training_settings,
)

from specdec.data.tasks import openings, pairs_file, text_file


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
            f"T5X: {name}": Kind(layout, f"checkpoint_3{file}", form, of_ids("."))
            for name, (layout, file, form) in {
                "msgpack": ("native", "/checkpoint", "msgpack"),
                ".zarray": ("native", "/target*query*/.zarray", "json"),
                "chunk": ("native", "/target*query*/0.0", "bytes"),
                "specdec's msgpack": ("ours", "/checkpoint", "msgpack"),
                "specdec's chunk": ("ours", "/target*query*/0*", "bytes"),
                "one file": ("single", "", "msgpack"),
                "Orbax _METADATA": ("orbax", "/state/_METADATA", "json"),
                "Orbax manifest": ("orbax", "/state/manifest.ocdbt", "bytes"),
                "Orbax data": ("orbax", "/state/**/d/*", "bytes"),
                "Orbax checkpoint metadata": (
                    "orbax", "/_CHECKPOINT_METADATA", "json"
                ),
                "Orbax .zarray": ("plain", "/state/target*query*/.zarray", "json"),
                "Orbax chunk": ("plain", "/state/target*query*/0*", "bytes"),
            }.items()
        },
        "training: model.json": Kind("run", "run/model.json", "json", training_run),
        "training: run.json": Kind("run", "run/run.json", "json", training_settings),
        "training: _METADATA": Kind(
            "run", "run/checkpoints/3/params/_METADATA", "json", training_run
        ),
        "gin": Kind("gin", "run.gin", "lines", gin_file, named=False),
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
    }  # fmt: skip
    for name in HEADS:
        found[f"{name}: config.json"] = Kind("drafts", f"{name}/config.json", "json", heads(name))
        found[f"{name}: weights"] = Kind(
            "drafts", f"{name}/model.safetensors", "tensors", heads(name)
        )
    return found


KINDS = _kinds()
