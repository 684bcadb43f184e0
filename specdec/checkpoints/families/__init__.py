"""Families of models: what a config.json can describe. Each is a module of this package."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from specdec.checkpoints.families.base import Family

_MODULES = (
    importlib.import_module(f"{__name__}.{found.name}")
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    if found.name != "base"
)
# By the class of their configs, and by config.json's model_type.
FAMILIES: dict[type, Family] = {module.FAMILY.config: module.FAMILY for module in _MODULES}
MODEL_TYPES = {name: family for family in FAMILIES.values() for name in family.model_types}
SUPPORTED = ", ".join(
    f"{name} ({also})" if (also := family.model_types[name]) else name
    for name, family in sorted(MODEL_TYPES.items())
)


def family_of(config: Any) -> Family:
    """The family of a config."""
    return FAMILIES[type(config)]
