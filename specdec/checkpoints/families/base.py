"""A family of models: the classes that run it, and its names in Hugging Face's files.

A family is a folder under ``specdec/models`` and a module here, which ends in
``FAMILY = Family(...)``. Nothing else names it.
"""

from __future__ import annotations

import dataclasses
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
from specdec.models.config import Config
from specdec.models.packed import PackedModel

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
Opened = tuple[Config, dict[str, StoredArray]]
Named = Iterable[tuple[str, str, tuple[int, ...]]]  # Hugging Face's name, our path, our shape.


def turned_kernels(named: Named) -> dict[str, Parameter]:
    """Parameters by Hugging Face's name: files have all but embeddings transposed, [out, in]."""
    found = {}
    for name, path, shape in named:
        is_kernel = not path.endswith("/embedding")
        found[name] = Parameter(path, shape, shape[::-1] if is_kernel else shape, is_kernel)
    return found


def norm(name: str, path: str, width: int) -> Named:
    """A LayerNorm's."""
    return (f"{name}.weight", f"{path}/scale", (width,)), (f"{name}.bias", f"{path}/bias", (width,))


def dense(name: str, path: str, size: int, features: tuple[int, ...]) -> Named:
    """A product's with a bias."""
    yield f"{name}.weight", f"{path}/kernel", (size, *features)
    yield f"{name}.bias", f"{path}/bias", features


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


def weights_in(directory: Path, dtype: np.dtype | None, config: Config) -> Weights:
    """Weights of a checkpoint's directory; CheckpointError if there are none."""
    found = weight_files(directory, task_of(config.reads_prefix)).items()
    files = {name: (path, name, kind) for name, (path, kind) in found}
    return Weights(directory, files, dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Models of one network with different settings.

    Attributes:
      config: the class of their configs.
      network: the module with ``Transformer``, which is trained and scores whole texts, and
        ``init_params``.
      model: the class that decodes.
      model_types: config.json's, and for each what public models of that type are called, too.
      public: public checkpoints whose shape is in configs/shapes: for each kind of name the name
        of the file. SIZE is any size, the same in both, and * is what may follow.
      tokenizer_class: named in tokenizer_config.json; None where the model type implies it.
      parse_config: the network that a config.json of a model type, with the defaults of what it
        leaves out, and generation_config.json, if there is one, describe. Raises CheckpointError or
        ValueError for what is missing, wrong or unsupported.
      names: config.json's, of the config's fields that have another there.
      format_config: the config.json with which transformers computes what a config does, but for
        special tokens and the weights' dtype. Every field that ``parse_config`` reads is in it.
      all_parameters: every parameter of a network, by Hugging Face's name.
      open_parameters: the parameters by their paths in our tree, and the config as the weights
        correct it: whether logits are tied shows in them alone.
    """

    config: type[Any]
    network: Any
    model: type[PackedModel]
    model_types: Mapping[str, str]
    public: Mapping[str, str]
    tokenizer_class: str | None
    parse_config: Callable[[str, Fields, Fields | None], Any]
    names: Mapping[str, str]
    format_config: Callable[[Any], dict[str, Any]]
    all_parameters: Callable[[Any], Mapping[str, Parameter]]
    open_parameters: Callable[[Weights, Any], Opened]

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

    def parameter_shapes(self, config: Config) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter of a network, by its path in our tree."""
        return {each.path: each.shape for each in self.all_parameters(config).values()}


def open_by_table(
    weights: Weights, config: Any, table: Mapping[str, Parameter], *, head: str, embedding: str,
    unused: Iterable[str] = (),
) -> Opened:  # fmt: skip
    """The parameters of a model whose logits are tied if the head is the embedding.

    Args:
      table: of all parameters, the head among them.
      unused: names that may be there.
    """
    table = dict(table)
    if head in weights and embedding in weights:
        theirs, ours = (weights.stored(name, table[name]) for name in (head, embedding))
        config = dataclasses.replace(config, tied_logits=np.array_equal(np.asarray(theirs).T, ours))
    if config.tied_logits:
        del table[head]
    weights.check(table, [head, *unused])
    return config, {each.path: weights.stored(name, each) for name, each in table.items()}
