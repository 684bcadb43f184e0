"""What heads look at, block by block: the target's state where the newest token was drawn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import CONTEXTS
from oracle_heads import ToyHeads

from specdec.core.residuals import take_position
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import Sampled
from specdec.drafters.heads import OffsetHeadsDrafter, OffsetHeadsState
from specdec.models.toy import ToyModel
from specdec.testing.toys import dyadic_table
from specdec.topology import Topology
from specdec.types import SamplingConfig
from specdec.verifiers.recursive import RecursiveVerifier

MODEL = ToyModel(3)
ONE = SamplingConfig(1.0).traced()
PROMPT = MODEL.prompt(
    np.array([[2, 1, 0], [1, 2, 0], [2, 2, 1], [1, 0, 0]]), np.array([2, 2, 3, 1])
)
TARGET, DRAFT = (jnp.asarray(dyadic_table(CONTEXTS, 3, seed)) for seed in (0, 1))
LIMIT = 24
SHAPES = {"chain": Topology.chain(3), "tree": Topology.branching((2, 2, 1))}


def wrong_blocks(drafter):
    """Blocks after which a row's state is another one than the text's, and how rows ended them."""
    engine = Engine(MODEL, drafter, RecursiveVerifier())
    params, wrong, seen = EngineParams(TARGET, ONE, Sampled(DRAFT, ONE)), 0, set()
    step = jax.jit(engine.step)
    for seed in range(6):
        state = engine.start(
            params, PROMPT, jnp.arange(4), LIMIT, seed,
            output_bucket=LIMIT,
        )  # fmt: skip
        while not np.all(state.finished):
            before = state
            state, info = step(params, state)
            hidden = state.drafter_state.hidden[:, 0]
            expected = where_drawn(state.tokens, state.num_tokens)
            for row in range(4):
                if before.finished[row]:  # Stands still.
                    wrong += int(hidden[row] != before.drafter_state.hidden[row, 0])
                    seen.add("finished")
                    continue
                if state.finished[row]:  # Its guesses behind EOS are dropped; nobody asks again.
                    continue
                seen.add(int(info.num_accepted[row]))
                wrong += int(hidden[row] != expected[row])
    return wrong, seen


@jax.jit
def where_drawn(tokens, num_tokens):
    """The target's hidden state where each row's newest token was drawn, from its text alone."""
    start = MODEL.start(TARGET, PROMPT, LIMIT)
    fed = jnp.concatenate([start.last_token[:, None], tokens[:, : LIMIT - 1]], axis=1)
    hidden, _ = MODEL.extend(TARGET, start.encoded, start.cache, fed)
    return take_position(hidden, num_tokens - 1)[:, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_is_that_of_the_text(shape):
    wrong, seen = wrong_blocks(OffsetHeadsDrafter(ToyHeads(), SHAPES[shape]))
    assert wrong == 0
    assert {0, 1, 2, 3, "finished"} <= seen


class LastNode(OffsetHeadsDrafter):
    """After a partly accepted block, the state of a node that was not accepted."""

    def observe(self, state, verdict, hidden):
        return super().observe(state, dataclasses.replace(verdict, path=verdict.path + 1), hidden)


class Root(OffsetHeadsDrafter):
    """After a fully accepted block, the state of the token before the draft."""

    def observe(self, state, verdict, hidden):
        whole = verdict.num_accepted == self.topology.depth
        path = jnp.where(whole[:, None], 0, verdict.path)
        return super().observe(state, dataclasses.replace(verdict, path=path), hidden)


class GoesOn(OffsetHeadsDrafter):
    """A finished row goes on observing."""

    def observe(self, state, verdict, hidden):
        node = take_position(verdict.path, verdict.num_accepted)
        return OffsetHeadsState(take_position(hidden, node))


@pytest.mark.parametrize("broken", [LastNode, Root, GoesOn])
@pytest.mark.parametrize("shape", SHAPES)
def test_broken_states_are_caught(broken, shape):
    wrong, _ = wrong_blocks(broken(ToyHeads(), SHAPES[shape]))
    assert wrong > 0


def test_more_guesses_than_heads_are_refused():
    with pytest.raises(ValueError, match=r"has 3 heads, .* 4 were asked for"):
        OffsetHeadsDrafter(ToyHeads(), Topology.chain(4))
