"""Names for decoding configurations. The library meets gin's registry here and in reproduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gin

from specdec.checkpoints.loading import checkpoint
from specdec.data import tasks
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
from specdec.models.partitioning import DeviceMesh
from specdec.rules.automata import AllowedSequences, Automaton
from specdec.rules.forbidden import Forbidden
from specdec.rules.grammars import JsonSchema, Regex
from specdec.rules.ngrams import NoRepeatNgram
from specdec.rules.normalized import Renormalized
from specdec.rules.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from specdec.rules.positions import (
    ForcedFirst,
    ForcedLast,
    MinLength,
    MinNewTokens,
    Suppressed,
)
from specdec.runs import dry_run
from specdec.runs.decode_run import DecodeRun
from specdec.runs.transcribe_run import TranscribeRun
from specdec.speech.options import Transcription
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier

T = TypeVar("T")

_NAMED: dict[str, tuple[Any, ...]] = {
    "specdec": (
        Decoding, DecodeRun, TranscribeRun, Transcription, SamplingConfig, DeviceMesh, BeamConfig,
    ),
    "specdec.checkpoints": (checkpoint,),
    "specdec.drafts": (Quantized, Ngram, Copying, Given, Random, Heads, Hierarchical, Merged),
    "specdec.rules": (
        AllowedSequences, Automaton, Forbidden, ForcedFirst, ForcedLast, FrequencyPenalty,
        JsonSchema, MinLength, MinNewTokens, NoRepeatNgram, PresencePenalty, Regex,
        Renormalized, RepetitionPenalty, Suppressed,
    ),
    "specdec.trees": (Tree,),
    "specdec.verifiers": (
        TokenVerifier, BlockVerifier, LenientVerifier, RecursiveVerifier, TraversalVerifier,
        KSeqVerifier, PointMassVerifier, TypicalVerifier,
    ),
    "specdec.tasks": (
        tasks.bundled_examples, tasks.given_texts, tasks.openings, tasks.pairs_file,
        tasks.seqio_pairs_file, tasks.seqio_task, tasks.text_file, tasks.unconditional,
    ),
}  # fmt: skip
for _module, _all in _NAMED.items():
    for _each in _all:
        gin.external_configurable(_each, module=_module)
gin.external_configurable(dry_run.report, "dry_run", module="specdec")


def configured(what: Callable[..., T]) -> T:
    """Object that the parsed configuration makes of a class or function above.

    Raises:
      ValueError: a setting has a value of the wrong type, or as ``what`` does.
    """
    try:
        return gin.get_configurable(what)()
    except TypeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"A setting has a value of the wrong type: {reason}.") from None
