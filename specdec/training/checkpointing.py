"""Run directories: Orbax checkpoints, and beside them what is needed to use or resume them.

<directory>/checkpoints/<step>/{params,optimizer}   the latest two steps
<directory>/model.json                              the T5Config
<directory>/run.json                                every setting that shapes the run
<directory>/spiece.model                            the vocabulary
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from specdec.checkpoints import find_vocabulary, load_huggingface
from specdec.checkpoints.hf_files import CONFIG
from specdec.checkpoints.loading import resolve
from specdec.data.vocabulary import FILE_NAME, Vocabulary
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import init_params

RUN_MODEL = "model.json"


def prepare_directory(
    directory: str | os.PathLike, config: T5Config, settings: dict[str, Any], vocabulary_path: Path
) -> None:
    """Writes the description of a run, or checks that the one already there is the same.

    Raises:
      ValueError: ``directory`` holds a run with other settings; the message names them.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    described = {"model": dataclasses.asdict(config), **settings}
    described = json.loads(json.dumps(described))
    path = directory / "run.json"
    if path.exists():
        found = json.loads(path.read_text())
        # Fields that T5Config has gained since then take their defaults.
        found["model"] = dataclasses.asdict(T5Config(**found["model"]))
        keys = sorted(found.keys() | described.keys())
        other = [key for key in keys if found.get(key) != described.get(key)]
        if other:
            changes = "; ".join(
                f"{key}: {found.get(key)!r} there, {described.get(key)!r} here" for key in other
            )
            raise ValueError(f"{directory} holds a run with other settings: {changes}.")
    shutil.copyfile(vocabulary_path, directory / FILE_NAME)
    (directory / RUN_MODEL).write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    path.write_text(json.dumps(described, indent=2) + "\n")


class Checkpointer:
    """Saves and restores (params, optimizer state) by step; keeps the latest two."""

    def __init__(self, directory: str | os.PathLike):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(
            (Path(directory) / "checkpoints").absolute(), options=options
        )

    def latest_step(self) -> int | None:
        """The newest step saved whole, or None."""
        return self._manager.latest_step()

    def save(self, step: int, params: Any, optimizer_state: Any) -> None:
        """Writes a checkpoint; it becomes visible only when complete."""
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params), optimizer=ocp.args.StandardSave(optimizer_state)
        )
        self._manager.save(step, args=items)

    def restore(self, step: int, params: Any, optimizer_state: Any) -> tuple[Any, Any]:
        """The state saved at ``step``, shaped and placed like the arguments."""
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(_abstract(params)),
            optimizer=ocp.args.StandardRestore(_abstract(optimizer_state)),
        )
        restored = self._manager.restore(step, args=items)
        return restored["params"], restored["optimizer"]

    def restore_params(self, step: int, params: Any) -> Any:
        """The parameters saved at ``step``, shaped like ``params``."""
        items = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(params)))
        return self._manager.restore(step, args=items)["params"]

    def close(self) -> None:
        """Releases the manager's threads."""
        self._manager.close()


def load_params(source: str | os.PathLike) -> tuple[T5Config, dict]:
    """The network and the parameters of a run directory (the latest) or of a Hugging Face T5.

    Args:
      source: a run directory; else a directory, a hub id or a bundled model such as
        "quickstart/target" (see :func:`specdec.checkpoints.loading.resolve`).

    Raises:
      FileNotFoundError: a run that holds no checkpoint yet, or a directory of something else.
      CheckpointError: the checkpoint cannot be read.
    """
    directory = Path(source)
    path = directory / RUN_MODEL
    if not path.is_file():
        if directory.is_dir() and not (directory / CONFIG).is_file():
            raise FileNotFoundError(
                f"{directory} is neither a training run, which has {RUN_MODEL}, nor a Hugging Face "
                f"checkpoint, which has {CONFIG}."
            )
        return load_huggingface(resolve(source, "target"))
    config = T5Config(**json.loads(path.read_text()))
    checkpointer = Checkpointer(directory)
    try:
        step = checkpointer.latest_step()
        if step is None:
            raise FileNotFoundError(f"{directory} holds no checkpoint yet.")
        shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
        return config, checkpointer.restore_params(step, shapes)
    finally:
        checkpointer.close()


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
