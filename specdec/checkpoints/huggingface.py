"""Checkpoints of Hugging Face transformers (safetensors) as parameter trees, and back.

Reads and writes with numpy alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from specdec.checkpoints import bart_names, gpt_names, hf_names, rotary_names
from specdec.checkpoints.fields import Fields
from specdec.checkpoints.files import read_json
from specdec.checkpoints.hf_files import (
    ADAPTER,
    CONFIG,
    GENERATION_CONFIG,
    HEADS_TYPE,
    STORED_DTYPES,
    Parameter,
    local_directory,
    stored_array,
    weight_files,
    write_weights,
)
from specdec.checkpoints.parameters import (
    CheckpointError,
    StoredArray,
    as_dtype,
    check_names,
    check_parameters,
    read_as,
    written_whole,
)
from specdec.checkpoints.tokenizer_backends import MAX_EXTRA_IDS, read_pieces
from specdec.checkpoints.vocabulary_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    copy_vocabulary,
)
from specdec.core.files import write_json
from specdec.models.bart.config import BartConfig
from specdec.models.gpt.config import GPTConfig
from specdec.models.rotary.config import RotaryConfig
from specdec.models.t5.config import T5Config

Config = T5Config | GPTConfig | BartConfig | RotaryConfig
# Where the names of a network's parts are, by the class of its config.
_NAMES: dict[type[Config], ModuleType] = {
    T5Config: hf_names, GPTConfig: gpt_names, BartConfig: bart_names, RotaryConfig: rotary_names,
}  # fmt: skip
_GENERATES = "ForConditionalGeneration"
# How the heads of transformers' classifiers are called.
_CLASSIFIERS = ("classification_head.", "classifier.", "qa_outputs.", "score.")
# What tells architectures apart in config.json, where their names are, and the public models.
_MODEL_TYPES: dict[str, tuple[ModuleType, str]] = {
    "t5": (
        hf_names,
        "T5, T5 v1.1, Flan-T5, UL2, Flan-UL2, MADLAD-400, ByT5, CodeT5+ 220m and 770m",
    ),
    "mt5": (hf_names, "mT5, Aya-101"),
    "umt5": (hf_names, "UMT5"),
    "gpt2": (gpt_names, "GPT-2, DistilGPT2"),
    "bart": (bart_names, "BART, DistilBART"),
    "mbart": (bart_names, "mBART, mBART-50"),
    "m2m_100": (bart_names, "M2M100, NLLB-200, SMaLL-100"),
    "marian": (bart_names, "Marian, OPUS-MT"),
    "pegasus": (bart_names, "Pegasus"),
    "llama": (rotary_names, "Llama 2 and 3"),
    "qwen2": (rotary_names, "Qwen 2 and 2.5"),
    "qwen3": (rotary_names, "Qwen 3"),
    "gemma2": (rotary_names, "Gemma 2"),
    "gemma3_text": (rotary_names, "Gemma 3 270M and 1B"),
    "t5gemma": (rotary_names, "T5Gemma"),
    "t5gemma2": (rotary_names, "T5Gemma 2, for text"),
}
_SUPPORTED = "; ".join(f"{name!r} ({models})" for name, (_, models) in _MODEL_TYPES.items())


def names_of(config: Config) -> Any:
    """What Hugging Face calls the parts of a network: ``hf_names``, or another one's."""
    return _NAMES[type(config)]


def load_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[Config, dict[str, Any]]:
    """:func:`open_huggingface` into numpy arrays. Kernels are transposed views of what was read."""
    config, params = open_huggingface(directory_or_hub_id, dtype)
    return config, jax.tree.map(np.asarray, params)


def open_huggingface(
    directory_or_hub_id: str | Path, dtype: str | None = "float32"
) -> tuple[Config, dict[str, Any]]:
    """Opens a checkpoint of one of the ``_MODEL_TYPES``, whose parameters are read when used.

    A T5's logits follow transformers 5.24: they come from ``lm_head.weight`` where the file has one
    and from the embedding otherwise, scaled by d_model**-0.5 as config.json asks. A head that is
    both separate and scaled has the factor multiplied into its kernel, in float32 if ``dtype`` is
    None.

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
    config = read_config(directory)
    if isinstance(config, T5Config):
        return _open_t5(directory, config, wanted)
    if isinstance(config, BartConfig):
        return _open_bart(directory, config, wanted)
    return _open_decoder(directory, config, wanted)


def _open_t5(
    directory: Path, config: T5Config, wanted: np.dtype | None
) -> tuple[T5Config, dict[str, Any]]:
    scaled = config.tied_logits
    layers = hf_names.all_parameters(dataclasses.replace(config, tied_logits=False))
    shared, head = layers.pop(hf_names.EMBEDDING), layers.pop(hf_names.HEAD)

    files = weight_files(directory)
    _check_kind(directory, files, "decoder.block.")
    found = [name for name in hf_names.EMBEDDING_NAMES if name in files]
    embedding_name = found[0] if found else hf_names.EMBEDDING
    optional = [*hf_names.EMBEDDING_NAMES, *hf_names.UNUSED_NAMES]
    together = f"{CONFIG} and the weights"
    check_names(directory, [embedding_name, *layers], files, together, optional)

    def stored(name: str, parameter: Parameter, scale: float = 1.0) -> StoredArray:
        path, kind = files[name]
        # A factor would be rounded in fewer bits; other kinds are refused when they are read.
        as_stored = _as_stored(kind) if scale == 1 else read_as(None)
        return stored_array(path, name, parameter, wanted or as_stored, scale)

    embedding = stored(embedding_name, shared)

    def is_embedding(name: str) -> bool:
        return name == embedding_name or np.array_equal(stored(name, shared), embedding)

    for name in found:
        if name != hf_names.HEAD and not is_embedding(name):
            raise CheckpointError(
                f"{directory}: {name} differs from {embedding_name}; T5 shares one embedding "
                "between encoder and decoder, and a checkpoint with several cannot be loaded."
            )
    # A checkpoint without a head has the embedding for one.
    head_name = hf_names.HEAD if hf_names.HEAD in files else embedding_name
    config = dataclasses.replace(config, tied_logits=scaled and is_embedding(head_name))

    flat: dict[str, Any] = {shared.path: embedding}
    if not config.tied_logits:
        scale = config.d_model**-0.5 if scaled else 1.0
        flat[head.path] = stored(head_name, head, scale)
    flat |= {parameter.path: stored(name, parameter) for name, parameter in layers.items()}
    return config, unflatten_dict(flat, sep="/")


def _open_decoder(
    directory: Path, config: Config, wanted: np.dtype | None
) -> tuple[Config, dict[str, Any]]:
    names = names_of(config)
    files, prefix = weight_files(directory), names.PREFIX
    _check_kind(directory, [n.removeprefix(prefix) for n in files], names.decoder_name(config))
    # transformers writes all but the head with a prefix, OpenAI's own files have none.
    theirs = {name.removeprefix(prefix): name for name in files}
    head, embedding = names.head_name(config), names.embedding_name(config)
    untied = dataclasses.replace(config, tied_logits=False)
    table = names.all_parameters(untied)

    def stored(name: str) -> StoredArray:
        path, kind = files[theirs[name]]
        return stored_array(path, theirs[name], table[name], wanted or _as_stored(kind), 1.0)

    if head in theirs and embedding in theirs:
        same = np.array_equal(np.asarray(stored(head)).T, stored(embedding))
        config = dataclasses.replace(config, tied_logits=same)
    if config.tied_logits:
        del table[head]
    optional = [head, *names.unused_names(config, theirs)]
    check_names(directory, table, theirs, f"{CONFIG} and the weights", optional)
    return config, unflatten_dict({each.path: stored(n) for n, each in table.items()}, sep="/")


def _open_bart(
    directory: Path, config: BartConfig, wanted: np.dtype | None
) -> tuple[BartConfig, dict[str, Any]]:
    files, prefix = weight_files(directory), bart_names.PREFIX
    _check_kind(directory, [name.removeprefix(prefix) for name in files], bart_names.LAYERS)
    # A model that was saved without its head has no prefix.
    head, bias, path = bart_names.HEAD, bart_names.BIAS, bart_names.EMBEDDING_PATH
    theirs = {n if n in (head, bias) or n.startswith(prefix) else prefix + n: n for n in files}
    encoder, decoder = (
        next((name for name in names if name in theirs), bart_names.SHARED)
        for names in (bart_names.ENCODER_NAMES, bart_names.DECODER_NAMES)
    )

    def stored(name: str, parameter: Parameter) -> StoredArray:
        path, kind = files[theirs[name]]
        return stored_array(path, theirs[name], parameter, wanted or _as_stored(kind), 1.0)

    def same(a: str, b: str) -> bool:
        size = (config.vocab_size, config.d_model)
        table = bart_names.Parameter(path, size, size)
        return a == b or np.array_equal(stored(a, table), stored(b, table))

    if config.encoder_vocab_size is None and not same(encoder, decoder):
        config = dataclasses.replace(config, encoder_vocab_size=config.vocab_size)
    if head in theirs:
        config = dataclasses.replace(config, tied_logits=same(head, decoder))
    if bias not in theirs:  # transformers takes zeros then.
        config = dataclasses.replace(config, logits_bias=False)
    found = {bart_names.SHARED: decoder, bart_names.DECODER: decoder, bart_names.ENCODER: encoder}
    table = bart_names.all_parameters(config)
    table = {found.get(name, name): parameter for name, parameter in table.items()}
    optional = [*bart_names.ENCODER_NAMES, *bart_names.unused_names(theirs)]
    check_names(directory, table, theirs, f"{CONFIG} and the weights", optional)
    return config, unflatten_dict(
        {each.path: stored(n, each) for n, each in table.items()}, sep="/"
    )


def _check_kind(directory: Path, names: Collection[str], part: str) -> None:
    """Raises CheckpointError for weights of a model that makes no tokens, and for other names.

    Args:
      part: how the names of a decoder's layers begin.
    """
    for name in names:
        if name.startswith(_CLASSIFIERS):
            raise CheckpointError(
                f"{directory} is a classifier (it has {name}), which makes no tokens: only models "
                "with a language model's head can be loaded."
            )
    if any(name.startswith(part) for name in names):
        return
    for name in names:
        before, found, _ = name.partition(f".{part}")
        if found:
            raise CheckpointError(
                f"{directory}: names of parameters begin with {before}., such as {name}: they are "
                "of a model inside of another one. Save the inner one with save_pretrained, or "
                f"take {before}. off the names."
            )
    if any(name.startswith("encoder.") for name in names):
        raise CheckpointError(
            f"{directory} has no decoder, only an encoder, which cannot generate. Checkpoints that "
            f"can be loaded are, by model_type: {_SUPPORTED}."
        )


def _as_stored(kind: str) -> np.dtype:
    """Other kinds are refused when they are read."""
    return read_as(STORED_DTYPES.get(kind))


def read_config(directory: Path) -> Config:
    """The network that a directory's config.json describes.

    Raises:
      CheckpointError: a file is missing or damaged, or the model is one that cannot be loaded.
    """
    if (directory / ADAPTER).exists():
        raise CheckpointError(
            f"{directory} holds an adapter ({ADAPTER}), such as LoRA's, which changes another "
            "model's weights. Merge them first: peft.AutoPeftModelForSeq2SeqLM (for GPT-2 "
            f"AutoPeftModelForCausalLM).from_pretrained({str(directory)!r}).merge_and_unload()"
            f".save_pretrained(another_directory). Where that is done, remove {ADAPTER}."
        )
    raw, source = read_json(directory / CONFIG), str(directory / CONFIG)
    model_type = _model_type(raw)
    if model_type == HEADS_TYPE:
        raise CheckpointError(
            f"{directory} holds heads for a target, not a model: give them as "
            f"draft=specdec.Heads({str(directory)!r})."
        )
    if model_type not in _MODEL_TYPES:
        raise CheckpointError(
            f"{source}: model_type is {model_type!r}. Checkpoints that can be loaded are, by "
            f"model_type: {_SUPPORTED}."
        )
    names, _ = _MODEL_TYPES[model_type]
    path = directory / GENERATION_CONFIG
    generation = Fields(read_json(path), str(path)) if path.exists() else None
    return names.parse_config(model_type, Fields(raw, source), generation)


def _model_type(raw: Mapping[str, Any]) -> str | None:
    """The model's type, which the public UMT5s tell by the name of their class alone."""
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
    newer: those before it scale the logits of every UMT5, also of one that does not.

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
    arrays: dict[str, Any] = {**flatten_dict(params, sep="/")}
    names = names_of(config)
    check_parameters("params", names.parameter_shapes(config), arrays)
    tokenizer = None if vocabulary_file is None else _tokenizer_config(vocabulary_file, config)

    with written_whole(Path(directory).absolute()) as partial:
        table = names.all_parameters(config)
        write_weights(partial, table, arrays, stored_dtype, max_shard_bytes)
        write_json(partial / CONFIG, names.format_config(config, dtype))
        write_json(partial / GENERATION_CONFIG, names.format_generation_config(config))
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
    told = read_json(file).get("model", {}) if file.name == TOKENIZER else {}
    if told.get("type") == "WordPiece":
        pieces = {token: piece for piece, token in told["vocab"].items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": told["unk_token"],
            **({} if config.eos_id is None else {"eos_token": pieces[config.eos_id]}),
            "pad_token": pieces[config.pad_id],
        }  # fmt: skip
    if isinstance(config, GPTConfig):
        return {"tokenizer_class": "GPT2TokenizerFast"}
    if not isinstance(config, T5Config):  # The class is that of the model_type.
        return {}
    if file.name == TOKENIZER:
        return {"tokenizer_class": "T5Tokenizer"}
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
