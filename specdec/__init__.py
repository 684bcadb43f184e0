"""specdec: faster sampling from large Transformers with the same output distribution."""

import importlib
from typing import TYPE_CHECKING

from specdec.version import __version__

if TYPE_CHECKING:
    from specdec.api import Pair
    from specdec.compile.compiling import compile_report
    from specdec.decoding.beam_rules import BeamConfig
    from specdec.decoding.options import Decoding
    from specdec.drafters.copying import Copying
    from specdec.drafters.given import Given
    from specdec.drafters.heads import Heads
    from specdec.drafters.hierarchical import Hierarchical
    from specdec.drafters.merged import Merged
    from specdec.drafters.ngram import Ngram
    from specdec.drafters.quantized import Quantized
    from specdec.drafters.random import Random
    from specdec.drafters.shape import Tree
    from specdec.load import load_pair
    from specdec.measure.lossless import Audit
    from specdec.models.partitioning import DeviceMesh
    from specdec.outputs import GenerateOutput
    from specdec.rules.automata import AllowedSequences, Automaton
    from specdec.rules.base import OwnRule
    from specdec.rules.forbidden import Forbidden
    from specdec.rules.grammars import JsonSchema, Regex
    from specdec.rules.ngrams import NoRepeatNgram
    from specdec.rules.normalized import Renormalized
    from specdec.rules.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
    from specdec.rules.positions import ForcedFirst, ForcedLast, MinLength, MinNewTokens, Suppressed
    from specdec.rules.timestamps import Timestamps
    from specdec.speech.options import Transcription
    from specdec.speech.transcript import Transcript
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
    "AllowedSequences": "rules.automata",
    "Audit": "measure.lossless",
    "Automaton": "rules.automata",
    "BeamConfig": "decoding.beam_rules",
    "BlockVerifier": "verifiers.block",
    "Copying": "drafters.copying",
    "Decoding": "decoding.options",
    "DeviceMesh": "models.partitioning",
    "Forbidden": "rules.forbidden",
    "ForcedFirst": "rules.positions",
    "ForcedLast": "rules.positions",
    "FrequencyPenalty": "rules.penalties",
    "GenerateOutput": "outputs",
    "Given": "drafters.given",
    "Heads": "drafters.heads",
    "Hierarchical": "drafters.hierarchical",
    "JsonSchema": "rules.grammars",
    "KSeqVerifier": "verifiers.kseq",
    "LenientVerifier": "verifiers.lenient",
    "Merged": "drafters.merged",
    "MinLength": "rules.positions",
    "MinNewTokens": "rules.positions",
    "Ngram": "drafters.ngram",
    "NoRepeatNgram": "rules.ngrams",
    "OwnRule": "rules.base",
    "Pair": "api",
    "PointMassVerifier": "verifiers.point_mass",
    "PresencePenalty": "rules.penalties",
    "Quantized": "drafters.quantized",
    "Random": "drafters.random",
    "RecursiveVerifier": "verifiers.recursive",
    "Regex": "rules.grammars",
    "Renormalized": "rules.normalized",
    "RepetitionPenalty": "rules.penalties",
    "SamplingConfig": "types",
    "Suppressed": "rules.positions",
    "Timestamps": "rules.timestamps",
    "TokenVerifier": "verifiers.token",
    "Transcript": "speech.transcript",
    "Transcription": "speech.options",
    "TraversalVerifier": "verifiers.traversal",
    "Tree": "drafters.shape",
    "TypicalVerifier": "verifiers.typical",
    "compile_report": "compile.compiling",
    "load_pair": "load",
}
__all__ = [
    "AllowedSequences",
    "Audit",
    "Automaton",
    "BeamConfig",
    "BlockVerifier",
    "Copying",
    "Decoding",
    "DeviceMesh",
    "Forbidden",
    "ForcedFirst",
    "ForcedLast",
    "FrequencyPenalty",
    "GenerateOutput",
    "Given",
    "Heads",
    "Hierarchical",
    "JsonSchema",
    "KSeqVerifier",
    "LenientVerifier",
    "Merged",
    "MinLength",
    "MinNewTokens",
    "Ngram",
    "NoRepeatNgram",
    "OwnRule",
    "Pair",
    "PointMassVerifier",
    "PresencePenalty",
    "Quantized",
    "Random",
    "RecursiveVerifier",
    "Regex",
    "Renormalized",
    "RepetitionPenalty",
    "SamplingConfig",
    "Suppressed",
    "Timestamps",
    "TokenVerifier",
    "Transcript",
    "Transcription",
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
