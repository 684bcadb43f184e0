"""Checkpoints as models that are ready to decode."""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from specdec.checkpoints.architectures import Config, decode_model
from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary
from specdec.checkpoints.formats import (
    find_vocabulary,
    located,
    open_checkpoint,
    options_of,
)
from specdec.checkpoints.generation_options import GenerationOptions
from specdec.checkpoints.heads import load_heads
from specdec.checkpoints.ngrams import load_ngrams, vocabulary_hash
from specdec.core import platforms
from specdec.core.arguments import choice
from specdec.core.topology import MOST_NODES
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import MakeTree
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.drafters.look_ahead import LookAheadDrafter
from specdec.drafters.ngram_tables import NgramTables
from specdec.models.base import LoadedModel
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.model import EagleModel, EagleParams
from specdec.models.heads.model import HeadsParams, TargetHeads
from specdec.models.look_ahead.model import LookAheadConfig, LookAheadModel, LookAheadParams
from specdec.models.partitioning import Partitioning
from specdec.models.placing import all_finite, replicate
from specdec.models.transformer.model import TransformerModel
from specdec.rules.positions import ForcedFirst
from specdec.text.base import Languages
from specdec.text.opening import difference
from specdec.types import Params

BUNDLED = ("quickstart", "quickstart_lm")


# "follow", "ignore", or options in place of those of the file, which is followed.
GenerationConfig = Literal["follow", "ignore"] | Mapping[str, Any]


def check_generation_config(given: Any) -> None:
    """Raises ValueError unless it is one."""
    if not isinstance(given, Mapping):
        choice("generation_config", given, "follow", "ignore")


def load_packed(
    config: Config, params: Params, source: str, narrow: str | None = None,
    partitioning: Partitioning | None = None, output_tokens: Sequence[int] | None = None, *,
    int8: bool = False,
) -> LoadedTarget:  # fmt: skip
    """Packs a checkpoint tree for decoding, on one device or as ``partitioning`` asks.

    Parameters too large for ``narrow`` (see :meth:`TransformerModel.pack`) are stored as they are
    after all.

    Raises:
      ValueError: the mesh does not divide the model, or cuts kernels that are to have 8 bits.
    """
    layout = platforms.current().layout if partitioning is None else "in_out"
    model = decode_model(config, layout, partitioning)
    packed = model.pack(params, output_tokens, narrow, int8=int8)
    if narrow and not all_finite(packed):
        return load_packed(config, params, source, None, partitioning, output_tokens, int8=int8)
    return as_loaded(model, packed, source)


def as_loaded(model: TransformerModel, params: Params, source: str) -> LoadedTarget:
    """A model whose parameters are packed already."""
    widths = (model.config.encoder_width, model.config.encoding_width)
    generated = None if params.output_tokens is None else len(params.output_tokens)
    return LoadedTarget(model, params, source, model.partitioning, *widths, generated)


def translating(loaded: LoadedTarget, languages: Languages, code: str | None) -> LoadedTarget:
    """A target whose outputs begin with the token of a language.

    mBART's decoder starts from it. The others' first token is forced to be it.

    Args:
      code: the language; None for the one that the checkpoint forces, or else names.

    Raises:
      ValueError: there is no such language, or none is given.
    """
    model, ids = loaded.model, set(languages.ids.values())
    assert isinstance(model, TransformerModel)  # It was read from a checkpoint.
    own = [rule for rule in loaded.rules if isinstance(rule, ForcedFirst) and rule.token in ids]
    if code is None and not own and model.config.start_id in ids:
        return loaded
    first: int | None = own[0].token if own else None
    if code is not None or not own:
        first = languages.ids[languages.code("target_language", code)]
        if languages.starts_outputs:
            config = dataclasses.replace(model.config, start_id=first)
            model, first = dataclasses.replace(model, config=config), None
    rules = tuple(rule for rule in loaded.rules if rule not in own)
    return dataclasses.replace(loaded, model=model, rules=rules, first_token=first)


def checkpoint(folder: str, name: str) -> str:
    """A checkpoint in a folder of them, or of an organisation on the Hugging Face Hub."""
    return f"{folder}/{name}"


def resolve(source: str | os.PathLike, role: Literal["target", "draft"]) -> str:
    """A bundled model's directory; anything else as it is.

    "quickstart" is its target or draft, by ``role``; "quickstart/draft" names one.
    """
    name, _, model = os.fspath(source).partition("/")
    return str(bundled(name) / (model or role)) if name in BUNDLED else os.fspath(source)


def bundled(name: str) -> Path:
    """The directory of a bundled pair."""
    return Path(str(importlib.resources.files("specdec"))) / "bundled" / name


def draft_kernel_dtype(dtype: str) -> str | None:
    """The dtype that a draft's float32 kernels are stored in; see :func:`specdec.load_pair`."""
    return "float16" if dtype == "float32" and platforms.current() == platforms.CPU else None


def load_model(
    source: str, dtype: str, narrow: str | None = None,
    partitioning: Partitioning | None = None, *, int8: bool = False, as_draft: bool = False,
    vocab_size: int | None = None, generation_config: GenerationConfig = "follow",
) -> LoadedTarget:  # fmt: skip
    """Loads a checkpoint, a parameter at a time: little more memory than the result's.

    Args:
      source: a directory of Hugging Face's or T5X's, gs://bucket/path of T5X's, or a hub id,
        behind which may stand @ and a branch, a tag or a commit.
      dtype: of activations and cache, and of weights that are stored in more bits; for the rest
        see :func:`load_packed`.
      as_draft: it generates only the tokens of its draft vocabulary, if it has one, and what its
        files ask of transformers' ``generate`` does not matter.
      vocab_size: the target's, for a draft with more or fewer rows of padding in its embedding: it
        generates the tokens that both have.
      generation_config: see :func:`specdec.load_pair`.

    Raises:
      CheckpointError: it cannot be read, or its options cannot be followed.
      ValueError: see :func:`load_packed`; ``generation_config`` has what is no option.
    """
    place = located(source)
    config, params = open_checkpoint(place, None)
    config = dataclasses.replace(config, dtype=dtype)
    generated, options = None, GenerationOptions()
    if not as_draft:
        if generation_config != "ignore":
            given = None if generation_config == "follow" else generation_config
            options = options_of(place, config, given)
    else:
        generated = load_draft_vocabulary(source, config.vocab_size)
        if vocab_size not in (None, config.vocab_size):
            common = range(min(vocab_size, config.vocab_size))
            warnings.warn(
                f"The embeddings of target and draft have {vocab_size} and {config.vocab_size} "
                f"rows with the same vocabulary: the draft guesses the first {len(common)} tokens.",
                stacklevel=2,
            )
            generated = [token for token in generated or common if token in common]
            config = dataclasses.replace(config, vocab_size=vocab_size)
    loaded = load_packed(config, params, source, narrow, partitioning, generated, int8=int8)
    return dataclasses.replace(loaded, rules=options.rules, refused=options.refused)


@dataclasses.dataclass(frozen=True)
class DraftLoader:
    """Loads the parts of a draft, for a target; see :class:`specdec.drafters.base.Opening`."""

    target: LoadedModel
    vocabulary: Path | None  # The target's tokenizer's file, if it has one.
    dtype: str  # See specdec.load_pair.
    # How a draft model lies on the target's mesh; None for one device. Tables are whole on each.
    partitioning: Partitioning | None = None

    def model(self, source: str) -> LoadedModel:
        source = resolve(source, "draft")
        file = find_vocabulary(source)
        if self.vocabulary and file and (other := difference(self.vocabulary, file)):
            raise ValueError(
                f"Target and draft have different vocabularies: of {self.vocabulary} and {file}, "
                f"with the files beside them, {other}. A draft must have the target's tokens. If "
                "it has them, put the target's tokenizer files beside it."
            )
        same = file is not None and self.vocabulary is not None
        found = load_model(
            source, self.dtype, draft_kernel_dtype(self.dtype), self.partitioning, as_draft=True,
            vocab_size=self.target.model.vocab_size if same else None,
        )  # fmt: skip
        _check_same_tokens(self.target, found)
        theirs, ours = found.model.max_positions, self.target.model.max_positions
        if theirs is not None and ours is not None and theirs < ours:
            warnings.warn(
                f"The draft ({found.source}) has {theirs} positions and the target {ours}: beyond "
                "the draft's, its guesses are bad. The output stays exact.",
                stacklevel=2,
            )
        found = _sharing_encoder(self.target, found)
        width, given = found.reads_encoding, self.target.encoding_width
        if width not in (None, given):
            raise ValueError(
                f"The draft ({found.source}) starts from an encoding of width {width}, but that "
                f"of the target ({self.target.source}) has {given}. Such a draft goes with the "
                "target that it was distilled from."
            )
        return found

    def heads(self, path: str) -> tuple[MakeTree, Params, int]:
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self.target.params)):
            raise ValueError(
                "Heads need the target's weights when they are loaded, and here these come later: "
                "choose a draft model."
            )
        _, params = open_checkpoint(self.target.source, None)
        path = resolve(path, "draft")
        config, weights = load_heads(path, params)
        model, own, narrow = self.target.model, self.target.params, draft_kernel_dtype(self.dtype)
        assert isinstance(model, TransformerModel)  # It was read from a checkpoint.
        tokens = load_draft_vocabulary(path, model.vocab_size)
        if tokens is not None:
            own = model.restricted(own, params, tokens, narrow)
        if isinstance(config, EagleConfig):
            layer = EagleModel(model, config)
            packed = replicate(layer.pack(weights, narrow), self.target.partitioning)
            return partial(EagleDrafter, layer), EagleParams(packed, own), MOST_NODES
        weights = replicate(weights, self.target.partitioning)
        if isinstance(config, LookAheadConfig):
            ahead = LookAheadModel(model, config)
            ahead_params = LookAheadParams(weights["embeddings"], own)
            return partial(LookAheadDrafter, ahead), ahead_params, config.count
        heads = TargetHeads(model, config)
        return partial(OffsetHeadsDrafter, heads), HeadsParams(weights, own), config.count

    def ngrams(self, path: str) -> NgramTables:
        tables, theirs = load_ngrams(bundled(path) if path in BUNDLED else path)
        size, ours = tables.unigram.shape[0], self.target.model.vocab_size
        other = theirs and self.vocabulary and vocabulary_hash(self.vocabulary) != theirs
        if size != ours or other:
            raise ValueError(
                f"The n-gram tables of {path} are of another vocabulary ({size} tokens) than the "
                f"target's ({ours} tokens, {self.vocabulary}). Count them again with the target's "
                "vocabulary."
            )
        return replicate(tables, self.partitioning)


def _sharing_encoder(target: LoadedModel, draft: LoadedModel) -> LoadedModel:
    """The draft without its encoder where that is the target's own, as Distil-Whisper's is.

    Its decoder then reads what the target's encoder makes of an input, which is made once.
    """
    ours, theirs = target.model, draft.model
    if not (isinstance(ours, TransformerModel) and isinstance(theirs, TransformerModel)):
        return draft
    if target.partitioning is not None or ours.config.encoder != theirs.config.encoder:
        return draft
    parts = ["encoder"] if ours.config.features is not None else ["encoder", "embedding"]
    mine, its = ([getattr(each.params, name) for name in parts] for each in (target, draft))
    if None in its or jax.tree.structure(mine) != jax.tree.structure(its):
        return draft
    if not jax.tree.all(jax.tree.map(_equal, mine, its)):
        return draft
    return dataclasses.replace(draft, params=dataclasses.replace(draft.params, encoder=None))


def _equal(a: jax.Array, b: jax.Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(np.asarray(a), np.asarray(b))


def _check_same_tokens(target: LoadedModel, draft: LoadedModel) -> None:
    """Raises ValueError unless the models have the same number of tokens and special ids.

    Of several EOS ids one in common is enough: the target's end a row. A model that has none shows
    nothing of its tokens by that.
    """
    if target.model.reads_prefix != draft.model.reads_prefix:
        kinds = {False: "an encoder-decoder", True: "decoder-only"}
        raise ValueError(
            f"The target ({target.source}) is {kinds[target.model.reads_prefix]}, the draft "
            f"({draft.source}) {kinds[draft.model.reads_prefix]}: one reads a text with its "
            "encoder, the other continues it. Choose a draft of the target's kind."
        )
    if target.model.input_shape != draft.model.input_shape:
        kinds = (
            "tokens" if shape is None else f"{shape[0]} frames of {shape[1]} mel bins"
            for shape in (target.model.input_shape, draft.model.input_shape)
        )
        raise ValueError(
            "The target ({2}) reads {0}, the draft ({3}) {1}: a draft must read what its target "
            "reads.".format(*kinds, target.source, draft.source)
        )
    for (name, ours), theirs in zip(_tokens(target).items(), _tokens(draft).values(), strict=True):
        if ours and theirs and not set(ours) & set(theirs):
            ours, theirs = (" or ".join(map(str, tokens)) for tokens in (ours, theirs))
            raise ValueError(
                f"Target and draft have different vocabularies: {name} is {ours} for the target "
                f"({target.source}) and {theirs} for the draft ({draft.source}). A draft must have "
                "the target's tokens; where only padding rows of the embedding differ, put the "
                "same spiece.model beside both."
            )


def _tokens(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    model = loaded.model
    prefix = model.prompt(np.zeros((1, 1), np.int32), np.zeros(1, np.int32)).prefix
    return {
        "vocab_size": (model.vocab_size,), "pad_id": (model.pad_id,), "eos_id": model.eos_ids,
        "decoder_start_id": (int(prefix[0, 0]),),
    }  # fmt: skip
