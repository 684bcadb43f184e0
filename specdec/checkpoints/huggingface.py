"""Checkpoints of Hugging Face transformers (safetensors) as parameter trees, and back.

Weights are read and written with numpy alone; transformers reads config.json, without torch.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.checkpoints.families import MODEL_TYPES, SUPPORTED, family_of
from specdec.checkpoints.families.base import Family, named_parameters, weights_in
from specdec.checkpoints.fields import Fields, format_tokens, is_sealed, naming_fields, sealed
from specdec.checkpoints.hf_files import (
    ADAPTER,
    CONFIG,
    GENERATION_CONFIG,
    HEADS_TYPE,
    local_directory,
    write_weights,
)
from specdec.checkpoints.parameters import (
    CheckpointError,
    as_dtype,
    check_parameters,
    written_whole,
)
from specdec.core.checkpoint_files import read_json
from specdec.core.files import write_json
from specdec.core.nested import by_path, nested
from specdec.models.transformer.config import TransformerConfig as Config
from specdec.models.transformer.tree import parameter_shapes
from specdec.text.files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    copy_vocabulary,
)
from specdec.text.hf_library import config_fields
from specdec.text.vocabulary import MAX_EXTRA_IDS, read_pieces

_GENERATES = "ForConditionalGeneration"


def load_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[Config, dict[str, Any]]:
    """:func:`open_huggingface` into numpy arrays. Kernels are transposed views of what was read."""
    config, params = open_huggingface(directory_or_hub_id, dtype)
    return config, jax.tree.map(np.asarray, params)


def open_huggingface(
    directory_or_hub_id: str | Path, dtype: str | None = "float32"
) -> tuple[Config, dict[str, Any]]:
    """Opens a checkpoint of a family there is, whose parameters are read when used.

    Logits come from a head of their own where the file has one that differs from the embedding, as
    in transformers 5.24.

    Args:
      directory_or_hub_id: a directory with config.json and model.safetensors (or its shards and
        their index), or a model's id on the Hugging Face Hub, such as "google/flan-t5-small".
      dtype: of the parameters: "float32", "bfloat16" or "float16"; None for each as it is stored.

    Returns:
      The config, its ``dtype`` (of activations) "float32", and nested dicts of
      :class:`specdec.checkpoints.parameters.StoredArray`, named and shaped as the network's tree
      (T5X's).

    Raises:
      CheckpointError: files are missing or damaged, the model is another one, or a parameter is
        missing or unknown; see also :meth:`specdec.checkpoints.parameters.StoredArray.read`.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    directory = local_directory(directory_or_hub_id)
    family, config = _read(directory)
    opened = family.open_parameters(weights_in(directory, wanted, config), config)
    return opened[0], nested(opened[1])


def read_config(directory: Path) -> Config:
    """The network that a directory's config.json describes.

    Raises:
      CheckpointError: a file is missing or damaged, or the model is one that cannot be loaded.
    """
    return _read(directory)[1]


def _read(directory: Path) -> tuple[Family, Config]:
    if (directory / ADAPTER).exists():
        raise CheckpointError(
            f"{directory} holds an adapter ({ADAPTER}), such as LoRA's, which changes another "
            f"model's weights. Merge them first: open it with peft's AutoPeftModelForCausalLM or "
            "AutoPeftModelForSeq2SeqLM, then .merge_and_unload().save_pretrained(another_directory)"
            f". Where that is done, remove {ADAPTER}."
        )
    path = directory / CONFIG
    raw = read_json(path)
    model_type = _model_type(raw)
    if model_type == HEADS_TYPE:
        raise CheckpointError(
            f"{directory} holds heads for a target, not a model: give them as "
            f"draft=specdec.Heads({str(directory)!r})."
        )
    if model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"{path}: model_type is {model_type!r}. Checkpoints that can be loaded are, by "
            f"model_type: {SUPPORTED}."
        )
    family, beside = MODEL_TYPES[model_type], directory / GENERATION_CONFIG
    generation = Fields(read_json(beside), str(beside)) if beside.exists() else None
    complete = raw if is_sealed(raw) else config_fields(model_type, raw, path)
    with naming_fields(str(path), family.fields):
        return family, family.parse_config(model_type, Fields(complete, str(path)), generation)


def _model_type(raw: Mapping[str, Any]) -> str | None:
    """The model's type, which only the name of their class shows in the public UMT5s."""
    match raw:
        case {"model_type": found}:
            return found if isinstance(found, str | None) else reprlib.repr(found)
        case {"architectures": [str(name), *_]} if name.endswith(_GENERATES):
            return name.removesuffix(_GENERATES).lower()
    return None


def save_huggingface(
    directory: str | Path, config: Config, params: Mapping[str, Any],
    vocabulary_file: str | Path | None = None, dtype: str = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> None:  # fmt: skip
    """Writes a checkpoint that transformers' model of that architecture opens.

    mT5 models are written as T5 v1.1, which computes the same. A UMT5 is for transformers 5.24 or
    newer: older ones scale the logits of every UMT5, also of one that does not.

    Args:
      directory: must not exist, or be empty; appears only once it is complete.
      config: the network. ``dtype``, that of activations, is not stored.
      params: named and shaped as the network's tree.
      vocabulary_file: what :func:`specdec.checkpoints.find_vocabulary` found, or a SentencePiece
        model, to go with it; the latter with up to 100 sentinel tokens after its pieces where the
        embedding has rows for them.
        ``T5Tokenizer`` opens the result, but knows no byte fallback: where the vocabulary has byte
        pieces, it gives <unk>.
      dtype: of the stored weights, as in :func:`open_huggingface`.
      max_shard_bytes: weights are split over several files and an index above this size.

    Raises:
      CheckpointError: the directory is not empty, a parameter is missing, unknown, of another shape
        than ``config`` has or not finite in ``dtype``, or the vocabulary does not fit the model.
    """
    stored_dtype = as_dtype(dtype)
    arrays: dict[str, Any] = {**by_path(params)}
    family = family_of(config)
    check_parameters("params", parameter_shapes(config), arrays)
    tokenizer = None if vocabulary_file is None else _tokenizer_config(vocabulary_file, config)

    with written_whole(Path(directory).absolute()) as partial:
        table = named_parameters(config, family.names(config))
        write_weights(partial, table, arrays, stored_dtype, max_shard_bytes)
        tokens = format_tokens(config)
        model_type = family.model_type_of(config)
        assert model_type is not None  # It is of this family.
        fields = {**family.format_config(config, model_type), "torch_dtype": dtype, **tokens}
        write_json(partial / CONFIG, sealed(fields))
        write_json(partial / GENERATION_CONFIG, tokens)
        if vocabulary_file is not None:
            copy_vocabulary(Path(vocabulary_file), partial)
            if tokenizer:
                write_json(partial / TOKENIZER_CONFIG, tokenizer)


def _tokenizer_config(vocabulary_file: str | Path, config: Config) -> dict[str, Any]:
    """transformers' tokenizer_config.json for a vocabulary, sentinel tokens included."""
    file = Path(vocabulary_file)
    beside = file.with_name(TOKENIZER_CONFIG)
    if beside.is_file():
        return read_json(beside)
    tokenizer_model = read_json(file).get("model", {}) if file.name == TOKENIZER else {}
    if tokenizer_model.get("type") == "WordPiece":
        pieces = {token: piece for piece, token in tokenizer_model["vocab"].items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": tokenizer_model["unk_token"],
            **({} if config.eos_id is None else {"eos_token": pieces[config.eos_id]}),
            "pad_token": pieces[config.pad_id],
        }  # fmt: skip
    tokenizer_class = family_of(config).tokenizer_class
    if tokenizer_class is None:  # It is that of the model_type.
        return {}
    if file.suffix == ".json":
        return {"tokenizer_class": tokenizer_class}
    model = read_pieces(file)
    pieces = len(model.pieces)
    if pieces > config.vocab_size:
        raise CheckpointError(
            f"{vocabulary_file} has {pieces} pieces, but the embedding only {config.vocab_size} "
            "rows; pass the vocabulary the model was trained with."
        )
    extra_ids = min(MAX_EXTRA_IDS, config.vocab_size - pieces)
    found = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
    # MADLAD-400 pads with a piece that is not called so.
    named = {"pad_token": model.pieces[config.pad_id].piece}
    return found if model.trainer_spec.pad_id >= 0 else found | named
