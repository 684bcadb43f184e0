"""Builds what decodes: from a target, a draft and a :class:`Decoding`."""

from __future__ import annotations

import dataclasses

from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.options import Decoding
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.drafters.base import OpenDraft
from specdec.drafters.shape import Tree
from specdec.models.base import LoadedModel, Model

# Draft beams for each beam that is kept: more of them miss less, and make calls longer.
DRAFT_BEAMS = 3


def build_engine(
    target: Model, draft: OpenDraft | None, decoding: Decoding, *, width: int = 1
) -> Engine:
    """The engine of a draft's chains or trees, or of plain decoding.

    Args:
      draft: not read by plain decoding.
      width: of plain decoding's target calls; see :class:`Engine`.

    Raises:
      ValueError: the draft cannot stop early or cannot grow the tree, the tree has more guesses for
        one position than there are tokens, or the verifier takes chains only.
    """
    shape, verifier = decoding.shape, decoding.accepts
    if shape is None:
        return Engine(target, width=width)
    assert draft is not None
    if not isinstance(shape, Tree):
        drafter = draft.make(shape.gamma, shape.stop_below)
    elif draft.make_tree is None:
        raise ValueError("This draft makes chains only: give gamma instead of tree.")
    elif shape.most_siblings > target.vocab_size:
        raise ValueError(
            f"{shape} has {shape.most_siblings} guesses for one position; the vocabulary has "
            f"{target.vocab_size} tokens."
        )
    else:
        drafter = draft.make_tree(shape, 2)
    if not (verifier.trees or drafter.topology.is_chain):
        raise ValueError(
            f"{type(verifier).__name__} verifies chains only: give gamma instead of tree, or "
            "verifier=specdec.RecursiveVerifier()."
        )
    return Engine(target, drafter, verifier)


def build_decoder(
    target: LoadedModel, draft: OpenDraft, decoding: Decoding, *, width: int = 1
) -> BatchDecoder:
    """A decoder of the batches that :func:`specdec.decoding.batches.make_batches` makes.

    Raises:
      ValueError: the draft cannot draw its guesses in this way; see also :func:`build_engine`.
    """
    params = EngineParams(target.params, decoding.sampling.traced())
    engine = build_engine(target.model, draft, decoding, width=width)
    if decoding.guesses:
        drawn = draft.params(decoding.draft_sampling or decoding.sampling)
        params = dataclasses.replace(params, drafter=drawn)
    return BatchDecoder(engine, params, target, decoding.max_decode_len, decoding.seed)


def build_search(
    target: LoadedModel, draft: OpenDraft | None, decoding: Decoding
) -> BeamDecoder | SpeculativeBeamDecoder:
    """Beam search of batches, plain or with guesses of a draft model.

    Args:
      draft: not read by plain beams.

    Raises:
      ValueError: the draft is no model; more beams than tokens; fewer draft_beams than beams.
    """
    beam, shape = decoding.beam, decoding.shape
    assert beam is not None
    if shape is None:
        return BeamDecoder(target, beam, decoding.max_decode_len)
    if draft is None or draft.model is None:
        raise ValueError(
            "Speculative beams need a draft with a distribution over tokens, which is a model: "
            'this one has none. Give load_pair a checkpoint as draft, or use method="beam".'
        )
    tokens = draft.model.most_tokens or target.model.vocab_size
    most = max(min(DRAFT_BEAMS * beam.num_beams, tokens), beam.num_beams)
    return SpeculativeBeamDecoder(
        target, draft.model, beam, shape.levels, decoding.draft_beams or most,
        decoding.max_decode_len,
    )  # fmt: skip
