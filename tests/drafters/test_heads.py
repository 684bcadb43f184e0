"""What drafts on hidden states look at, block by block: the target's where tokens were drawn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import CONTEXTS
from oracle_heads import ToyHeads, ToyLayer, ToyLookAhead, numbers_of

from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.drafters.look_ahead import LookAheadDrafter
from specdec.drafters.merged import MergedDrafter
from specdec.drafters.pending import PendingState
from specdec.models.toy import ToyCache, ToyModel
from specdec.testing.toys import dyadic_table
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


def blocks_of(drafter):
    """Decoding of twelve seeds, block by block: (state before, state after, its BlockInfo)."""
    engine = Engine(MODEL, drafter, RecursiveVerifier())
    own = DraftParams(DRAFT, ONE)
    own = (own, ()) if isinstance(drafter, MergedDrafter) else own
    params = EngineParams(TARGET, ONE, own)
    step = jax.jit(engine.step)
    for seed in range(12):
        after = engine.start(params, PROMPT, jnp.arange(4), LIMIT, seed, output_bucket=LIMIT)
        while not np.all(after.finished):
            before = after
            after, info = step(params, before)
            yield before, after, info


def wrong_blocks(drafter):
    """Blocks after which a row's state is another one than the text's, and how rows ended them."""
    wrong, seen = 0, set()
    for before, after, info in blocks_of(drafter):
        old, found = before.drafter_state, after.drafter_state
        if isinstance(found, tuple):  # Of drafts at once, the first.
            old, found = old[0], found[0]
        expected = states_of(after.tokens)
        for row in range(4):
            if before.finished[row]:  # Stands still.
                wrong += moved(old, found, row)
                seen.add("finished")
            elif not after.finished[row]:  # Its guesses behind EOS are dropped; nobody asks again.
                seen.add(int(info.num_accepted[row]))
                count = int(after.num_tokens[row])
                wrong += not holds(found, row, count, after.tokens[row], expected[row])
    return wrong, seen


def moved(before, after, row):
    """Whether anything of a row but dead cache entries changed."""
    before, after = (
        [x.length if isinstance(x, ToyCache) else x for x in jax.tree.leaves(
            state, is_leaf=lambda x: isinstance(x, ToyCache)
        )]
        for state in (before, after)
    )  # fmt: skip
    return any(np.any(a[row] != b[row]) for a, b in zip(before, after, strict=True))


def holds(found, row, count, tokens, expected):
    """Whether a row's state is that of its ``count`` tokens and of the states they came from."""
    if not isinstance(found, PendingState):  # Heads have the newest state alone.
        return bool(found[row] == expected[count - 1])
    # The start token, for which there is no state, and what was emitted.
    text = np.concatenate([[0], tokens[:count]])
    states = np.concatenate([[[0]], expected[:count]])
    waiting = int(found.pending.count[row])
    kept = count + 1 - waiting
    cached = text[:kept]
    if found.pending.states is not None:
        cached = numbers_of(cached, states[:kept])
        if not np.array_equal(found.pending.states[row, :waiting], states[kept:]):
            return False
    return (
        int(found.cache.length[row]) == kept
        and np.array_equal(found.pending.tokens[row, :waiting], text[kept:])
        and np.array_equal(found.cache.tokens[row, :kept], cached)
    )


@jax.jit
def states_of(tokens):
    """The target's hidden states from which tokens were drawn, from their text alone."""
    start = MODEL.start(TARGET, PROMPT, LIMIT)
    fed = jnp.concatenate([start.last_token[:, None], tokens[:, : LIMIT - 1]], axis=1)
    return MODEL.extend(TARGET, start.encoded, start.cache, fed)[0]


DRAFTS = {"heads": OffsetHeadsDrafter, "eagle": EagleDrafter, "look-ahead": LookAheadDrafter}
TOYS = {"heads": ToyHeads(), "eagle": ToyLayer(), "look-ahead": ToyLookAhead()}


@pytest.mark.parametrize(
    ("shape", "draft"), [("chain", "look-ahead"), ("tree", "heads"), ("tree", "eagle")]
)
def test_the_states_are_those_of_the_text(shape, draft):
    wrong, seen = wrong_blocks(DRAFTS[draft](TOYS[draft], SHAPES[shape]))
    assert wrong == 0
    assert {0, 1, 2, 3, "finished"} <= seen


def test_the_states_are_those_of_the_text_beside_another_draft():
    """What the other draft guessed was drawn from the target's states all the same."""
    copying = CopyingDrafter(Topology.branching((2, 1, 1)), max_match=2, catch_up=4)
    wrong, seen = wrong_blocks(
        MergedDrafter((EagleDrafter(ToyLayer(), SHAPES["tree"]), copying), 3)
    )
    assert wrong == 0
    assert "finished" in seen


def test_the_first_guess_of_look_ahead_is_the_targets_own():
    """With logits of the whole vocabulary it is always accepted."""
    drafter = LookAheadDrafter(ToyLookAhead(), SHAPES["chain"])
    engine = Engine(MODEL, drafter, RecursiveVerifier())
    params = EngineParams(TARGET, ONE, DraftParams(TARGET, ONE))
    state = engine.start(params, PROMPT, jnp.arange(4), LIMIT, 0, output_bucket=LIMIT)
    for _ in range(5):
        active = ~np.asarray(state.finished)
        state, info = engine.step(params, state)
        assert np.all(info.num_accepted[active] > 0)


def of_another_node(draft):
    """The states of a path that was not the accepted one."""

    class Broken(DRAFTS[draft]):
        def observe(self, state, verdict, states):
            return super().observe(state, verdict, jnp.roll(states, 1, axis=1))

    return Broken(TOYS[draft], SHAPES["tree"])


def root_if_all(draft):
    """After a fully accepted block, the state of the token before the draft."""

    class Broken(DRAFTS[draft]):
        def observe(self, state, verdict, states):
            whole = (verdict.num_accepted == self.topology.depth)[:, None, None]
            return super().observe(state, verdict, jnp.where(whole, states[:, :1], states))

    return Broken(TOYS[draft], SHAPES["chain"])


def going_on(draft):
    """A finished row goes on observing."""

    class Broken(DRAFTS[draft]):
        def observe(self, state, verdict, states):
            emitted = jnp.maximum(verdict.num_emitted, 1)
            return super().observe(state, dataclasses.replace(verdict, num_emitted=emitted), states)

    return Broken(TOYS[draft], SHAPES["chain"])


@pytest.mark.parametrize(
    ("broken", "draft"),
    [
        (of_another_node, "eagle"), (root_if_all, "heads"), (going_on, "look-ahead"),
    ],
)  # fmt: skip
def test_broken_states_are_caught(broken, draft):
    wrong, _ = wrong_blocks(broken(draft))
    assert wrong > 0


class StaleEntries(LookAheadDrafter):
    """Leaves the embeddings' entries in the cache."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        more = jnp.full_like(state.pending.count, self.model.count)
        stale = self.model.commit(after.cache, None, more)
        return draft, dataclasses.replace(after, cache=stale)


def test_stale_look_ahead_entries_are_caught():
    wrong, _ = wrong_blocks(StaleEntries(ToyLookAhead(), SHAPES["chain"]))
    assert wrong > 0


class StaleStates(EagleDrafter):
    """Replaces the first state only; the others stay those of the block before."""

    def observe(self, state, verdict, states):
        late = jnp.arange(states.shape[1])[:, None] > 0
        stale = jnp.where(late, state.pending.states, states)
        return super().observe(state, verdict, stale)


def test_states_that_are_not_replaced_are_caught():
    wrong, _ = wrong_blocks(StaleStates(ToyLayer(), SHAPES["chain"]))
    assert wrong > 0


def test_more_guesses_than_embeddings_are_refused():
    with pytest.raises(ValueError, match=r"2 look-ahead embeddings, so at most 3 .* 4 were asked"):
        LookAheadDrafter(ToyLookAhead(), Topology.chain(4))


def test_more_guesses_than_heads_are_refused():
    with pytest.raises(ValueError, match=r"has 3 heads, .* 4 were asked for"):
        OffsetHeadsDrafter(ToyHeads(), Topology.chain(4))
