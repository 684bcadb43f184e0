"""Use of transformers on a checkpoint's files; it is imported where one is opened, torch not.

Nothing that a file names is run: classes are chosen by model_type from those that transformers has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.core.arguments import MOST_LAYERS
from specdec.core.checkpoint_files import CheckpointError

# Fields that are no matter of the network: the weights' files have their dtype, and the rest is of
# classifiers and images, or of the file's own quantization, which the weights show.
_UNREAD = (
    "dtype", "torch_dtype", "id2label", "label2id", "num_labels", "problem_type", "vision_config",
    "quantization_config",
)  # fmt: skip
_MOST = 200  # Characters of another library's message.

_TYPES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string",
    "list": "a list", "dict": "an object", "NoneType": "null",
}  # fmt: skip


def config_fields(model_type: str, raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The fields of a config.json and, of those that it leaves out, the defaults of its class.

    Raises:
      CheckpointError: transformers does not take it, or it has more layers than any model.
    """
    if raw.get("per_layer_config") is not None:
        raise CheckpointError(f"{path}: per_layer_config is not supported: layers must be alike.")
    with library_errors(path):
        return config_object(model_type, raw, path).to_dict()


def config_object(model_type: str, raw: Mapping[str, Any], path: Path) -> Any:
    """The configuration object of transformers that a config.json describes.

    It is made from the fields and not from the file, whose dtype would import torch.
    """
    fields = _read(raw, path)
    from transformers.models.auto.configuration_auto import AutoConfig

    return AutoConfig.for_model(model_type, **fields)


def generation_fields(raw: Mapping[str, Any], path: Path, *, alone: bool) -> dict[str, Any]:
    """Options of ``generate`` in a generation_config.json, or in a config.json that is alone.

    Raises:
      CheckpointError: transformers does not take it.
    """
    with library_errors(path):
        from transformers.generation.configuration_utils import GenerationConfig

        if alone:
            return vars(GenerationConfig.from_model_config(dict(raw)))
        return vars(GenerationConfig.from_dict(dict(raw)))


def _read(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Fields of a file that are read, and those of the parts in it."""
    for name, value in raw.items():
        # A list of layers is made before anything is compared with the weights.
        if name.endswith(("layers", "n_layer")) and isinstance(value, int) and value > MOST_LAYERS:
            raise CheckpointError(f"{path}: {name} must be in 1..{MOST_LAYERS}, got {value}.")
    return {
        name: _read(value, path) if isinstance(value, dict) else value
        for name, value in raw.items()
        if name not in (*_UNREAD, "model_type")
    }


def _reason(error: BaseException) -> str:
    found = error.__cause__ or error
    text = " ".join(str(found.args[0] if isinstance(found, KeyError) else found).split())
    if field := re.match("Validation error for field '(.*)'", str(error)):
        if asked := re.findall(r"expected (\w+), got", text):
            types = " or ".join(dict.fromkeys(str(_TYPES.get(name, name)) for name in asked))
            value = text.partition("value: ")[2].partition("); ")[0].removesuffix(")")
            return f": {field[1]} must be {types}, got {value[:_MOST]}."
        text = f"{field[1]}: {text}"
    return (
        f": transformers does not take it ({type(error).__name__}: {text[:_MOST]}); correct the "
        "field, or copy or download the file again."
    )


@contextlib.contextmanager
def library_errors(path: Path, reason: Callable[[BaseException], str] = _reason) -> Iterator[None]:
    """Makes whatever transformers raises within a CheckpointError of one line: path, then reason.

    Rust's panics are among it, which are no Exceptions. What is logged or warned of is not shown.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _without_torch()
            yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # It checks little: what a bad value raises can be anything.
        raise CheckpointError(f"{path}{reason(error)}") from None
    finally:
        logging.disable(disabled)


class _Later:
    """torch, imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


@functools.cache
def _without_torch() -> None:
    """Imports what reads files from transformers, without torch, which takes seconds more.

    Two of these modules import torch if it is installed, though only models need it: here they
    find it missing, and get it when they use it. (Where it is not, transformers would say so.)
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    names = ("transformers.utils", "transformers.utils.import_utils")
    libraries: list[Any] = [*map(importlib.import_module, names)]
    utils, import_utils = libraries
    there = import_utils.is_torch_available
    if "torch" in sys.modules or not there():
        return
    asked = vars(utils), vars(import_utils)
    for names in asked:
        names["is_torch_available"] = lambda: False
    try:
        modules = [importlib.import_module(f"transformers.{name}") for name in _IMPORTING]
    finally:
        for names in asked:
            names["is_torch_available"] = there
    for module in modules:
        vars(module).update(is_torch_available=there, torch=_Later())


_IMPORTING = ("modeling_rope_utils", "utils.type_validators")
