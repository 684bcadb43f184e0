"""A perfect draft, the target's twin, is always accepted: its state is that of the whole text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.toy import ToyModel
from specdec.types import SamplingConfig
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier

DEPTH, LIMIT, VOCABULARY = 3, 18, 6
MODELS = {
    "encoder-decoder": ToyModel(VOCABULARY, eos_ids=()),
    "decoder-only": ToyModel(VOCABULARY, eos_ids=(), reads_prefix=True),
}
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(29, VOCABULARY)), jnp.float32)
SAMPLED, GREEDY = SamplingConfig(1.0), SamplingConfig(0.0)
TREE = Topology.branching((2, 1, 1))
INNER = CopyingDrafter(Topology.chain(2), max_match=2)


def prompt_of(model):
    """Rows of 1, 3, 5 and 2 tokens."""
    tokens = np.random.default_rng(1).integers(2, VOCABULARY, (4, 5)).astype(np.int32)
    return model.prompt(tokens, np.array([1, 3, 5, 2], np.int32))


class WithoutPrompt(ModelDrafter):
    """Begins with the prompt's last token alone, as heads once did."""

    def init(self, params, prompt, max_len, target):
        last = np.asarray(prompt.last_token)[:, None]
        ones = np.ones(len(last), np.int32)
        alone = dataclasses.replace(prompt, prefix=last, prefix_lengths=ones)
        return super().init(params, alone, max_len, target)


class Forgetful(ModelDrafter):
    """Never feeds the last guess of a fully accepted block."""

    def observe(self, state, verdict, states):
        after = super().observe(state, verdict, states)
        newest = jnp.take_along_axis(after.pending.tokens, after.pending.count[:, None] - 1, axis=1)
        pending = dataclasses.replace(
            after.pending, tokens=jnp.tile(newest, (1, 2)), count=jnp.ones_like(after.pending.count)
        )
        return dataclasses.replace(after, pending=pending)


def rejected(model, drafter, sampling, verifier=None):
    """Guesses that were examined and not accepted, over the decode of all rows."""
    # Greedily each token is nearly certain, so that the likeliest nodes are those of one path.
    weights = 30 * WEIGHTS if sampling == GREEDY else WEIGHTS
    sampling = sampling.traced()
    own = DraftParams(weights, sampling)
    engine = Engine(model, drafter, verifier or TokenVerifier())
    params = EngineParams(
        weights, sampling, (own, ()) if isinstance(drafter, HierarchicalDrafter) else own
    )
    step = jax.jit(engine.step)
    state = engine.start(params, prompt_of(model), np.arange(4), LIMIT, 7, output_bucket=LIMIT)
    missed = blocks = 0
    while not state.finished.all():
        active, before = ~state.finished, state.num_tokens
        state, info = step(params, state)
        possible = jnp.minimum(engine.depth, LIMIT - before)  # The limit may cut a block.
        missed += int(jnp.sum(jnp.where(active, possible - info.num_accepted, 0)))
        blocks += int(jnp.sum(active))
    assert blocks >= 4 * LIMIT / (engine.depth + 1)
    return missed


WAYS = {
    "chain": (lambda m: ModelDrafter(m, DEPTH), SAMPLED, None),
    "chain, greedy": (lambda m: ModelDrafter(m, DEPTH), GREEDY, None),
    "tree": (lambda m: ModelTreeDrafter(m, TREE), SAMPLED, RecursiveVerifier()),
    "independent siblings": (
        lambda m: ModelTreeDrafter(m, TREE, True), SAMPLED, RecursiveVerifier()
    ),
    "best-first, greedy": (
        lambda m: BestFirstDrafter(m, 6, DEPTH, 2), GREEDY, RecursiveVerifier()
    ),
    "hierarchy": (lambda m: HierarchicalDrafter(m, INNER, DEPTH), SAMPLED, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "way"),
    [*(("decoder-only", way) for way in WAYS), ("encoder-decoder", "chain"),
     ("encoder-decoder", "tree")],
)  # fmt: skip
def test_a_perfect_draft_is_always_accepted(name, way):
    make, sampling, verifier = WAYS[way]
    assert rejected(MODELS[name], make(MODELS[name]), sampling, verifier) == 0


@pytest.mark.parametrize("broken", [WithoutPrompt, Forgetful])
def test_a_draft_of_another_text_is_caught(broken):
    model = MODELS["decoder-only"]
    assert rejected(model, broken(model, DEPTH), SAMPLED) > 0
