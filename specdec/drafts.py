"""What a pair drafts with: a draft model, n-gram tables, copying, chance, or one under another.

A *spec* says which (small, printable, nothing loaded); ``open`` makes a *draft* of it for a given
target, which gives a drafter for each gamma and sampling.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
from pathlib import Path
from typing import Protocol

from specdec.checkpoints import find_vocabulary
from specdec.checkpoints.loading import (
    BUNDLED,
    LoadedModel,
    draft_kernel_dtype,
    load_model,
    resolve,
)
from specdec.checkpoints.ngrams import load_ngrams, of_order, vocabulary_hash
from specdec.drafters.base import Drafter
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.ngram_tables import NgramTables
from specdec.drafters.random import RandomDrafter
from specdec.models.partitioning import Partitioning, replicate
from specdec.types import Params, SamplingConfig


class OpenDraft(Protocol):
    """An opened draft. ``params`` are those of the drafters that it gives."""

    @property
    def params(self) -> Params:
        """The drafters' parameters."""
        ...

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        """A drafter of ``gamma`` guesses a block, drawn as ``sampling`` says.

        Raises:
          ValueError: it cannot draw them so, or cannot stop in doubt.
        """
        ...


class DraftSpec(Protocol):
    """What to draft with."""

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> OpenDraft:
        """Loads it.

        Args:
          vocabulary: the target's SentencePiece model; None where it has none.
          dtype: see :func:`specdec.load_pair`.
          partitioning: how a draft model lies on the target's mesh; None for one device. Tables
            are whole on every device.

        Raises:
          ValueError: it does not speak the target's tokens, or the mesh does not divide it.
          CheckpointError: a file cannot be read.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ModelDraft:
    """A draft model that was loaded."""

    loaded: LoadedModel

    @property
    def params(self) -> Params:
        return self.loaded.params

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        return ModelDrafter(self.loaded.model, gamma, sampling, stop_below)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A draft model: a directory, a hub id or a bundled pair's name; see `specdec.load_pair`."""

    source: str

    def __str__(self) -> str:
        return self.source

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> ModelDraft:
        source = resolve(self.source, "draft")
        theirs = find_vocabulary(source)
        if vocabulary and theirs and vocabulary.read_bytes() != theirs.read_bytes():
            raise ValueError(
                f"Target and draft have different vocabularies: {vocabulary} and {theirs} are not "
                "the same file. A draft must speak the target's tokens."
            )
        loaded = load_model(source, dtype, draft_kernel_dtype(dtype), partitioning, as_draft=True)
        check_same_tokens(target, loaded)
        check_reads(target, loaded)
        return ModelDraft(loaded)


_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


@dataclasses.dataclass(frozen=True)
class Ngram:
    """N-gram tables that ``scripts/train.py`` made of a task's outputs; see ``configs/training``.

    Attributes:
      path: a file, a directory that holds ngrams.safetensors, or a bundled pair's name.
      order: use contexts of at most ``order - 1`` tokens (1: unigram, 2: bigram); None for all
        that the tables have.
    """

    path: str
    order: int | None = None

    def __str__(self) -> str:
        name = "n-gram" if self.order is None else _NAMES.get(self.order, f"{self.order}-gram")
        return f"{name} of {self.path}"

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> _OpenNgram:
        del dtype
        path = self.path
        if path in BUNDLED:
            path = str(importlib.resources.files("specdec") / "bundled" / path)
        tables, theirs = load_ngrams(path)
        size = tables.unigram.shape[0]
        other_file = bool(vocabulary and theirs) and vocabulary_hash(vocabulary or "") != theirs
        if size != target.model.vocab_size or other_file:
            raise ValueError(
                f"The n-gram tables of {self.path} are of another vocabulary ({size} tokens) than "
                f"the target's ({target.model.vocab_size} tokens, {vocabulary}). Count them anew "
                "with the target's vocabulary."
            )
        if self.order is not None:
            tables = of_order(tables, self.order)
        return _OpenNgram(replicate(tables, partitioning), target.model.decoder_start_id)


@dataclasses.dataclass(frozen=True)
class _OpenNgram:
    params: NgramTables
    start_id: int

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        _never_stops("An n-gram", stop_below)
        return NgramDrafter(gamma, self.params.order, self.start_id, sampling)


@dataclasses.dataclass(frozen=True)
class Copying:
    """Copies what followed the last tokens in the input or the output so far.

    Attributes:
      max_match: most tokens compared.
    """

    max_match: int = 8

    def __str__(self) -> str:
        return "copying"

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> _OpenCopying:
        del vocabulary, dtype, partitioning
        return _OpenCopying(target.model.pad_id, target.model.eos_id, self.max_match)


@dataclasses.dataclass(frozen=True)
class _OpenCopying:
    pad_id: int
    eos_id: int
    max_match: int
    params: Params = ()

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        del sampling  # What is copied is no matter of chance.
        _never_stops("Copying", stop_below)
        return CopyingDrafter(gamma, self.pad_id, self.eos_id, self.max_match)


@dataclasses.dataclass(frozen=True)
class Random:
    """Draws guesses uniformly from the vocabulary."""

    def __str__(self) -> str:
        return "random"

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> _OpenRandom:
        del vocabulary, dtype, partitioning
        return _OpenRandom(target.model.vocab_size)


@dataclasses.dataclass(frozen=True)
class _OpenRandom:
    vocab_size: int
    params: Params = ()

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        del sampling  # Uniform at any temperature.
        _never_stops("Random guessing", stop_below)
        return RandomDrafter(gamma, self.vocab_size)


@dataclasses.dataclass(frozen=True)
class Hierarchical:
    """A draft model that is itself sampled speculatively.

    Attributes:
      draft: the draft model, as in :func:`specdec.load_pair`.
      inner: what guesses its tokens: n-gram tables, copying or chance.
      gamma: guesses of ``inner`` in a round.
    """

    draft: str
    inner: Ngram | Copying | Random
    gamma: int = 2

    def __str__(self) -> str:
        return f"{self.draft} over {self.inner}"

    def open(
        self,
        target: LoadedModel,
        vocabulary: Path | None,
        dtype: str,
        partitioning: Partitioning | None = None,
    ) -> _OpenHierarchical:
        draft = Checkpoint(self.draft).open(target, vocabulary, dtype, partitioning)
        inner = self.inner.open(target, vocabulary, dtype, partitioning)
        return _OpenHierarchical(draft.loaded, inner, self.gamma)


@dataclasses.dataclass(frozen=True)
class _OpenHierarchical:
    loaded: LoadedModel
    inner: OpenDraft
    gamma: int

    @property
    def params(self) -> Params:
        return self.loaded.params, self.inner.params

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        _never_stops("A hierarchical draft", stop_below)
        inner = self.inner.drafter(self.gamma, sampling)
        return HierarchicalDrafter(self.loaded.model, inner, gamma, sampling)


def spec_of(draft: str | os.PathLike | DraftSpec) -> DraftSpec:
    """A checkpoint's name as a spec; a spec as it is."""
    return Checkpoint(os.fspath(draft)) if isinstance(draft, str | os.PathLike) else draft


def _never_stops(what: str, stop_below: float) -> None:
    if stop_below:
        raise ValueError(f"{what} has no doubts: stop_below must be 0, got {stop_below}.")


def check_same_tokens(target: LoadedModel, draft: LoadedModel) -> None:
    """Raises ValueError unless the models have the same number of tokens and special ids."""
    for field in ("vocab_size", "pad_id", "eos_id", "decoder_start_id"):
        ours, theirs = getattr(target.model, field), getattr(draft.model, field)
        if ours != theirs:
            raise ValueError(
                f"Target and draft have different vocabularies: {field} is {ours} for the target "
                f"({target.source}) and {theirs} for the draft ({draft.source})."
            )


def check_reads(target: LoadedModel, draft: LoadedModel) -> None:
    """Raises ValueError for a draft that starts from an encoding which is not the target's."""
    width, theirs = draft.model.config.encoding_width, target.model.config.d_model
    if width not in (None, theirs):
        raise ValueError(
            f"The draft ({draft.source}) starts from an encoding of width {width}, but that of the "
            f"target ({target.source}) has {theirs}. Such a draft goes with the target that it was "
            "distilled from."
        )
