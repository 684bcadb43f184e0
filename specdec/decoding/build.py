"""Builds engines and decoders from a target, a draft and a :class:`Decoding`."""

from __future__ import annotations

import dataclasses

import jax

from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.options import Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.drafters.shape import Tree
from specdec.models.base import LoadableModel
from specdec.rules.base import Rule, Rules, RuleTarget
from specdec.rules.normalized import Renormalized
from specdec.rules.opening import opened
from specdec.rules.positions import ForcedFirst
from specdec.rules.stops import open_stops
from specdec.types import Params, Sampling

# Draft beams for each beam that is kept: more of them miss less, and make calls longer.
DRAFT_BEAMS = 3


def open_rules(target: LoadedTarget, decoding: Decoding) -> Rules:
    """The rules for logits, opened for a target.

    Raises:
      ValueError: one cannot be a rule for it, or contradicts the limit.
    """
    opening = _opening(target, decoding)
    return tuple(opened(rule, opening) for rule in rules_of(target, decoding))


def _opening(target: LoadedTarget, decoding: Decoding) -> RuleTarget:
    model, vocabulary = target.model, target.vocabulary
    return RuleTarget(
        model.vocab_size, model.eos_ids, model.reads_prefix, decoding.max_decode_len, vocabulary
    )


def rules_of(target: LoadedTarget, decoding: Decoding) -> tuple[Rule, ...]:
    """The rules that are given, or the checkpoint's own, and one for a fixed first token.

    Raises:
      ValueError: the checkpoint's options cannot be followed in this way.
    """
    given, first = decoding.rules, target.first_token
    if given is None:
        kind = "beams" if decoding.searches else "greedy" if decoding.sampling.greedy else "sampled"
        if kind in target.refused:
            raise ValueError(target.refused[kind])
        # Others' tokens do not depend on it.
        given = [r for r in target.rules if decoding.searches or not isinstance(r, Renormalized)]
    given = tuple(given)
    return given if first is None else (*given, ForcedFirst(first))


def following(params: Params, rules: Rules) -> Params:
    """A drafter's parameters, with rules that it follows wherever it draws."""
    return jax.tree.map(
        lambda each: dataclasses.replace(each, rules=rules) if isinstance(each, Sampling) else each,
        params, is_leaf=lambda each: isinstance(each, Sampling),
    )  # fmt: skip


def build_engine(
    target: LoadableModel, draft: OpenDraft | None, decoding: Decoding, *, width: int = 1
) -> Engine:
    """The engine of a draft's chains or trees, or of plain decoding.

    Args:
      draft: not read by plain decoding.
      width: of plain decoding's target calls; see :class:`Engine`.

    Raises:
      ValueError: the draft cannot stop early or cannot grow the tree, the tree has more guesses for
        one position than there are tokens, the verifier takes chains only, or the target cannot
        be exact.
    """
    shape, verifier, alternatives = decoding.shape, decoding.accepts, decoding.alternatives
    if alternatives is not None and alternatives > target.vocab_size:
        raise ValueError(
            f"top_log_probs is {alternatives}, and the vocabulary has {target.vocab_size} tokens."
        )
    target = target.exactly() if decoding.exact else target
    if shape is None:
        return Engine(
            target, width=width, alternatives=alternatives, audit=decoding.audit,
            samples=decoding.num_samples,
        )  # fmt: skip
    assert draft is not None
    if isinstance(shape, Tree):
        if draft.trees is None:
            raise ValueError("This draft makes chains only: give gamma instead of tree.")
        if shape.most_siblings > target.vocab_size:
            raise ValueError(
                f"{shape} has {shape.most_siblings} guesses for one position; the vocabulary has "
                f"{target.vocab_size} tokens."
            )
    drafter = draft.make(shape, 2)
    if not (verifier.trees or drafter.topology.is_chain):
        raise ValueError(
            f"{type(verifier).__name__} verifies chains only: give gamma instead of tree, or "
            "verifier=specdec.RecursiveVerifier()."
        )
    return Engine(
        target, drafter, verifier, alternatives=alternatives, audit=decoding.audit,
        samples=decoding.num_samples,
    )  # fmt: skip


def build(target: LoadedTarget, draft: OpenDraft, decoding: Decoding) -> BatchDecoder | BeamDecoder:
    """A decoder of batches; see :func:`build_search` and :func:`build_decoder`."""
    of = build_search if decoding.searches else build_decoder
    return of(target, draft, decoding)


def build_decoder(
    target: LoadedTarget, draft: OpenDraft, decoding: Decoding, *, width: int = 1
) -> BatchDecoder:
    """A decoder of the batches that :func:`specdec.decoding.batches.make_batches` makes.

    Raises:
      ValueError: the draft cannot draw its guesses in this way; see also :func:`build_engine` and
        :func:`open_rules`.
    """
    engine, given = build_engine(target.model, draft, decoding, width=width), ()
    rules, stops = (
        open_rules(target, decoding),
        open_stops(decoding.stop, _opening(target, decoding)),
    )
    if decoding.guesses:
        given = draft.params(decoding.draft_sampling or decoding.sampling)
        given = following(given, rules) if decoding.draft_follows_rules else given
    params = EngineParams(target.params, decoding.sampling.traced(rules), given, stops)
    return BatchDecoder(
        engine, params, target, decoding.max_decode_len, decoding.seed, rules_of(target, decoding)
    )


def build_search(target: LoadedTarget, draft: OpenDraft | None, decoding: Decoding) -> BeamDecoder:
    """Beam search of batches, plain or with guesses of a draft model.

    Args:
      draft: not read by plain beams.

    Raises:
      ValueError: the draft is no model; more beams than tokens; fewer draft_beams than beams.
    """
    beam, shape = decoding.beam, decoding.shape
    assert beam is not None
    plain = BeamDecoder(
        target, beam, decoding.max_decode_len, open_rules(target, decoding),
        rules_of(target, decoding), decoding.log_probs,
    )  # fmt: skip
    if shape is None:
        return plain
    if draft is None or draft.model is None:
        raise ValueError(
            "Speculative beams need a draft with a distribution over tokens, which is a model: "
            'this one has none. Give load_pair a checkpoint as draft, or use method="beam".'
        )
    tokens = draft.model.most_tokens or target.model.vocab_size
    most = max(min(DRAFT_BEAMS * beam.num_beams, tokens), beam.num_beams)
    return dataclasses.replace(
        plain, draft=draft.model, gamma=shape.levels, draft_beams=decoding.draft_beams or most
    )
