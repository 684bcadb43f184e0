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

_FORMS = {
    "json": (".json", ".zarray", "_METADATA"), "lines": (".txt", ".tsv", ".gin", ".jsonl"),
    "tensors": (".safetensors",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
    """A file (a pattern: the first that matches) in a directory of ``GOOD``, and its reader."""

    good: str
    file: str
    read: Callable[[Path], Check]

    @property
    def form(self) -> str:
        """See fuzz_mutations; "bytes" for no form."""
        forms = (form for form, ends in _FORMS.items() if self.file.endswith(ends))
        return next(forms, "bytes")

    @property
    def named(self) -> bool:
        """Whether a refusal names the file, or the directory that it is in."""
        return self.read is not gin_file


# The reader, the directory of GOOD, the files.
_FILES: list[tuple[Callable[[Path], Check], str, str]] = [
    (draft_model, "drafts", "draft/config.json draft/generation_config.json"),
    (draft_model, "drafts", "draft/model.safetensors draft/draft_vocabulary.json"),
    (ngrams, "drafts", "ngrams.safetensors"),
    (heads("heads"), "drafts", "heads/draft_vocabulary.json"),
    *((heads(name), "drafts", f"{name}/config.json {name}/model.safetensors") for name in HEADS),
    (target, "t5", "target/config.json target/generation_config.json target/model.safetensors"),
    (target, "t5", "target/spiece.model target/tokenizer_config.json"),
    (of_ids("target"), "shards", "target/model.safetensors.index.json"),
    (of_ids("target"), "shards", "target/model-00002*.safetensors"),
    (target, "fast", "target/tokenizer.json target/tokenizer_config.json"),
    (target, "fast", "target/special_tokens_map.json"),
    (target, "bytes", "target/tokenizer_config.json"),
    (target, "gpt", "target/config.json target/generation_config.json target/model.safetensors"),
    (target, "gpt", "target/vocab.json target/merges.txt target/added_tokens.json"),
    (target, "gpt", "target/special_tokens_map.json target/tokenizer_config.json"),
    (of_ids("."), "native", "checkpoint_3/checkpoint checkpoint_3/target*query*/.zarray"),
    (of_ids("."), "native", "checkpoint_3/target*query*/0.0"),
    (of_ids("."), "ours", "checkpoint_3/checkpoint checkpoint_3/target*query*/0*"),
    (of_ids("."), "single", "checkpoint_3"),
    (of_ids("."), "orbax", "checkpoint_3/state/_METADATA checkpoint_3/state/manifest.ocdbt"),
    (of_ids("."), "orbax", "checkpoint_3/state/**/d/* checkpoint_3/_CHECKPOINT_METADATA"),
    (of_ids("."), "plain", "checkpoint_3/state/target*query*/.zarray"),
    (of_ids("."), "plain", "checkpoint_3/state/target*query*/0*"),
    (training_run, "run", "run/model.json run/checkpoints/3/params/_METADATA"),
    (training_settings, "run", "run/run.json"),
    (gin_file, "gin", "run.gin"),
    (all_rows(lambda root: pairs_file("t", root, "test")), "texts", "test.tsv"),
    (all_rows(lambda root: text_file(root / "texts.txt")), "texts", "texts.txt"),
    (all_rows(lambda root: openings("o", root / "openings.txt", 2)), "texts", "openings.txt"),
    (resumed, "decoded", "out/decodes.jsonl out/operative_config.gin"),
    (resumed, "decoded", "out/results.json out/skipped.jsonl"),
]
KINDS = {
    f"{good}: {file}": Kind(good, file, read)
    for read, good, files in _FILES
    for file in files.split()
}
