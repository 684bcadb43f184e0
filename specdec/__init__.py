"""specdec: faster sampling from large Transformers with the same output distribution."""

from specdec.api import GenerateOutput, Pair, load_pair
from specdec.decoding.hierarchical import Hierarchical
from specdec.drafters.copying import Copying
from specdec.drafters.ngram import Ngram
from specdec.drafters.random import Random
from specdec.models.partitioning import DeviceMesh
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.version import __version__

__all__ = [
    "BlockVerifier",
    "Copying",
    "DeviceMesh",
    "GenerateOutput",
    "Hierarchical",
    "LenientVerifier",
    "Ngram",
    "Pair",
    "Random",
    "SamplingConfig",
    "TokenVerifier",
    "__version__",
    "load_pair",
]
