"""Rules, their references, and the cells of the oracle's grid with them."""

import dataclasses
import itertools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import rule_references as ref
from oracle_cases import CASES, PROMPT
from oracle_trees import ONE as WHOLE
from oracle_trees import (
    block_grid,
    cumulative,
    kseq_grid,
    norm,
    recursive_grid,
    rolled,
    traversal_grid,
    without,
)

import specdec
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.models.toy import ToyModel
from specdec.rules.base import OwnRule, RuleTarget
from specdec.rules.spelling import Spelling
from specdec.testing.oracle import exact_distribution, model_distribution, total_variation
from specdec.testing.toys import reference_distribution
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.traversal import TraversalVerifier

LIMIT = 3
TOY = ToyModel(3)
SAMPLED = SamplingConfig(1.0)
PIECES = ("a", "", "b")


class Letters:
    """A vocabulary for the toy."""

    def encode(self, text):
        return [PIECES.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(PIECES[token] for token in ids)

    def spelling(self, size):
        return Spelling.of_bytes([piece.encode() for piece in PIECES[:size]])


TARGET = RuleTarget(3, TOY.eos_ids, False, LIMIT, Letters())


@dataclasses.dataclass(frozen=True)
class NotTwiceInARow(OwnRule):
    """A user's own: token 2 never follows itself."""

    def init(self, row):
        return jnp.int32(-1)

    def allow(self, state, logits):
        return jnp.where((jnp.arange(3) == 2) & (state == 2), -jnp.inf, logits)

    def advance(self, state, token):
        return token


HALF = float(np.log(2))
RULES = {
    "repetition": (specdec.RepetitionPenalty(2.0), ref.repetition(2.0)),
    "presence": (specdec.PresencePenalty(HALF), ref.presence(HALF)),
    "frequency": (specdec.FrequencyPenalty(HALF), ref.frequency(HALF)),
    "no token twice": (specdec.NoRepeatNgram(1), ref.no_repeat(1)),
    "no bigram twice": (specdec.NoRepeatNgram(2), ref.no_repeat(2)),
    "least length": (specdec.MinLength(3), ref.least(2)),
    "least new tokens": (specdec.MinNewTokens(2), ref.least(2)),
    "first token": (specdec.ForcedFirst(2), ref.first(2)),
    "last token": (specdec.ForcedLast(), ref.last(1, LIMIT)),
    "suppressed": (specdec.Suppressed([0]), ref.suppressed([0])),
    "suppressed at first": (specdec.Suppressed([0, 1], at=0), ref.suppressed([0, 1], 0)),
    "forbidden tokens": (
        specdec.Forbidden([[2, 2], [0, 2, 0]]), ref.forbidden([(2, 2), (0, 2, 0)])
    ),
    "forbidden text": (specdec.Forbidden(["ba", "bb"]), ref.forbidden_text(["ba", "bb"], PIECES)),
    "sequences": (
        specdec.AllowedSequences([[2], "ba", [0, 2]]), ref.allowed([(2,), (2, 0), (0, 2)])
    ),
    "automaton": (
        specdec.Automaton({0: {0: 0, 2: 1}, 1: {0: 0}}, accepting=[1]),
        lambda logits, output: ref.only(logits, [0, 1] if output[-1:] == (2,) else [0, 2]),
    ),
    "own": (
        NotTwiceInARow(),
        lambda logits, output: ref.masked(logits, [2] if output[-1:] == (2,) else []),
    ),
    "two": (
        (specdec.RepetitionPenalty(2.0), specdec.MinNewTokens(2)),
        lambda logits, output: ref.least(2)(ref.repetition(2.0)(logits, output), output),
    ),
}  # fmt: skip

STEEP, COINS, QUARTERS = rolled((3, 1, 0), 4, 0), rolled((1, 1, 0), 2, 1), rolled((2, 1, 1), 4, 2)
# Where a token less would leave one distribution for both rows.
_WIDE = {"no token twice", "first token", "suppressed", "suppressed at first", "sequences"}


def opened(rules):
    """For the toy."""
    each = rules if isinstance(rules, tuple) else (rules,)
    return tuple(rule.open(TARGET) for rule in each)


def distributions(table, adjust, limit=LIMIT):
    """All distributions that may come up, as fractions."""
    rows = {tuple(row) for row in np.asarray(table, np.float64)}
    tokens = [token for token in range(table.shape[1]) if token not in TOY.eos_ids]
    found = set()
    for count in range(limit):
        for output in itertools.product(tokens, repeat=count):
            for row in rows:
                try:
                    logits = adjust(np.array(row), output)
                except AssertionError:  # An output that the rule does not allow.
                    continue
                if np.max(logits) > -np.inf:
                    distribution = reference_distribution(logits, SAMPLED)
                    found.add(norm([Fraction(x).limit_denominator(96) for x in distribution]))
    return found


def cells_of(drafter, verifier, targets, drafts):
    """The grid of a drafter and a verifier with these distributions."""
    tree = drafter.topology
    if isinstance(verifier, PointMassVerifier):
        tokens = range(len(min(targets)))
        points = [tuple(WHOLE * (i == x) for i in tokens) for x in tokens]
        return recursive_grid(targets, points, tree.siblings, 1, False, several=True)
    independent = tree.is_chain or drafter.independent
    drawn = (
        {*drafts}
        if independent
        else {*drafts, *(without(q, x) for q in drafts for x in range(len(q)))}
    )
    proposal = tuple(sorted({float(x) for q in drawn for x in cumulative(q) if 0 < x < 1}))
    if isinstance(verifier, BlockVerifier):
        return block_grid(targets, drafts, tree.depth, proposal)
    if isinstance(verifier, KSeqVerifier):
        return kseq_grid(targets, drafts, tree.siblings, proposal)
    if isinstance(verifier, TraversalVerifier):
        return traversal_grid(targets, drafts, tree, proposal, independent)
    return recursive_grid(targets, drafts, tree.siblings, proposal, independent)


def off(name, drafter, verifier, *, follows=True, engine=Engine, rules=None):
    """How far the loop is from the distribution of a rule by its name; see :func:`off_by`."""
    given, adjust = RULES[name]
    target = QUARTERS if name in _WIDE else STEEP
    rules = opened(given) if rules is None else rules
    loop = engine(TOY, drafter, verifier)
    return off_by(rules, adjust, loop, follows=follows, target=target)


def off_by(rules, adjust, engine, *, follows=True, target=STEEP, draft=COINS, limit=LIMIT):
    """How far the loop is from the distribution of rules, at worst of two rows.

    Args:
      rules: opened ones.
      adjust: the same written again.
      follows: whether the draft follows the rules, too.
      target, draft: tables of logits.
    """
    model, drafter, verifier = engine.target, engine.drafter, engine.verifier
    targets, drafts = (
        distributions(target, adjust, limit),
        distributions(draft, lambda logits, output: logits, 1),
    )
    if isinstance(verifier, TraversalVerifier):  # It looks behind what is not allowed, too.
        targets |= distributions(target, lambda logits, output: logits, 1)
    if follows:
        drafts |= distributions(draft, adjust, limit)
    cells = cells_of(drafter, verifier, targets, drafts)
    drawn = DraftParams(draft, SAMPLED.traced(rules if follows else ()))
    found = exact_distribution(
        engine, EngineParams(target, SAMPLED.traced(rules), drawn), PROMPT, limit=limit, grid=cells
    )
    truth = model_distribution(
        model, target, PROMPT, lambda x: reference_distribution(x, SAMPLED), limit=limit,
        adjust=adjust,
    )  # fmt: skip
    assert truth[0] != truth[1]
    return max(total_variation(a, b) for a, b in zip(found, truth, strict=True))


GREEDY = CASES["greedy"]
