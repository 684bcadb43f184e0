"""What drafts on hidden states guess from is what their training computes, prompts included.

Training sees a prompt and its output as one text. A draft that began without the prompt would be
lossless all the same, so tokens cannot show it: the distributions of guesses do.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import EVERY, random_params

from specdec.checkpoints import architectures
from specdec.checkpoints.heads import init_params
from specdec.core.randomness import BlockRandom
from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.drafters.look_ahead import LookAheadDrafter
from specdec.models.base import forced
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.model import EagleModel, EagleParams
from specdec.models.heads.config import HeadsConfig
from specdec.models.heads.model import HeadsParams, TargetHeads
from specdec.models.heads.network import HeadsNetwork
from specdec.models.look_ahead.model import LookAheadConfig, LookAheadModel, LookAheadParams
from specdec.training import teacher_forcing
from specdec.training.heads import _after, look_ahead, steps_ahead
from specdec.types import SamplingConfig

ONE = SamplingConfig(1.0).traced()
LIMIT = 7
# Of each row: what an encoder reads, and the decoder's first tokens.
INPUTS = [[5, 6, 7, 1], [9, 1], [4, 4, 8, 3, 1]]
PREFIXES = [[3, 11, 4, 7, 2], [6], [8, 5, 9]]


def padded(rows):
    lengths = np.array([len(row) for row in rows])
    return np.array([[*row, *[0] * (max(lengths) - len(row))] for row in rows]), lengths


def target_of(name):
    """A model, its parameters, and prompts with prefixes of several lengths."""
    config = EVERY[name]
    params = random_params(config, 3)
    model = architectures.decode_model(config, "in_out")
    if model.reads_prefix:
        prompt = model.prompt(*padded(PREFIXES))
    else:
        prompt = forced(model.prompt(*padded(INPUTS)), *padded(PREFIXES))
    return model, model.pack(params), prompt


def drafter_of(kind, model, packed):
    """A drafter with random parameters, and (tokens, hidden, encoded) -> states of the guesses."""
    width = model.config.d_model
    if kind == "medusa":
        config = HeadsConfig("medusa", 2, width)
        weights = init_params(config, jax.random.key(1))
        heads = TargetHeads(model, config)

        def states(fed, encoded, hidden):
            made = HeadsNetwork(config).apply({"params": weights}, _after(hidden))
            return [made[:, -1:, 0], made[:, -1:, 1]]

        return OffsetHeadsDrafter(heads, Topology.chain(2)), HeadsParams(weights, packed), states
    if kind == "eagle":
        encoding = model.config.encoder_width
        config = EagleConfig(width, 8, 2, 4, 16, not model.reads_prefix, encoding)
        layer = EagleModel(model, config)
        own = EagleParams(layer.pack(init_params(config, jax.random.key(1))), packed)

        def states(fed, encoded, hidden):
            return [next(steps_ahead(layer, own, encoded, fed, hidden, 1))[:, -1:]]

        return EagleDrafter(layer, Topology.chain(2)), own, states
    config = LookAheadConfig(1, width)
    weights = init_params(config, jax.random.key(1))["embeddings"] * 30
    ahead, own = LookAheadModel(model, config), LookAheadParams(weights, packed)

    def states(fed, encoded, hidden):
        return [hidden[:, -1:], look_ahead(model, own, encoded, fed)[:, -1:, 0]]

    return LookAheadDrafter(ahead, Topology.chain(2)), own, states


def trained_distributions(model, packed, states, inputs, text):
    """By the functions of training: q of the guesses that follow a text of the decoder."""
    if model.reads_prefix:
        pair = jnp.asarray([text]), jnp.asarray([text])
    else:  # The decoder reads targets behind its start token.
        pair = jnp.asarray([inputs]), jnp.asarray([[*text[1:], 2]])
    fed, encoded, hidden = teacher_forcing.states_along(model, packed, *pair)
    assert fed.tolist() == [list(text)]
    found = [model.logits(packed, each) for each in states(fed, encoded, hidden)]
    return [jax.nn.softmax(each[0, 0]) for each in found]


@pytest.mark.parametrize(
    ("target", "kind"),
    [("gpt", "eagle"), ("v1.1", "eagle"), ("gpt", "medusa"), ("v1.1", "look-ahead")],
)
def test_guesses_are_drawn_from_what_training_computes(target, kind):
    model, packed, prompt = target_of(target)
    drafter, own, states = drafter_of(kind, model, packed)
    engine = Engine(model, drafter)
    params = EngineParams(packed, ONE, DraftParams(own, ONE))
    state = engine.start(params, prompt, np.arange(3), LIMIT, 5, output_bucket=8)
    step = jax.jit(engine.step)

    @jax.jit
    def propose(params, state):
        random = BlockRandom.of(state.row_keys, state.block)
        return drafter.propose(params.drafter, state.drafter_state, random, ())[0]

    for _ in range(2):  # Behind the prompt, and behind a block.
        assert not np.all(state.finished)
        draft = propose(params, state)
        for row in range(3):
            if state.finished[row]:
                continue
            start = [] if model.reads_prefix else [model.config.start_id]
            emitted = state.tokens[row, : state.num_tokens[row]].tolist()
            text = [*start, *PREFIXES[row], *emitted]
            for guess, q in enumerate(
                trained_distributions(model, packed, states, INPUTS[row], text)
            ):
                np.testing.assert_allclose(draft.probs[row, guess], q, atol=3e-5)
        state, _ = step(params, state)
