"""A run that measures alpha for several drafts along texts of the target's own."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.api import Pair
from specdec.core import files
from specdec.core.machine import fingerprint
from specdec.core.progress import Progress
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.load import load_pair
from specdec.measure import alpha, results
from specdec.reproduce.pieces import Done, kept, slug
from specdec.types import SamplingConfig

TEXTS, RESULTS = "texts.json", "alpha.json"


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
        """Measures drafts that are not on disk yet; writes the results and returns them.

        Raises:
          OSError: the directory cannot be written to.
          ValueError: an input is too long, a draft does not fit, or a checkpoint cannot be read.
        """
        files.check_writable(directory)
        examples = evenly(self.task.examples, self.num_examples)
        names = [each.origin for each in examples]
        found, measured = {}, False
        for spec in self.drafts:
            pair = load_pair(target=self.target, draft=spec, dtype=self.dtype)
            given = model_inputs(examples, pair.vocabulary)
            ids = pair.token_ids(given, max_input_len=self.max_input_len, names=names)
            batches = list(make_batches(ids, self.batch_size, pair.target.model))
            settings = self._settings(pair, ids)
            texts = kept(directory / TEXTS, settings, functools.partial(self._texts, pair, batches))
            rows = texts.result["texts"]
            # Of these weights and these texts: a draft that was trained again is measured again.
            draft = f"{spec} {fingerprint(pair.draft.weights)}"
            done = kept(
                directory / f"{slug(str(spec))}.json",
                {**settings, "draft": draft, "texts": zlib.crc32(repr(rows).encode())},
                functools.partial(self._measured, pair, batches, rows),
            )
            found[str(spec)] = done.numbers
            measured |= texts.measured or done.measured
        content = {
            "task": self.task.name, "target": self.target, "seed": self.seed,
            **dataclasses.asdict(self.sampling), "drafts": found, **results.provenance(),
        }  # fmt: skip
        files.write_json(directory / RESULTS, content)
        return Done(content, measured)

    def _settings(self, pair: Pair, ids: Sequence[np.ndarray]) -> dict[str, Any]:
        """All that decides the target's texts."""
        fields = {name: str(value) for name, value in vars(self).items()}
        inputs = zlib.crc32(b" ".join(row.tobytes() for row in ids))
        known = {"task": self.task.name, "weights": fingerprint(pair.target.params)}
        del fields["task"], fields["drafts"], fields["path"]
        return {**fields, **known, "inputs": inputs}

    @property
    def _decoding(self) -> Decoding:
        return Decoding(
            gamma=1, sampling=self.sampling, max_decode_len=self.max_decode_len, seed=self.seed
        )

    def _texts(self, pair: Pair, batches: Sequence[Batch]) -> dict[str, Any]:
        """The target's outputs, EOS included, by row."""
        decoder = pair.decoder(self._decoding.with_shape(None))
        texts = {}
        for batch in _shown(batches, "texts"):
            result = decoder.decode(batch)
            for index, row in _rows(batch).items():
                texts[row] = result.tokens[index, : result.num_tokens[index]].tolist()
        return {"texts": [texts[row] for row in sorted(texts)]}

    def _measured(
        self, pair: Pair, batches: Sequence[Batch], texts: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """Alpha of a draft along the texts."""
        decoder = pair.decoder(self._decoding)
        found = []
        for batch in _shown(batches, "alpha"):
            given = {index: texts[row] for index, row in _rows(batch).items()}
            found += alpha.replayed(decoder, batch, given)
        return alpha.summary(found)


def _rows(batch: Batch) -> dict[int, int]:
    """Rows by their index in a batch."""
    return {index: row for index, row in enumerate(batch.row_ids.tolist()) if row >= 0}


def _shown(batches: Sequence[Batch], name: str) -> Iterator[Batch]:
    """Batches one after the other, with progress."""
    with Progress(len(batches), "batches", name=name) as progress:
        for batch in batches:
            yield batch
            progress.add(kind=batch.shape)
