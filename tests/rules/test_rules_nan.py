"""NaN and +inf that rules make are told with the rules' names; the weights are not blamed."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core.pytrees import pytree
from specdec.drafters.model import model_draft
from specdec.rules import base

LENGTH = 8
V = TINY["v1.1"].vocab_size
WARM = {"sampling": specdec.SamplingConfig(1.0)}
WAYS = {
    "plain": {"method": "autoregressive"},
    "chain": {"gamma": 3},
    "chain sampled": {"gamma": 3, **WARM},
    "tree sampled": {"tree": (2, 2), **WARM},
    "draft without rules": {"gamma": 3, "draft_follows_rules": False, **WARM},
    "beams": {"method": "beam", "beam": specdec.BeamConfig(2)},
    "speculative beams": {
        "method": "speculative_beam", "beam": specdec.BeamConfig(2), "gamma": 2, "draft_beams": 4,
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class After:
    """Makes the logit of one token ``value`` behind ``count`` tokens, or behind a token."""

    count: int
    value: float
    behind: int = -1

    def open(self, target):  # Its numbers are traced: all share a program.
        return Opened(np.int32(self.count), np.float32(self.value), np.int32(self.behind))


@pytree
class Opened:
    count: Any
    value: Any
    behind: Any

    def init(self, row):
        return 0, False

    def allow(self, state, logits):
        seen, met = state
        here = jnp.where(self.behind >= 0, met, seen == self.count)
        # Never EOS, and never the token behind which it breaks.
        kept = (jnp.arange(V) != 1) & (jnp.arange(V) != self.behind)
        broken = jnp.where(jnp.arange(V) == 3, self.value, logits)
        return jnp.where(here, broken, jnp.where(kept, logits, -jnp.inf))

    def advance(self, state, token):
        return state[0] + 1, token == self.behind


def model(seed, *, broken=False):
    params = random_params(TINY["v1.1"], seed)
    if broken:
        embedding = params["token_embedder"]["embedding"]
        params["token_embedder"]["embedding"] = embedding.at[17].set(jnp.nan)
    return load_packed(TINY["v1.1"], params, "random")


@pytest.fixture(scope="module")
def pair():
    return Pair(model(0), model_draft(model(1)), None)


def generate(pair, rules, way, **options):
    given = {"max_decode_len": LENGTH, "batch_size": 2, "rules": rules} | WAYS[way] | options
    return pair.generate([[5, 6, 7, 1], [17, 9, 1]], **given)


LEAST = specdec.MinNewTokens(2)


@pytest.mark.parametrize("way", WAYS)
def test_the_rules_are_named(pair, way):
    told = r"Row 0: rules made NaN or \+inf of the model's logits within the first \d tokens: Min"
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=told) as caught:
            generate(pair, (LEAST, After(4, value)), way)
        assert f"MinNewTokens(count=2), After(count=4, value={value}" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_what_no_output_follows_does_no_harm(pair, way):
    """Behind the limit, and behind a guess that the rules do not allow."""
    for where in ({"count": LENGTH}, {"count": 0, "behind": 7}):
        found, expected = (
            generate(pair, (LEAST, After(value=value, **where)), way).tokens
            for value in (np.nan, 0.0)
        )
        assert str(found) == str(expected)


@dataclasses.dataclass(frozen=True)
class Only(specdec.OwnRule):
    """Token 5 follows itself, and NaN what is not allowed."""

    def init(self, row):
        return True

    def allow(self, state, logits):
        return jnp.where(state, jnp.where(jnp.arange(V) == 5, logits, -jnp.inf), jnp.nan)

    def advance(self, state, token):
        return token == 5


def test_a_hypothesis_that_is_dead_does_no_harm(pair):
    assert [list(each) for each in generate(pair, (Only(),), "beams").tokens] == [[5] * LENGTH] * 2


@pytest.mark.parametrize("size", [V, 4])
def test_what_logits_had_before_is_not_the_rules(size):
    """NaN and +inf of the model's own."""
    own = np.zeros((3, size), np.float32)
    own[1, 2], own[2, 0] = np.nan, np.inf
    found, nothing, broken = base.adjusted((), (), jnp.asarray(own))
    np.testing.assert_array_equal(found, own)
    assert not nothing.any()
    assert not broken.any()
    largest = jnp.array([np.nan, np.nan, np.inf])
    assert base.unsound(largest, jnp.asarray(own)).tolist() == [True, False, False]


@pytest.mark.parametrize("way", ["plain", "speculative beams"])
def test_the_weights_are_blamed_for_their_own(way):
    """NaN goes through rules."""
    pair = Pair(model(0, broken=True), model_draft(model(1)), None)
    with pytest.raises(ValueError, match=r"Row 1: the logits of random.* became NaN"):
        generate(pair, (specdec.RepetitionPenalty(1.1),), way)


@pytest.mark.parametrize("way", ["chain sampled", "speculative beams"])
def test_the_draft_is_blamed_for_its_own(way):
    pair = Pair(model(0), model_draft(model(1, broken=True)), None)
    with pytest.raises(ValueError, match=r"Row 1: the logits of random.* its draft became NaN"):
        generate(pair, (specdec.RepetitionPenalty(1.1),), way)
