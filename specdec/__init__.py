"""specdec: faster sampling from large Transformers with the same output distribution."""

from specdec.api import GenerateOutput, Pair, load_pair
from specdec.types import SamplingConfig

__version__ = "0.1.0"
__all__ = ["GenerateOutput", "Pair", "SamplingConfig", "__version__", "load_pair"]
