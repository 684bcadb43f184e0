"""Rules that users write: what they may give, and one error for each kind of mistake."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.drafters.model import model_draft
from specdec.rules import base, opening
from specdec.rules.base import RowStart, RuleTarget
from specdec.types import Prompt

V = TINY["v1.1"].vocab_size
TARGET = RuleTarget(V, (1,), False, 8)
WAYS = {
    "plain": {"method": "autoregressive"},
    "chain": {"gamma": 2},
    "tree": {"tree": (2, 1)},
    "beams": {"method": "beam"},
    "speculative beams": {"method": "speculative_beam", "gamma": 2},
}


def count(rule, row):
    return jnp.int32(0)


def same(rule, state, logits):
    return logits


def on(rule, state, token):
    return state + 1


def own(init=count, allow=same, advance=on, base=specdec.OwnRule):
    """A rule of these methods."""
    methods = {"init": init, "allow": allow, "advance": advance}
    given = {name: method for name, method in methods.items() if method}
    return dataclasses.dataclass(frozen=True)(type("Mine", (base,), given))()


def fails(*_):
    raise KeyError("no such thing\nat all")


def takes_less(rule, state):
    return state


@dataclasses.dataclass
class Thawed(specdec.OwnRule):
    init, allow, advance = count, same, on


@dataclasses.dataclass(frozen=True)
class Listed(specdec.OwnRule):
    tokens: list
    init, allow, advance = count, same, on


class Foreign:
    """A rule with an ``open`` of its own."""

    def __init__(self, given):
        self.given = given

    def open(self, target):
        return self.given(target)


def unregistered(target):
    return own(base=object)


LOGITS = rf"it must give the next token's logits, a float array of shape \[{V}\]"
STATE = r"it must give a state like init's, which is "
TRACED = "use jax.numpy instead of NumPy, and jnp.where instead of if"
# Of each kind, the rule and what is told of it.
WRONG = {
    "wrong length": (
        own(allow=lambda rule, state, logits: logits[:-1]),
        rf"Mine.allow gives float32\[{V - 1}\]; {LOGITS}",
    ),
    "a mask": (own(allow=lambda rule, state, logits: logits > 0), rf"Mine.allow gives bool\[{V}\]"),
    "no logits": (own(allow=lambda rule, state, logits: None), f"Mine.allow gives None; {LOGITS}"),
    "NumPy": (
        own(allow=lambda rule, state, logits: np.where(logits > 0, logits, -np.inf)),
        f"Mine.allow fails with TracerArrayConversionError: .*{TRACED}",
    ),
    "if": (
        own(allow=lambda rule, state, logits: logits if state > 0 else -logits),
        f"Mine.allow fails with TracerBoolConversionError: .*{TRACED}",
    ),
    "a state that grows": (
        own(
            init=lambda rule, row: jnp.zeros((2,), jnp.int32),
            advance=lambda rule, state, token: jnp.append(state, token),
        ),
        rf"Mine.advance gives int32\[3\]; {STATE}int32\[2\]: the same tree, shapes and dtypes",
    ),
    "a state of more bits": (
        own(init=lambda rule, row: jnp.int8(0), advance=lambda rule, state, token: state + token),
        rf"Mine.advance gives int32\[\]; {STATE}int8\[\]",
    ),
    "a state of another tree": (
        own(init=lambda rule, row: {"n": 0}, advance=lambda rule, state, token: [token]),
        rf"Mine.advance gives \[int32\[\]\]; {STATE}\{{'n': int32\[\]\}}",
    ),
    "a tree by the prefix": (
        own(init=lambda rule, row: (0,) * len(row.prefix)), r"Mine.init gives \(int32\[\],\) for "
    ),
    "init fails": (own(init=fails), r"Mine.init fails with KeyError: 'no such thing\\nat all'"),
    "an argument too few": (
        own(advance=takes_less), "Mine.advance fails with TypeError: .* takes 2 positional"
    ),
    "no init": (own(init=None), "Mine has no method init: a rule has init"),
    "no frozen dataclass": (
        Thawed(), "Thawed must be a frozen dataclass whose fields .*: unhashable type: 'Thawed'"
    ),
    "a field that is a list": (Listed([1]), "Listed must be a frozen dataclass .*: unhashable"),
    "open fails": (Foreign(fails), "Foreign.open fails with KeyError"),
    "open gives nothing": (
        Foreign(lambda target: None), "Foreign.open gives a NoneType, which has no method init",
    ),
    "open gives no pytree": (
        Foreign(unregistered), "Foreign.open gives a Mine; it must give a pytree of arrays"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    config = TINY["v1.1"]
    target, draft = (load_packed(config, random_params(config, i), "random") for i in range(2))
    return Pair(target, model_draft(draft), None)


def generate(pair, *rules, way, **options):
    given = WAYS[way] | {"max_decode_len": 6, "rules": rules} | options
    return pair.generate([[5, 6, 7, 1], [8, 9, 1]], batch_size=2, **given)


@pytest.mark.parametrize(
    ("kind", "way"), [*((kind, "chain") for kind in WRONG), *(("a mask", way) for way in WAYS)]
)
def test_one_error_for_each_mistake(pair, kind, way):
    rule, told = WRONG[kind]
    with pytest.raises(ValueError, match=told) as caught:
        generate(pair, rule, way=way)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("method", ["init", "allow", "advance"])
def test_what_a_method_raised_is_chained(method):
    with pytest.raises(ValueError, match=f"Mine.{method} fails") as caught:
        opening.opened(own(**{method: fails}), TARGET)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ValueError, match=r"Foreign\.open fails") as caught:
        opening.opened(Foreign(fails), TARGET)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_long_message_is_cut():
    def long(*_):
        raise ValueError("x" * 5000)

    rules = own(init=long), own(init=lambda rule, row: (0,) * 5000, advance=lambda *_: [0] * 5000)
    for rule in rules:
        with pytest.raises(ValueError, match="…") as caught:
            opening.opened(rule, TARGET)
        assert len(str(caught.value)) < 500


def states_along(rule, tokens):
    """A rule's states of one row, behind each token."""
    prompt = Prompt(np.zeros((1, 1), np.int32), np.ones(1, np.int32), np.zeros((1, 1), np.int32),
                    np.ones(1, np.int32))  # fmt: skip
    states = [base.start((rule,), prompt, 8, 9)]
    for token in tokens:
        states.append(base.advanced((rule,), states[-1], jnp.array([token], jnp.int32)))
    return [state[0] for state in states]


PYTHON = {
    "a whole number": (0, lambda rule, state, token: state + 1, jnp.int32),
    "a constant": (-1, lambda rule, state, token: 5, jnp.int32),
    "a fraction": (0.0, lambda rule, state, token: 1, jnp.float32),
    "a truth value": (False, lambda rule, state, token: token == 3, jnp.bool_),
    "of NumPy": (np.zeros(2), lambda rule, state, token: np.ones(2), jnp.float32),
}


@pytest.mark.parametrize("kind", PYTHON)
def test_numbers_of_python_are_taken(kind):
    """Their dtype stays: a loop carries them."""
    first, advance, dtype = PYTHON[kind]
    rule = opening.opened(own(init=lambda rule, row: first, advance=advance), TARGET)
    states = states_along(rule, [2, 3])
    assert {state.dtype for state in states} == {jnp.dtype(dtype)}
    assert not any(state.weak_type for state in states)


def test_rules_of_python_numbers_decode(pair):
    """Carried along chains, down trees, by beams."""
    rule = own(
        init=lambda rule, row: 0,
        allow=lambda rule, state, logits: jnp.where(
            jnp.arange(V) == 2 + state % 3, logits, -jnp.inf
        ),
    )
    for way in WAYS:
        for row in generate(pair, rule, way=way).tokens:
            assert list(row) == [2, 3, 4, 2, 3, 4]


def test_logits_of_fewer_bits_are_widened():
    half = own(allow=lambda rule, state, logits: logits.astype(jnp.bfloat16))
    rule = opening.opened(half, TARGET)
    (state,) = states_along(rule, [])
    found = base.allowed((rule,), (state,), jnp.ones((1, V)))
    assert found.dtype == jnp.float32


def test_what_a_state_may_be():
    """Nothing, nested, and of the sizes of a row."""
    rules = (
        own(init=lambda rule, row: None, advance=lambda rule, state, token: None),
        own(init=lambda rule, row: (), advance=lambda rule, state, token: ()),
        own(
            init=lambda rule, row: {"seen": [jnp.zeros(row.size), row.prefix], "n": 0},
            advance=lambda rule, state, token: {**state, "n": token},
        ),
        own(
            init=lambda rule, row: jax.random.key(0),
            advance=lambda rule, state, token: jax.random.fold_in(state, token),
        ),
    )  # fmt: skip
    for rule in rules:
        opening.opened(rule, TARGET)


def test_a_rule_with_an_open_of_its_own():
    """Its arrays are traced, too, so that what fails on them inside a program fails here."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Biased:
        bias: jax.Array

        def init(self, row: RowStart):
            return ()

        def allow(self, state, logits):
            return logits + self.bias

        def advance(self, state, token):
            return state

    class Branching(Biased):
        def allow(self, state, logits):
            return logits + self.bias if self.bias[0] > 0 else logits

    jax.tree_util.register_dataclass(Branching)
    found = opening.opened(Foreign(lambda target: Biased(np.ones(target.vocab_size))), TARGET)
    assert isinstance(found.bias, jax.Array)
    with pytest.raises(ValueError, match=r"Branching\.allow fails with TracerBoolConversionError"):
        opening.opened(Foreign(lambda target: Branching(np.ones(V))), TARGET)
    with pytest.raises(ValueError, match=r"Biased.allow fails with \w+: .*shape"):
        opening.opened(Foreign(lambda target: Biased(np.ones(V + 1))), TARGET)


def test_rules_of_one_structure_are_checked_once():
    traced = []

    def counts(rule, state, logits):
        traced.append(rule)
        return logits

    mine = type(own(allow=counts))
    opening.opened(mine(), TARGET)
    assert traced
    traced.clear()
    opening.opened(mine(), TARGET)
    assert not traced
    opening.opened(mine(), dataclasses.replace(TARGET, vocab_size=V + 1))
    assert traced
