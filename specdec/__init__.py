"""specdec: faster sampling from large Transformers with the same output distribution."""

import importlib
from typing import TYPE_CHECKING

from specdec.version import __version__

if TYPE_CHECKING:
    from specdec.api import GenerateOutput, Pair
    from specdec.compiling import compile_report
    from specdec.decoding.beam_rules import BeamConfig
    from specdec.decoding.hierarchical import Hierarchical
    from specdec.decoding.options import Decoding
    from specdec.drafters.copying import Copying
    from specdec.drafters.heads import Heads
    from specdec.drafters.merged import Merged
    from specdec.drafters.ngram import Ngram
    from specdec.drafters.quantized import Quantized
    from specdec.drafters.random import Random
    from specdec.drafters.shape import Tree
    from specdec.load import load_pair
    from specdec.models.partitioning import DeviceMesh
    from specdec.types import SamplingConfig
    from specdec.verifiers.block import BlockVerifier
    from specdec.verifiers.kseq import KSeqVerifier
    from specdec.verifiers.lenient import LenientVerifier
    from specdec.verifiers.point_mass import PointMassVerifier
    from specdec.verifiers.recursive import RecursiveVerifier
    from specdec.verifiers.token import TokenVerifier
    from specdec.verifiers.traversal import TraversalVerifier
    from specdec.verifiers.typical import TypicalVerifier

_HOMES = {
    "BeamConfig": "decoding.beam_rules",
    "BlockVerifier": "verifiers.block",
    "Copying": "drafters.copying",
    "Decoding": "decoding.options",
    "DeviceMesh": "models.partitioning",
    "GenerateOutput": "api",
    "Heads": "drafters.heads",
    "Hierarchical": "decoding.hierarchical",
    "KSeqVerifier": "verifiers.kseq",
    "LenientVerifier": "verifiers.lenient",
    "Merged": "drafters.merged",
    "Ngram": "drafters.ngram",
    "Pair": "api",
    "PointMassVerifier": "verifiers.point_mass",
    "Quantized": "drafters.quantized",
    "Random": "drafters.random",
    "RecursiveVerifier": "verifiers.recursive",
    "SamplingConfig": "types",
    "TokenVerifier": "verifiers.token",
    "TraversalVerifier": "verifiers.traversal",
    "Tree": "drafters.shape",
    "TypicalVerifier": "verifiers.typical",
    "compile_report": "compiling",
    "load_pair": "load",
}
__all__ = [
    "BeamConfig",
    "BlockVerifier",
    "Copying",
    "Decoding",
    "DeviceMesh",
    "GenerateOutput",
    "Heads",
    "Hierarchical",
    "KSeqVerifier",
    "LenientVerifier",
    "Merged",
    "Ngram",
    "Pair",
    "PointMassVerifier",
    "Quantized",
    "Random",
    "RecursiveVerifier",
    "SamplingConfig",
    "TokenVerifier",
    "TraversalVerifier",
    "Tree",
    "TypicalVerifier",
    "__version__",
    "compile_report",
    "load_pair",
]


def __getattr__(name: str) -> object:
    """Imported when it is used: a command's help need not wait for JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specdec' has no attribute {name!r}")
    return getattr(importlib.import_module(f"specdec.{_HOMES[name]}"), name)
