"""T5X's own checkpoints as parameter trees that are read when used, and back.

Three layouts are read: version 3 (a msgpack file and TensorStore arrays beside it), the older
single msgpack file, and Orbax as T5X uses it. Each may be of ``t5x.examples.t5``, or of
``t5x.examples.scalable_t5``, which keeps heads apart and may scan over its layers. Optimizer state
is never opened.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec.checkpoints import t5x_files, t5x_gin
from specdec.checkpoints.parameters import (
    CheckpointError,
    Index,
    StoredArray,
    as_dtype,
    check_parameters,
    part_of,
    written_whole,
)
from specdec.checkpoints.t5x_files import CHECKPOINT, is_remote, names_in
from specdec.core.nested import by_path, nested
from specdec.models.t5.config import T5Config
from specdec.models.transformer.config import TransformerConfig
from specdec.models.transformer.tree import parameter_shapes

STATE = "state"  # Where T5X's Orbax checkpoints, and some native ones, keep everything.
_STEP = re.compile(r"checkpoint_(\d+)")
_STEP_FILE = re.compile(r"(?:.*[._-])?checkpoint_(\d+)")  # Such as test_t5_tiny.checkpoint_0.
_SCANNED = re.compile(r"(encoder|decoder)/\1/(.+)")
_ATTENTION = re.compile(r".*attention/(query|key|value|out)/kernel")
_BIAS = "relpos_bias/rel_embedding"
_LAYER_BIAS = re.compile(rf"(encoder|decoder)/layers_\d+/({_BIAS})")


def is_t5x(source: str | Path) -> bool:
    """Whether something is T5X's: in Google Cloud Storage, or with a checkpoint's names in it."""
    location = os.fspath(source)
    if is_remote(location):
        return True
    if os.path.isfile(location):
        return bool(_STEP_FILE.fullmatch(os.path.basename(location)))
    names = names_in(location)
    found = _is_checkpoint(names) or any(map(_STEP.fullmatch, names))
    return found and "config.json" not in names


def find_checkpoint(source: str | Path, step: int | None = None) -> tuple[str, int | None]:
    """One checkpoint's location, and its step if its name has one.

    It is ``source`` itself (a directory, a single file, or gs://bucket/path), or the
    ``checkpoint_<step>`` that it holds: the latest where ``step`` is None.

    Raises:
      CheckpointError: there is none, or none of that step.
    """
    location = os.fspath(source).rstrip("/")
    names = names_in(location)
    if os.path.isfile(location) or _is_checkpoint(names):
        named = _STEP_FILE.fullmatch(os.path.basename(os.path.abspath(location)))
        steps = {int(named[1]): location} if named else {}
        if step is None:
            return location, next(iter(steps), None)
    else:
        matches = filter(None, map(_STEP.fullmatch, names))
        steps = {int(match[1]): f"{location}/{match[0]}" for match in matches}
    if not steps and step is None:
        raise CheckpointError(
            f"{location} holds no T5X checkpoint; pass a directory with a file named {CHECKPOINT}, "
            "or with directories named checkpoint_<step>."
        )
    step = max(steps) if step is None else step
    if step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none"
        raise CheckpointError(f"{location} has no step {step}; the steps there are: {there}.")
    return steps[step], step


def open_t5x(
    source: str | Path, dtype: str | None = "float32", step: int | None = None
) -> tuple[TransformerConfig, dict[str, Any]]:
    """Opens a T5X checkpoint, whose parameters are read when used.

    The network's shape is that of the arrays. What they do not show is T5's own: gated
    feed-forwards have "gelu" and others "relu", unless T5X's ``config.gin`` names another
    activation (:func:`specdec.checkpoints.t5x_gin.with_gin`); the position biases'
    ``max_distance`` is 128; the ids are T5's. Layers that were scanned over become ``layers_<i>``,
    each read as a slice; it decompresses the chunks it shares with the other layers. Kernels with
    heads apart, [D, H, K] and [H, K, D], become [D, H K] and [H K, D].

    Args:
      source, step: see :func:`find_checkpoint`.
      dtype: of the parameters: "float32", "bfloat16" or "float16"; None for each as it is stored.

    Returns:
      The config and nested dicts of :class:`specdec.checkpoints.parameters.StoredArray`.

    Raises:
      CheckpointError: no such checkpoint, a damaged one, no T5's, or a gin file of another network;
        see also :meth:`specdec.checkpoints.parameters.StoredArray.read`.
    """
    location, _ = find_checkpoint(source, step)
    wanted = None if dtype is None else as_dtype(dtype)
    arrays = _shared_biases(_unstack(_open_target(location, wanted), location))
    config = _infer_config({path: array.shape for path, array in arrays.items()}, location)
    arrays = _with_joined_heads(arrays, config, location)
    check_parameters(location, parameter_shapes(config), arrays, "the rest of the network")
    return t5x_gin.with_gin(config, location), nested(arrays)


def save_t5x(
    directory: str | Path, config: TransformerConfig, params: Mapping[str, Any], step: int,
    dtype: str = "float32",
) -> None:  # fmt: skip
    """Writes ``checkpoint_<step>`` as T5X's version 3, which T5X opens for inference.

    It appears only once it is complete, in a local directory, made if need be. The config is not
    stored: T5X has it in gin files. ``dtype`` is the stored weights'.

    Raises:
      CheckpointError: the step is there already, or a parameter is missing, unknown, of another
        shape than ``config`` has or not finite in ``dtype``.
    """
    location = os.fspath(directory)
    if is_remote(location):
        raise CheckpointError(f"{location} is not local; write to a local directory and copy it.")
    stored_dtype = as_dtype(dtype)
    arrays = by_path(params)
    check_parameters("params", parameter_shapes(config), arrays)
    with written_whole(Path(location).absolute() / f"checkpoint_{step}") as partial:
        t5x_files.write_arrays(partial, arrays, stored_dtype, step, "params")


def _is_checkpoint(names: set[str]) -> bool:
    marks = {CHECKPOINT, STATE, *t5x_files.ORBAX_MARKS}
    return not names.isdisjoint(marks) or any(name.startswith("target.") for name in names)


def _open_target(location: str, dtype: np.dtype | None) -> dict[str, StoredArray]:
    """The parameters as they are stored, by path."""
    if os.path.isfile(location):
        return t5x_files.read_msgpack(*os.path.split(os.path.abspath(location)), dtype)
    names = names_in(location)
    if STATE in names:
        location = f"{location}/{STATE}"
        names = names_in(location)
    if names & t5x_files.ORBAX_MARKS:
        return t5x_files.read_orbax(location, dtype, "target")
    if CHECKPOINT not in names:
        raise CheckpointError(
            f"{location} has no file named {CHECKPOINT}; copy or download the checkpoint again."
        )
    return t5x_files.read_msgpack(location, CHECKPOINT, dtype)


def _unstack(arrays: Mapping[str, StoredArray], source: str) -> dict[str, StoredArray]:
    """Layers that were scanned over (``encoder/encoder/...``) as ``layers_<i>``; others as is.

    Their axis and number are those of the norms: [D, layers] unless given otherwise.
    """
    shapes = {path: array.shape for path, array in arrays.items()}
    result = {}
    for path, array in arrays.items():
        if not (match := _SCANNED.fullmatch(path)):
            result[path] = array
            continue
        stack, name = match.groups()
        (width,) = _sizes(shapes, f"{stack}/{stack}_norm/scale", "d_model", source)
        norms = _sizes(
            shapes, f"{stack}/{stack}/pre_mlp_layer_norm/scale", "d_model, layers", source
        )
        axis = 1 if norms[0] == width else 0
        if norms[1 - axis] != width:
            raise CheckpointError(
                f"{source}: {stack}/{stack}/pre_mlp_layer_norm/scale has shape {norms}, but the "
                f"{stack} has {width} features; check that they belong together."
            )
        depth = norms[axis]
        if array.shape[axis : axis + 1] != (depth,):
            raise CheckpointError(
                f"{source}: {path} has shape {array.shape}, but the {stack}'s norms have {depth} "
                f"layers along axis {axis}; check that they belong together."
            )
        result |= {f"{stack}/layers_{i}/{name}": array.layer(axis, i) for i in range(depth)}
    return result


def _shared_biases(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """One table of position biases for each stack, where its layers' are all equal.

    ``t5x.examples.scalable_t5`` gives every layer a table. T5 shares the first layer's, and a UMT5
    has different ones.
    """
    result, tables = {}, {}
    for path, array in arrays.items():
        if not (match := _LAYER_BIAS.fullmatch(path)):
            result[path] = array
            continue
        shared, table = "/".join(match.groups()), np.asarray(array)
        if not np.array_equal(tables.setdefault(shared, table), table):
            return arrays
        result.setdefault(shared, array)
    return result


def _with_joined_heads(
    arrays: Mapping[str, StoredArray], config: TransformerConfig, source: str
) -> dict[str, StoredArray]:
    """Kernels [D, H, K] and [H, K, D], as ``scalable_t5`` has them, as T5's; others as they are."""
    width, heads = config.d_model, (config.num_heads, config.head_dim)
    result = dict(arrays)
    for path, array in arrays.items():
        if (match := _ATTENTION.fullmatch(path)) and len(array.shape) == 3:
            axis = 0 if match[1] == "out" else 1
            check_parameters(
                source, {path: (*heads, width) if axis == 0 else (width, *heads)}, {path: array},
                "the rest of the network",
            )  # fmt: skip
            result[path] = _joined(array, axis)
    return result


def _joined(array: StoredArray, axis: int) -> StoredArray:
    """This array with ``axis`` and the next one, heads and their parts, as one; read whole."""
    heads, width = array.shape[axis : axis + 2]
    shape = (*array.shape[:axis], heads * width, *array.shape[axis + 2 :])

    def load(*parts: Index) -> np.ndarray:
        return part_of(array.load().reshape(shape), parts)

    return dataclasses.replace(array, shape=shape, load=load)


def _sizes(
    shapes: Mapping[str, tuple[int, ...]], path: str, axes: str, source: str
) -> tuple[int, ...]:
    """The shape of a parameter; CheckpointError unless it has as many axes as ``axes`` names."""
    if path not in shapes:
        raise CheckpointError(f"{source} is missing parameter {path}; only T5s can be loaded.")
    shape = shapes[path]
    if len(shape) != len(axes.split(", ")) or min(shape) < 1:
        raise CheckpointError(
            f"{source}: {path} has shape {shape}, but that of a T5 is [{axes}]; "
            "only T5s can be loaded."
        )
    return shape


def _infer_config(shapes: Mapping[str, tuple[int, ...]], source: str) -> TransformerConfig:
    """The network that parameters of these shapes, by path, are of."""

    def sizes(path: str, axes: str) -> tuple[int, ...]:
        return _sizes(shapes, path, axes, source)

    def depth(stack: str) -> int:
        return len({path.split("/")[1] for path in shapes if path.startswith(f"{stack}/layers_")})

    vocab_size, d_model = sizes("token_embedder/embedding", "vocab, d_model")
    in_every_layer = f"decoder/layers_0/{_BIAS}" in shapes
    biases = f"decoder/layers_0/{_BIAS}" if in_every_layer else f"decoder/{_BIAS}"
    num_heads, num_buckets = sizes(biases, "heads, buckets")
    query = "decoder/layers_0/self_attention/query/kernel"
    apart = len(shapes.get(query, ())) == 3
    _, *inner = sizes(query, "d_model, heads, head_dim" if apart else "d_model, heads * head_dim")
    d_ff, _ = sizes("decoder/layers_0/mlp/wo/kernel", "d_ff, d_model")
    gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
    projection = "encoder/input_projection/kernel"
    encoding_width = sizes(projection, "width, d_model")[0] if projection in shapes else None
    try:
        return T5Config(
            vocab_size, d_model, depth("encoder"), depth("decoder"), num_heads,
            head_dim=math.prod(inner) // num_heads, d_ff=d_ff,
            activation="gelu" if gated else "relu", gated=gated,
            tied_logits="decoder/logits_dense/kernel" not in shapes,
            relative_attention_num_buckets=num_buckets, encoding_width=encoding_width,
            relative_bias_in_every_layer=in_every_layer,
        )  # fmt: skip
    except ValueError as error:
        raise CheckpointError(
            f"{source} has parameters of shapes that no T5 has ({error})."
        ) from None
