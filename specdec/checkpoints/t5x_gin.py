"""Fields of a network in T5X's gin file: its activation, which arrays do not show, and sizes.

T5X writes ``config.gin`` beside its checkpoints. It is parsed and nothing in it is run.

Source: ``t5x/gin_utils.py`` and ``T5Config`` in T5X's networks.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from typing import Any

from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.t5x_files import content_of, is_remote, reason
from specdec.models.transformer.config import TransformerConfig

NAME = "config.gin"
# T5X's names of sizes and ours.
SIZES = {
    "vocab_size": "vocab_size", "emb_dim": "d_model", "mlp_dim": "d_ff", "num_heads": "num_heads",
    "head_dim": "head_dim", "num_encoder_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers", "logits_via_embedding": "tied_logits",
}  # fmt: skip
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}


def with_gin(config: TransformerConfig, location: str) -> TransformerConfig:
    """The network with the activation that ``config.gin`` names, if there is such a file.

    It is in the checkpoint's directory or in the one above.

    Raises:
      CheckpointError: the file cannot be parsed, or is of another network than ``config``.
    """
    if not is_remote(location):
        location = os.path.abspath(location)
    for directory in (location, posixpath.dirname(location)):
        if (text := content_of(directory, NAME)) is not None:
            return _applied(config, text, f"{directory}/{NAME}")
    return config


def _applied(config: TransformerConfig, text: bytes, source: str) -> TransformerConfig:
    try:
        fields = _fields(text.decode())
    except Exception as error:  # Its type depends on the fault.
        raise CheckpointError(
            f"{source} cannot be parsed ({reason(error)}); mend it, or move it away."
        ) from None
    for theirs, ours in SIZES.items():
        found, asked = fields.get(theirs), getattr(config, ours)
        if found is not None and found != asked:
            raise CheckpointError(
                f"{source}: T5Config.{theirs} is {found!r}, but the checkpoint's arrays have "
                f"{asked}; check that they belong together."
            )
    activations = fields.get("mlp_activations")
    if activations is None:
        return config
    gate = ["linear"] if config.decoder.gated else []
    for theirs, activation in ACTIVATIONS.items():
        if activations in ((theirs, *gate), [theirs, *gate]):
            stacks = {
                name: dataclasses.replace(stack, activation=activation)
                for name, stack in config.stacks.items()
            }
            return dataclasses.replace(config, **stacks)
    rest = ", 'linear'" if gate else ""
    raise CheckpointError(
        f"{source}: T5Config.mlp_activations is {activations!r}; for these arrays it must be "
        f"(activation{rest}) with one of {', '.join(ACTIVATIONS)}."
    )


def _fields(text: str) -> dict[str, Any]:
    """Values that a gin file binds of a class ``T5Config``, as far as it gives them itself."""
    from gin import config_parser

    class Names(config_parser.ParserDelegate):
        """Values that are elsewhere: None if they are made by running something."""

        def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> None:
            return None

        def macro(self, macro_name: str) -> Any:
            return macros.get(macro_name)

    fields: dict[str, Any] = {}
    macros: dict[str, Any] = {}
    for statement in config_parser.ConfigParser(text, Names()):
        if isinstance(statement, config_parser.BindingStatement) and not statement.scope:
            if not statement.arg_name:
                macros[statement.selector] = statement.value
            elif statement.selector.split(".")[-1] == "T5Config":
                fields[statement.arg_name] = statement.value
    return fields
