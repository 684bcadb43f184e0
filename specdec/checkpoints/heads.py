"""Files of drafts on a target's hidden states: config.json with its fingerprint, weights."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from specdec.checkpoints.draft_vocabulary import save_draft_vocabulary
from specdec.checkpoints.hf_files import CONFIG, HEADS_TYPE, STORED_DTYPES, WEIGHTS, opened
from specdec.checkpoints.parameters import CheckpointError, StoredArray, cast, written_whole
from specdec.core.checkpoint_files import read_json
from specdec.core.files import write_json
from specdec.core.nested import by_path, nested
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.config import HeadsConfig
from specdec.models.look_ahead import model as look_ahead
from specdec.models.look_ahead.model import LookAheadConfig

Config = HeadsConfig | EagleConfig | LookAheadConfig
# Names in config.json of shapes that have no ``kind`` of their own.
_KINDS: dict[str, Any] = {"eagle": EagleConfig, "look_ahead": LookAheadConfig}


def init_params(config: Config, key: jax.Array) -> dict:
    """Random parameters, float32."""
    if isinstance(config, LookAheadConfig):
        return look_ahead.init_params(config, key)
    # Flax takes long to import, and pairs without such drafts are loaded without it.
    from specdec.models.eagle import network as eagle
    from specdec.models.heads import network as heads

    if isinstance(config, EagleConfig):
        return eagle.init_params(config, key)
    return heads.init_params(config, key)


def target_fingerprint(params: Mapping[str, Any]) -> str:
    """Eight hex digits of a checkpoint's parameters, of each the first row in float32."""
    crc = 0
    for name, array in sorted(by_path(params).items()):
        row = array.read((slice(0, 1),)) if isinstance(array, StoredArray) else array[:1]
        crc = zlib.crc32(np.asarray(row, np.float32).tobytes(), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"


def save_heads(
    directory: str | os.PathLike, config: Config, params: Any, target: Mapping[str, Any],
    draft_vocabulary: Iterable[int] | None = None,
) -> None:  # fmt: skip
    """Writes heads or the like in float16, and whose they are; the directory appears whole.

    Args:
      target: the parameters of the checkpoint that they were trained on.
      draft_vocabulary: the tokens that they guess; None for all.

    Raises:
      CheckpointError: the directory is not empty.
    """
    kinds = {shape: {"kind": kind} for kind, shape in _KINDS.items()}
    described = {"model_type": HEADS_TYPE, **kinds.get(type(config), {})}
    described |= dataclasses.asdict(config)
    flat = by_path(params)
    arrays = {name: np.asarray(array, np.float16) for name, array in flat.items()}
    with written_whole(Path(directory).absolute()) as partial:
        save_file(arrays, partial / WEIGHTS)
        write_json(partial / CONFIG, described | {"target": target_fingerprint(target)})
        if draft_vocabulary is not None:
            save_draft_vocabulary(partial, draft_vocabulary)


def load_heads(source: str | os.PathLike, target: Mapping[str, Any]) -> tuple[Config, dict]:
    """The shape and the parameters, float32, of a target's heads.

    Args:
      target: the checkpoint's parameters, which may be still in their files.

    Raises:
      CheckpointError: there are none, or they are damaged, or another target's.
    """
    directory = Path(source)
    if not (directory / CONFIG).is_file():
        raise CheckpointError(f"{source} holds no heads: it has no {CONFIG}.")
    found = read_json(directory / CONFIG)
    if found.pop("model_type", None) != HEADS_TYPE:
        raise CheckpointError(
            f"{directory / CONFIG} is not of heads (model_type {HEADS_TYPE!r}): name a draft model "
            "by its path alone, without specdec.Heads."
        )
    known, here = found.pop("target", None), target_fingerprint(target)
    if known != here:
        raise CheckpointError(
            f"{source} was trained on another target (fingerprint {known!r}) than this one "
            f"({here!r}), whose hidden states mean something else. Train heads on this one "
            "(configs/training/quickstart_heads.gin)."
        )
    shape: Any = HeadsConfig
    if str(found.get("kind")) in _KINDS:
        shape = _KINDS[found.pop("kind")]
    try:
        config = shape(**found)
        like = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).rstrip(".")
        raise CheckpointError(f"{directory / CONFIG} is not a config of heads: {reason}.") from None
    return config, nested(_read(directory / WEIGHTS, by_path(like)))


def _read(path: Path, wanted: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The arrays of a file, float32; CheckpointError unless they are those wanted, and finite."""
    shapes = {name: leaf.shape for name, leaf in wanted.items()}
    loaded = {}
    with opened(path) as file:
        names = file.keys()
        stored = {name: file.get_slice(name) for name in names}
        if {name: tuple(part.get_shape()) for name, part in stored.items()} != shapes:
            raise CheckpointError(f"{path} does not hold the heads that {CONFIG} describes.")
        for name, part in stored.items():
            if (kind := part.get_dtype()) not in STORED_DTYPES:
                raise CheckpointError(
                    f"{path}: {name} is stored as {kind}, not as one of {', '.join(STORED_DTYPES)}."
                )
            array = cast(file.get_tensor(name), np.dtype(np.float32), f"{path}: {name}")
            loaded[name] = jnp.asarray(array)
    return loaded
