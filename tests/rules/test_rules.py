"""Rules apart from decoding: what they allow against plain Python, and what they refuse."""

import dataclasses
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import PROMPT
from oracle_rules import COINS, RULES, SAMPLED, STEEP, TARGET, TOY, opened

import specdec
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.rules import base, opening
from specdec.rules.base import RuleTarget
from specdec.testing.rule_mutants import FinishedRowsAdvance

SIZE = 300
LARGE = RuleTarget(SIZE, (1,), False, 64)


def allowed_behind(rule, tokens, size=SIZE):
    """Which tokens a rule allows behind an output."""
    (states,) = (base.start((rule,), PROMPT, 64, 64),)
    for token in tokens:
        states = base.advanced((rule,), states, jnp.full((2,), token, jnp.int32))
    found = base.allowed((rule,), states, jnp.zeros((2, size)))
    assert (found[0] == found[1]).all()
    return {int(token) for token in np.flatnonzero(np.asarray(found[0]) > -np.inf)}


def test_a_trie_allows_what_continues_a_sequence():
    """States with few tokens after them, and with many."""
    generator = random.Random(0)
    sequences = {
        tuple(generator.randrange(2, SIZE if place == 0 else 40) for place in range(length))
        for length in itertools.chain.from_iterable([range(1, 5)] * 200)
    }
    rule = specdec.AllowedSequences(list(sequences)).open(LARGE)
    assert len(rule.bits)
    whole = {(*each, 1) for each in sequences}
    for each in [(), *generator.sample(sorted(whole), 30)]:
        for count in range(len(each)):
            begun = each[:count]
            expected = {s[count] for s in whole if s[:count] == begun and len(s) > count}
            assert allowed_behind(rule, begun) == expected
    # Behind what it does not allow there is no distribution: nothing is emitted, all is allowed.
    assert allowed_behind(rule, (1,)) == set(range(SIZE))


def test_an_automaton_of_many_edges():
    edges = {0: {token: 1 + token % 2 for token in range(2, SIZE)}, 1: {5: 0}, 2: {7: 2}}
    rule = specdec.Automaton(edges, accepting=[2]).open(LARGE)
    assert allowed_behind(rule, ()) == set(range(2, SIZE))
    assert allowed_behind(rule, (4,)) == {5}
    assert allowed_behind(rule, (9,)) == {7, 1}
    assert allowed_behind(rule, (9, 7, 7)) == {7, 1}


def moved(engine, rules):
    """Which of two rows' states a block moves, of a running row and of one that has ended."""
    draft = DraftParams(COINS, SAMPLED.traced(rules))
    params = EngineParams(STEEP, SAMPLED.traced(rules), draft)
    before = engine.start(params, PROMPT, jnp.array([0, -1]), 8, 0, output_bucket=16)
    after = jax.jit(engine.step)(params, before)[0]
    pairs = zip(*map(jax.tree.leaves, (before.rules, after.rules)), strict=True)
    return np.any([[(a[row] != b[row]).any() for row in range(2)] for a, b in pairs], axis=0)


def test_a_finished_row_stands_still():
    """In every array of all rules' states."""
    every = [rule for given, _ in RULES.values() for rule in opened(given)]
    assert not moved(Engine(TOY, ModelDrafter(TOY, 2)), tuple(every))[1]


def test_a_finished_row_that_moves_is_seen():
    rules = opened(RULES["no bigram twice"][0])
    assert moved(Engine(TOY, ModelDrafter(TOY, 2)), rules).tolist() == [True, False]
    assert moved(FinishedRowsAdvance(TOY, ModelDrafter(TOY, 2)), rules).all()


def test_without_rules_nothing_of_them_is_in_the_program(monkeypatch):
    """No function of theirs is called while it is traced."""

    def refused(*args):
        raise AssertionError("called without rules")

    for name in ("allowed", "adjusted", "taken", "at_nodes", "where"):
        monkeypatch.setattr(base, name, refused)
    engine = Engine(TOY, ModelDrafter(TOY, 2))
    params = EngineParams(STEEP, SAMPLED.traced(), DraftParams(COINS, SAMPLED.traced()))
    state = engine.start(params, PROMPT, jnp.arange(2), 8, 0, output_bucket=16)
    assert state.rules == ()
    assert state.stop is state.stopped is state.log_probs is None
    jax.make_jaxpr(engine.step)(params, state)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: specdec.RepetitionPenalty(-1), "penalty must be above 0"),
        (lambda: specdec.RepetitionPenalty(1e300), "must be above 0 .*, a number of float32"),
        (lambda: specdec.PresencePenalty(float("nan")), "must be a finite number"),
        (lambda: specdec.NoRepeatNgram(0), "size must be at least 1"),
        (lambda: specdec.MinLength(2**31), "MinLength.length must be at most 2147483647"),
        (lambda: specdec.Forbidden("x"), "needs a list of strings or lists"),
        (lambda: specdec.Forbidden([[]]), "none of them empty"),
        (lambda: specdec.Forbidden([b"ab"]), "is a string or a list of token ids, got b'ab'"),
        (lambda: specdec.Forbidden(["\ud800"]), "Forbidden has '.ud800', which is no text"),
        (lambda: specdec.Automaton({0: {2: 2**25}}, [0]), "edges must be in 0..16777216"),
        (lambda: specdec.Automaton({0: {2: 0}}, [2**25]), "accepting must be in 0..16777216"),
        (lambda: specdec.AllowedSequences([]), "needs one sequence or more"),
        (lambda: specdec.Automaton({}, []), "needs edges"),
        (lambda: specdec.Automaton({0: {-1: 2}}, []), "a token of Automaton.edges must be"),
        (lambda: specdec.Decoding(rules=(specdec.NoRepeatNgram,)), "rules must be objects"),
    ],
)  # fmt: skip
def test_what_cannot_be(make, told):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            specdec.MinLength(6),
            r"MinLength\(6\) asks for at least 5 tokens, and max_decode_len = 3",
        ),
        (specdec.MinNewTokens(4), r"MinNewTokens\(4\) asks for at least 4 tokens"),
        (
            specdec.ForcedFirst(3),
            r"ForcedFirst has token 3, which is outside the vocabulary",
        ),
        (specdec.Suppressed([0, 1, 2]), "Suppressed leaves no token"),
        (specdec.Forbidden([[0], [1], [2]]), "Forbidden leaves no token"),
        (specdec.Forbidden([[5]]), "Forbidden has token 5"),
        (specdec.Automaton({0: {1: 0}}, [0]), "token 1, which ends an output: give the states"),
    ],
)
def test_what_cannot_be_for_a_target(rule, told):
    with pytest.raises(ValueError, match=told):
        rule.open(TARGET)


def test_a_model_without_eos():
    endless = dataclasses.replace(TARGET, eos_ids=())
    for rule in (specdec.AllowedSequences([[2]]), specdec.Automaton({0: {2: 0}}, [0])):
        with pytest.raises(ValueError, match="needs a model with EOS"):
            rule.open(endless)
    with pytest.raises(ValueError, match="needs a model with EOS; give it a token"):
        specdec.ForcedLast().open(endless)


def test_a_rule_is_opened_once_for_a_target():
    """The same object for the same target, and another one for another."""
    names = [(2, token) for token in range(3)]
    rule, same = specdec.AllowedSequences(names), specdec.AllowedSequences(names)
    first = opening.opened(rule, TARGET)
    assert opening.opened(rule, TARGET) is first
    assert opening.opened(same, TARGET) is not first
    other = dataclasses.replace(TARGET, eos_ids=(0,))
    assert opening.opened(rule, other) is not first
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(first))
