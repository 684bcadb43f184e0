"""Run directories: Orbax checkpoints, and beside them what is needed to use or resume them.

<directory>/checkpoints/<step>/{params,optimizer}   the latest two steps
<directory>/model.json                              the network's config
<directory>/run.json                                every setting that shapes the run
<directory>/spiece.model                            the vocabulary
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict

from specdec.checkpoints import find_vocabulary, is_t5x
from specdec.checkpoints.architectures import Config
from specdec.checkpoints.formats import open_checkpoint
from specdec.checkpoints.hf_names import parameter_shapes
from specdec.checkpoints.huggingface import CONFIG
from specdec.checkpoints.loading import resolve
from specdec.checkpoints.parameters import as_dtype, check_parameters
from specdec.checkpoints.t5x_files import read_orbax
from specdec.core.files import write_json
from specdec.data.vocabulary import FILE_NAME, Vocabulary

MODEL = "model.json"
SETTINGS = "run.json"
CHECKPOINTS = "checkpoints"


def prepare_directory(
    directory: str | os.PathLike,
    config: Config,
    settings: dict[str, Any],
    vocabulary_path: Path,
) -> None:
    """Writes the description of a run, or checks that the one already there is the same.

    Raises:
      ValueError: ``directory`` holds a run with other settings; the message names them.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    check_settings(directory, {"model": dataclasses.asdict(config), **settings})
    shutil.copyfile(vocabulary_path, directory / FILE_NAME)
    _write_model(directory, config)


def check_settings(directory: str | os.PathLike, settings: dict[str, Any]) -> None:
    """Writes a run's settings, or checks that those already there are the same.

    Raises:
      ValueError: ``directory`` holds a run with other settings; the message names them.
    """
    described = json.loads(json.dumps(settings))
    path = Path(directory) / SETTINGS
    if path.exists():
        found = json.loads(path.read_text())
        if "model" in found:  # Fields that the config has gained since then take their defaults.
            found["model"] = dataclasses.asdict(Config(**found["model"]))
        keys = sorted(found.keys() | described.keys())
        other = [key for key in keys if found.get(key) != described.get(key)]
        if other:
            changes = "; ".join(
                f"{key}: {found.get(key)!r} there, {described.get(key)!r} here" for key in other
            )
            raise ValueError(f"{directory} holds a run with other settings: {changes}.")
    write_json(path, described)


class Checkpointer:
    """Saves and restores trees by step; keeps the latest two."""

    def __init__(self, directory: str | os.PathLike):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(
            (Path(directory) / CHECKPOINTS).absolute(), options=options
        )

    def latest_step(self) -> int | None:
        """The newest step saved whole, or None."""
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        """The steps saved whole."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, **trees: Any) -> None:
        """Writes a checkpoint of "params", and "optimizer" to resume; visible when complete."""
        items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        self._manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, step: int, **like: Any) -> dict[str, Any]:
        """The trees of these names saved at ``step``, shaped and placed like those given."""
        items = {name: ocp.args.StandardRestore(_abstract(tree)) for name, tree in like.items()}
        return dict(self._manager.restore(step, args=ocp.args.Composite(**items)))

    def close(self) -> None:
        """Releases the manager's threads."""
        self._manager.close()


def is_run(directory: str | os.PathLike) -> bool:
    """Whether a directory is a training run's."""
    return (Path(directory) / MODEL).is_file()


def find_step(directory: str | os.PathLike, step: int | None = None) -> int:
    """The step asked for, or the latest, of a run directory.

    Raises:
      FileNotFoundError: ``directory`` is not a run directory, or holds no such checkpoint.
    """
    if not is_run(directory):
        raise FileNotFoundError(f"{directory} is not a training run: it has no {MODEL}.")
    with contextlib.closing(Checkpointer(directory)) as checkpointer:
        steps = checkpointer.all_steps()
    if not steps:
        raise FileNotFoundError(f"{directory} holds no checkpoint yet.")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise FileNotFoundError(f"{directory} has no step {step}; the steps there are: {there}.")
    return max(steps) if step is None else step


def load_params(source: str | os.PathLike, step: int | None = None) -> tuple[Config, dict]:
    """The network and the parameters of a run directory, or of a checkpoint.

    Args:
      source: a run directory; else a T5X or Hugging Face directory, a hub id or a bundled model
        such as "quickstart/target" (see :func:`specdec.checkpoints.loading.resolve`).
      step: of a run directory; the latest if None.

    Raises:
      FileNotFoundError: a run that holds no such checkpoint, or a directory of something else.
      CheckpointError: the checkpoint cannot be read.
    """
    if is_run(source):
        config, params = open_params(source, "float32", find_step(source, step))
        return config, jax.tree.map(jnp.asarray, params)
    location = resolve(source, "target")
    if Path(location).is_dir() and not (is_t5x(location) or (Path(location) / CONFIG).is_file()):
        raise FileNotFoundError(
            f"{location} is neither a training run, which has {MODEL}, nor a checkpoint of "
            f"Hugging Face, which has {CONFIG}, or of T5X."
        )
    config, params = open_checkpoint(location)
    return config, jax.tree.map(jnp.asarray, params)


def open_params(
    directory: str | os.PathLike, dtype: str, step: int
) -> tuple[Config, dict[str, Any]]:
    """The network and the parameters of a run directory, which are read in ``dtype`` when used.

    Raises:
      CheckpointError: parameters are missing, unknown or of other shapes than the network's; when
        one is read: its files are damaged.
    """
    config = _read_model(directory)
    location = f"{os.fspath(directory)}/{CHECKPOINTS}/{step}/params"
    arrays = read_orbax(location, as_dtype(dtype))
    check_parameters(location, parameter_shapes(config), arrays, MODEL)
    return config, unflatten_dict(arrays, sep="/")


def save_params(directory: str | os.PathLike, config: Config, params: Any, step: int) -> None:
    """Writes a run directory that :func:`load_params` reads, with nothing to resume it by."""
    with contextlib.closing(Checkpointer(directory)) as checkpointer:
        checkpointer.save(step, params=params)
    _write_model(Path(directory), config)


def _read_model(directory: str | os.PathLike) -> Config:
    return Config(**json.loads((Path(directory) / MODEL).read_text()))


def _write_model(directory: Path, config: Config) -> None:
    write_json(directory / MODEL, dataclasses.asdict(config))


def load_vocabulary(source: str | os.PathLike) -> Vocabulary:
    """The vocabulary of what :func:`load_params` loads.

    Raises:
      FileNotFoundError: it has none.
      CheckpointError: ``source`` is nothing that can be loaded.
    """
    path = find_vocabulary(resolve(source, "target"))
    if path is None:
        raise FileNotFoundError(f"{source} has no vocabulary (spiece.model).")
    return Vocabulary(path)


def _abstract(tree: Any) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def leaf(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(leaf, tree)
