"""Families of models: what a config.json can describe. Each is a module of this package."""

from __future__ import annotations

import importlib
import pkgutil

from specdec.checkpoints.families.base import Family
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.transformer.config import TransformerConfig

FAMILIES: tuple[Family, ...] = tuple(
    importlib.import_module(f"{__name__}.{found.name}").FAMILY
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    if found.name != "base" and not found.name.startswith("_")
)
MODEL_TYPES = {name: family for family in FAMILIES for name in family.model_types}
SUPPORTED = ", ".join(
    f"{name} ({also})" if (also := family.model_types[name]) else name
    for name, family in sorted(MODEL_TYPES.items())
)


def family_of(config: TransformerConfig) -> Family:
    """The family whose files can say a config; CheckpointError if there is none."""
    for family in FAMILIES:
        if family.model_type_of(config) is not None:
            return family
    raise CheckpointError(f"No family of transformers has these settings together: {config}.")
