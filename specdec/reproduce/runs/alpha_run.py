"""A run that measures alpha for several drafts along texts of the target's own."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.api import Pair
from specdec.core import files
from specdec.core.machine import fingerprint
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.load import load_pair
from specdec.measure import alpha, results
from specdec.measure.rows import measure_rows
from specdec.reproduce.pieces import Done, slug
from specdec.types import SamplingConfig

TEXTS, IDENTITY, RESULTS = "texts.jsonl", "run.json", "alpha.json"


@dataclasses.dataclass(frozen=True)
class AlphaRun:
    """A piece: alpha of some drafts. Other fields: :func:`specdec.load_pair`, ``Pair.generate``.

    Attributes:
      path: see :class:`specdec.reproduce.pieces.Piece`.
      task: whose inputs; ``num_examples`` of them, evenly spread. The paper has 10,000 tokens.
      drafts: names of checkpoints, or specs.
      sampling: the target's and the drafts'.
    """

    path: tuple[str, ...]
    task: Task
    target: str
    drafts: Sequence[str | DraftSpec]
    sampling: SamplingConfig
    num_examples: int
    max_input_len: int
    max_decode_len: int
    batch_size: int = 16
    dtype: str = "float32"
    seed: int = 0

    def do(self, directory: Path) -> Done:
        """Measures rows that are not on disk yet; writes the results' file and returns its content.

        Raises:
          OSError: the directory cannot be written to.
          ValueError: an input is too long, a draft does not fit, a checkpoint cannot be read, or
            the directory holds another run.
        """
        files.check_writable(directory)
        examples = evenly(self.task.examples, self.num_examples)
        found, rows, batches = {}, {}, []
        fresh: list[int] = []  # Rows that were decoded or replayed now.
        for spec in self.drafts:
            pair = load_pair(target=self.target, draft=spec, dtype=self.dtype)
            if not batches:
                given, names = model_inputs(examples, pair.vocabulary), [e.origin for e in examples]
                ids = pair.token_ids(given, max_input_len=self.max_input_len, names=names)
                batches = list(make_batches(ids, self.batch_size, pair.target.model))
                self._claim(directory, pair, ids)
                rows = self._texts(directory, pair, batches, fresh)
            # Of these weights and these texts: a draft that was trained again is measured again.
            key = zlib.crc32(repr(sorted(rows.items())).encode())
            weights = fingerprint(pair.draft.weights)
            lines = directory / f"{slug(str(spec))}-{weights}-{key:08x}.jsonl"
            found[str(spec)] = self._measure(lines, pair, batches, rows, fresh)
        content = {
            "task": self.task.name, "target": self.target, "seed": self.seed,
            **dataclasses.asdict(self.sampling), "drafts": found, **results.provenance(),
        }  # fmt: skip
        files.write_json(directory / RESULTS, content)
        return Done(content, measured=bool(fresh))

    def _claim(self, directory: Path, pair: Pair, ids: Sequence[np.ndarray]) -> None:
        """Marks the directory as this measurement's; raises if it holds another."""
        settings = {name: str(value) for name, value in vars(self).items()}
        del settings["task"], settings["drafts"], settings["path"]
        inputs = f"{zlib.crc32(b' '.join(row.tobytes() for row in ids)):08x}"
        known = {"task": self.task.name, "inputs": inputs, **settings}
        identity = json.dumps({"weights": fingerprint(pair.target.params), **known}, indent=1)
        path = directory / IDENTITY
        if path.exists() and path.read_text(encoding="utf-8") != identity:
            raise ValueError(
                f"{directory} holds another measurement (compare its {IDENTITY}); choose another "
                "directory or remove it."
            )
        directory.mkdir(parents=True, exist_ok=True)
        files.write_text(path, identity)

    @property
    def _decoding(self) -> Decoding:
        return Decoding(
            gamma=1, sampling=self.sampling, max_decode_len=self.max_decode_len, seed=self.seed
        )

    def _texts(
        self, directory: Path, pair: Pair, batches: Sequence[Batch], fresh: list[int]
    ) -> dict[int, list[int]]:
        """The target's outputs by row; adds to ``fresh`` the rows that are decoded for it."""
        decoder = pair.decoder(self._decoding.with_shape(None))

        def decode(batch: Batch, wanted: Mapping[int, int]) -> Iterator[Text]:
            fresh.extend(wanted)
            result = decoder.decode(batch)
            for row, index in wanted.items():
                yield Text(row, result.tokens[index, : result.num_tokens[index]].tolist())

        return {r.id: r.tokens for r in measure_rows(directory / TEXTS, batches, Text, decode)}

    def _measure(
        self, path: Path, pair: Pair, batches: Sequence[Batch], texts: Mapping[int, list[int]],
        fresh: list[int],
    ) -> dict[str, Any]:  # fmt: skip
        """A draft's results, of rows that are kept in a file."""
        decoder = pair.decoder(self._decoding)

        def replay(batch: Batch, wanted: Mapping[int, int]) -> Iterator[alpha.RowAcceptance]:
            fresh.extend(wanted)
            found = alpha.replayed(decoder, batch, {i: texts[row] for row, i in wanted.items()})
            for row, index in wanted.items():
                yield alpha.RowAcceptance.of(found, index, row, len(texts[row]))

        return alpha.summary(measure_rows(path, batches, alpha.RowAcceptance, replay))


@dataclasses.dataclass(frozen=True)
class Text:
    """A row's output, EOS included; a line of ``texts.jsonl``."""

    id: int
    tokens: list[int]
