"""Nested dicts of arrays, and the same by path: {"a": {"b": x}} is {"a/b": x}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def by_path(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested dicts by their paths; empty dicts are left out."""
    leaves = {}
    for name, node in tree.items():
        if isinstance(node, Mapping):
            leaves |= {f"{name}/{path}": leaf for path, leaf in by_path(node).items()}
        else:
            leaves[name] = node
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of leaves by their paths."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree
