"""A family of models: how config.json says its networks, and how files call their parameters.

A family is a module beside this one, which ends in ``FAMILY = Family(...)``. Nothing else names it.
It says what is its own; reading, saving, and the shapes of parameters are here, for all of them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec.checkpoints.fields import Fields
from specdec.checkpoints.hf_files import (
    CONFIG,
    STORED_DTYPES,
    Parameter,
    stored_array,
    task_of,
    weight_files,
)
from specdec.checkpoints.parameters import CheckpointError, StoredArray, check_names, read_as
from specdec.models.transformer.config import Logits, TransformerConfig
from specdec.models.transformer.tree import parameter_shapes

# How the heads of transformers' classifiers are called.
_CLASSIFIERS = ("classification_head.", "classifier.", "qa_outputs.", "score.")
# Tensors that older versions of transformers saved beside the weights: buffers that config.json
# determines (angles of rotary positions, numbers of positions, masks of GPT-2, a factor of
# Gemma's), a bias of T5 that nothing used, and BART's versions. Newer ones pass over them, too.
_LEFTOVERS = re.compile(
    r"rotary_emb(_local)?\.(\w*inv_freq|(cos|sin)_cached)$|(^|\.)position_ids$|\.embed_scale$"
    r"|\.(attn|crossattention)\.(masked_)?bias$|(^|\.)(en|de)coder\.version$"
    r"|^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"
)
EMBEDDING_PATH, HEAD_PATH = "token_embedder/embedding", "decoder/logits_dense/kernel"
Opened = tuple[TransformerConfig, dict[str, StoredArray]]
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(.+)")
_PROJECTIONS = ("query", "key", "value", "out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """Names of modules in files, by our own.

    Attributes:
      modules: of those that are in no layer.
      layers: of a stack's layers, with {} for the number.
      parts: of what a layer has; behind "encoder/" or "decoder/" what only that one calls so.
      leaves: of whole parameters that are called unlike others, and their shapes there.
      stored: shapes of kernels that have more axes there, [out, in, ...].
      turned: whether kernels are [out, in] there, not [in, out].
    """

    modules: Mapping[str, str]
    layers: Mapping[str, str]
    parts: Mapping[str, str]
    leaves: Mapping[str, tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    stored: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    turned: bool = True

    def parameter(self, path: str, shape: tuple[int, ...]) -> tuple[str, Parameter]:
        """A parameter's name, and how it is stored."""
        if path in self.leaves:
            name, stored = self.leaves[path]
            return name, Parameter(path, shape, stored, False)
        module, leaf = path.rsplit("/", 1)
        if found := _LAYER.fullmatch(module):
            stack, number, part = found.groups()
            own = self.parts.get(f"{stack}/{part}") or self.parts[part]
            name = f"{self.layers[stack].format(number)}.{own}"
        else:
            name = self.modules[module]
        turned = leaf != "embedding" and (self.turned or found is None)
        # Query, key and value of a joined kernel are one axis in files.
        flat = (*shape[:-2], math.prod(shape[-2:])) if module.endswith("/qkv") else shape
        stored = self.stored.get(path) or (flat[::-1] if turned else flat)
        return f"{name}.{'bias' if leaf == 'bias' else 'weight'}", Parameter(
            path, shape, stored, turned
        )


def projections(ours: str, theirs: str, letters: Iterable[str] = "qkvo") -> dict[str, str]:
    """Names of an attention's products, whose letters stand for {}."""
    named = zip(_PROJECTIONS, letters, strict=True)
    return {f"{ours}/{name}": theirs.format(letter) for name, letter in named}


def same(*names: str, before: str = "") -> dict[str, str]:
    """Names of files by our own, of those that are called alike."""
    return {name: f"{before}{name.rsplit('/')[-1]}" for name in names}


@dataclasses.dataclass(frozen=True)
class Weights:
    """The tensors in a checkpoint's files, by name, which are read when used.

    Attributes:
      files: for each name the file, its name there and what the file calls its dtype.
      dtype: to read them in; None for each as it is stored.
    """

    directory: Path
    files: Mapping[str, tuple[Path, str, str]]
    dtype: np.dtype | None

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def renamed(self, rename: Callable[[str], str]) -> Weights:
        """These weights by other names."""
        files = {rename(name): file for name, file in self.files.items()}
        return dataclasses.replace(self, files=files)

    def stored(self, name: str, parameter: Parameter, scale: float = 1.0) -> StoredArray:
        """A tensor as our tree has it, times ``scale``: in float32 then, if ``dtype`` is None."""
        path, theirs, kind = self.files[name]
        # A factor would be rounded in fewer bits; other kinds are refused when they are read.
        as_stored = read_as(STORED_DTYPES.get(kind) if scale == 1 else None)
        return stored_array(path, theirs, parameter, self.dtype or as_stored, scale)

    def check(self, required: Iterable[str], optional: Iterable[str]) -> None:
        """Raises CheckpointError for a parameter that is missing or unknown.

        Leftovers of older versions of transformers may be there.
        """
        left = filter(_LEFTOVERS.search, self)
        check_names(self.directory, required, self, f"{CONFIG} and the weights", [*optional, *left])

    def check_decoder(self, part: str) -> None:
        """Raises CheckpointError for weights of a model that makes no tokens, and for other names.

        Args:
          part: how the names of a decoder's layers begin.
        """
        for name in self:
            if name.startswith(_CLASSIFIERS):
                raise CheckpointError(
                    f"{self.directory} is a classifier (it has {name}), which makes no tokens: "
                    "only models with a language model's head can be loaded."
                )
        if any(name.startswith(part) for name in self):
            return
        for name in self:
            before, found, _ = name.partition(f".{part}")
            if found:
                raise CheckpointError(
                    f"{self.directory}: names of parameters begin with {before}., such as {name}: "
                    "they are of a model inside of another one. Save the inner one with "
                    f"save_pretrained, or take {before}. off the names."
                )
        if any(name.startswith("encoder.") for name in self):
            raise CheckpointError(
                f"{self.directory} has no decoder, only an encoder, which cannot generate. Load a "
                "checkpoint with both."
            )


def weights_in(directory: Path, dtype: np.dtype | None, config: TransformerConfig) -> Weights:
    """Weights of a checkpoint's directory; CheckpointError if there are none."""
    found = weight_files(directory, task_of(config.reads_prefix)).items()
    files = {name: (path, name, kind) for name, (path, kind) in found}
    return Weights(directory, files, dtype)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """Models of some settings, which have names in common.

    Attributes:
      model_types: config.json's, and for each what public models of that type are called, too.
      public: public checkpoints whose shape is in configs/shapes: for each kind of name the name
        of the file. SIZE is any size, the same in both, and * is what may follow.
      shape: the function that these files bind.
      parse_config: the network that a config.json of a model type, with the defaults of what it
        leaves out, and generation_config.json, if there is one, describe. Raises CheckpointError or
        ValueError for what is missing, wrong or unsupported.
      fields: config.json's names of the config's fields that have another there, for messages.
      model_type_of: the type of a network; None if it is not of this family.
      format_config: the config.json with which transformers computes what a config of a type does,
        but for special tokens and the weights' dtype. Every field that ``parse_config`` reads is in
        it.
      names: how files call a network's parameters.
      open_parameters: the parameters by their paths in our tree, and the config as the weights
        correct it: whether logits are tied shows in them alone.
      tokenizer_class: named in tokenizer_config.json; None where the model type implies it.
    """

    model_types: Mapping[str, str]
    public: Mapping[str, str]
    shape: Callable[..., TransformerConfig]
    parse_config: Callable[[str, Fields, Fields | None], TransformerConfig]
    fields: Mapping[str, str]
    model_type_of: Callable[[TransformerConfig], str | None]
    format_config: Callable[[TransformerConfig, str], dict[str, Any]]
    names: Callable[[TransformerConfig], Names]
    open_parameters: Callable[[Weights, TransformerConfig], Opened]
    tokenizer_class: str | None = None

    def public_shape(self, name: str) -> tuple[str, str] | None:
        """The file of a public checkpoint in configs/shapes, and what fits all of its kind.

        None where it is no such name.
        """
        for known, shape in self.public.items():
            pattern = re.escape(known).replace("SIZE", r"([\w.]+)").replace(r"\*", "(?:-.*)?")
            if found := re.fullmatch(pattern, name, re.IGNORECASE):
                all_of_it = shape.replace("SIZE", "*")
                for size in found.groups():
                    shape = shape.replace("SIZE", size.lower().replace(".", "_"), 1)
                return shape, all_of_it
        return None


def named_parameters(config: TransformerConfig, names: Names) -> dict[str, Parameter]:
    """Every parameter of a network, by a file's name."""
    return dict(names.parameter(*each) for each in parameter_shapes(config).items())


def open_by_table(
    weights: Weights, config: TransformerConfig, names: Names, unused: Iterable[str] = ()
) -> Opened:
    """The parameters of a model whose logits are tied if the head is the embedding.

    Args:
      unused: names that may be there.
    """
    table = named_parameters(untied(config), names)
    by_path = {each.path: name for name, each in table.items()}
    head, embedding = by_path[HEAD_PATH], by_path[EMBEDDING_PATH]
    if head in weights and embedding in weights:
        theirs, ours = (weights.stored(name, table[name]) for name in (head, embedding))
        config = config.with_logits(tied=np.array_equal(np.asarray(theirs).T, ours))
    if config.tied_logits:
        del table[head]
    weights.check(table, [head, *unused])
    return config, {each.path: weights.stored(name, each) for name, each in table.items()}


def untied(config: TransformerConfig) -> TransformerConfig:
    """The config with logits of their own, which nothing scales."""
    logits = Logits(False, bias=config.logits.bias, softcap=config.logits.softcap)
    return dataclasses.replace(config, logits=logits)
