"""Run directories: Orbax checkpoints, and beside them what is needed to use or resume them.

<directory>/checkpoints/<step>/{params,optimizer}   the latest two steps
<directory>/model.json                              the network's config
<directory>/run.json                                every setting that shapes the run
<directory>/spiece.model                            the vocabulary
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from specdec.checkpoints import architectures, find_vocabulary, is_t5x
from specdec.checkpoints.architectures import Config
from specdec.checkpoints.formats import open_checkpoint
from specdec.checkpoints.hf_files import CONFIG
from specdec.checkpoints.loading import resolve
from specdec.checkpoints.parameters import CheckpointError, as_dtype, check_parameters
from specdec.checkpoints.t5x_files import read_orbax
from specdec.core.files import read_object, write_json
from specdec.core.nested import nested
from specdec.text.base import Tokenizer
from specdec.text.files import copy_vocabulary
from specdec.text.opening import open_tokenizer

MODEL = "model.json"
SETTINGS = "run.json"
CHECKPOINTS = "checkpoints"


def prepare_directory(
    directory: str | os.PathLike,
    config: Config | None,
    settings: dict[str, Any],
    vocabulary: Path,
) -> None:
    """Writes the description of a run, or checks that the one already there is the same.

    Without a ``config`` it is one of several networks, whose own directories hold theirs.

    Raises:
      ValueError: ``directory`` holds a run with other settings; the message names them.
      CheckpointError: the description there is damaged.
    """
    directory, model = Path(directory), {"model": config} if config else {}
    described = json.loads(json.dumps(model | settings, default=dataclasses.asdict))
    if (path := directory / SETTINGS).exists():
        found = _read(path)
        if "model" in found:  # Fields that the config has gained since then take their defaults.
            known = dataclasses.asdict(_config(path, found["model"]))
            found["model"] = json.loads(json.dumps(known))  # Lists, as JSON has them.
        changes = "; ".join(
            f"{key}: {found.get(key)!r} there, {described.get(key)!r} here"
            for key in sorted(found.keys() | described.keys())
            if found.get(key) != described.get(key)
        )
        if changes:
            raise ValueError(
                f"{directory} holds a run with other settings: {changes}. Give the settings that "
                "it began with, choose another directory, or remove this one."
            )
    write_json(path, described)
    if config:
        copy_vocabulary(vocabulary, directory)
        write_json(directory / MODEL, dataclasses.asdict(config))


def checkpoints(directory: str | os.PathLike) -> ocp.CheckpointManager:
    """A run's checkpoints by step, of which the latest two are kept; a context manager."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    return ocp.CheckpointManager((Path(directory) / CHECKPOINTS).absolute(), options=options)


def save(manager: ocp.CheckpointManager, step: int, **trees: Any) -> None:
    """Writes a checkpoint of "params", and "optimizer" to resume; visible when complete.

    Raises:
      OSError: the disk is full; the checkpoint before is still good.
    """
    items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
    try:
        manager.save(step, args=ocp.args.Composite(**items))
    except Exception as error:  # TensorStore raises a full disk as one of its own.
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(number) in str(error):
                where = manager.directory / str(step)
                raise OSError(number, os.strerror(number), str(where)) from None
        raise


def is_run(directory: str | os.PathLike) -> bool:
    """Whether a directory is a training run's."""
    return (Path(directory) / MODEL).is_file()


def load_params(source: str | os.PathLike) -> tuple[Config, dict]:
    """The network and the parameters of a run directory's latest step, or of a checkpoint.

    A checkpoint is a T5X or Hugging Face directory, a hub id or a bundled model (see
    :func:`specdec.checkpoints.loading.resolve`).

    Raises:
      FileNotFoundError: a run that holds no checkpoint, or a directory of something else.
      CheckpointError: the checkpoint cannot be read.
    """
    if is_run(source):
        config, params, _ = open_run(source)
    else:
        location = resolve(source, "target")
        folder = Path(location)
        if folder.is_dir() and not (is_t5x(location) or (folder / CONFIG).is_file()):
            raise FileNotFoundError(
                f"{location} is neither a training run, which has {MODEL}, nor a checkpoint of "
                f"Hugging Face, which has {CONFIG}, or of T5X."
            )
        config, params = open_checkpoint(location)
    return config, jax.tree.map(jnp.asarray, params)


def open_run(
    directory: str | os.PathLike, dtype: str = "float32", step: int | None = None
) -> tuple[Config, dict[str, Any], int]:
    """The network, the parameters and their step of a run directory; the latest if None is given.

    Parameters are read in ``dtype`` when they are used.

    Raises:
      FileNotFoundError: it holds no such step.
      CheckpointError: the config is damaged; parameters are missing, unknown or of other shapes
        than the network's; when one is read: its files are damaged.
    """
    with checkpoints(directory) as manager:
        steps = sorted(manager.all_steps())
    if not steps:
        raise FileNotFoundError(f"{directory} holds no checkpoint yet.")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise FileNotFoundError(f"{directory} has no step {step}; the steps there are: {there}.")
    step = steps[-1] if step is None else step
    path = Path(directory) / MODEL
    config = _config(path, _read(path))
    location = f"{os.fspath(directory)}/{CHECKPOINTS}/{step}/params"
    arrays = read_orbax(location, as_dtype(dtype))
    check_parameters(location, architectures.parameter_shapes(config), arrays, MODEL)
    return config, nested(arrays), step


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except ValueError as error:
        raise CheckpointError(f"{error} Copy the run again, or remove it.") from None


def _config(path: Path, fields: Any) -> Config:
    """The network's config that a file of a run holds."""
    try:
        return architectures.config_of(fields)
    except (ValueError, TypeError) as error:
        reason = str(error).rstrip(".")
        raise CheckpointError(f"{path} does not describe a network: {reason}.") from None


def save_params(directory: str | os.PathLike, config: Config, params: Any, step: int) -> None:
    """Writes a run directory that :func:`load_params` reads, with nothing to resume it by."""
    with checkpoints(directory) as manager:
        save(manager, step, params=params)
    write_json(Path(directory) / MODEL, dataclasses.asdict(config))


def load_vocabulary(source: str | os.PathLike) -> Tokenizer:
    """The vocabulary of what :func:`load_params` loads, or of its own file or directory.

    Raises:
      FileNotFoundError: it has none.
      ValueError: the file is not what its name says.
      CheckpointError: ``source`` is nothing that can be loaded.
    """
    if Path(source).is_file():
        return open_tokenizer(source)
    found = resolve(source, "target")
    path = find_vocabulary(found)
    if path is None:
        raise FileNotFoundError(f"{source} has no vocabulary (spiece.model or tokenizer.json).")
    return open_tokenizer(path, of_t5x=is_t5x(found))
