"""A small pair with a vocabulary whose outputs are short and long, for tests of sizes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from small_vocabularies import LINES, train_pieces
from tiny import changed, random_params

import specdec
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.huggingface import save_huggingface
from specdec.models.eagle.config import EagleConfig
from specdec.models.t5.config import T5Config

V, WIDTH, LIMIT = 54, 16, 32
TARGET = T5Config(
    vocab_size=V, d_model=WIDTH, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
    head_dim=8, d_ff=16,
)  # fmt: skip
DRAFT = changed(TARGET, d_model=8, head_dim=4)
SAMPLED = specdec.SamplingConfig(1.0)


def write(directory):
    """Target, draft and an EAGLE layer, with one vocabulary."""
    params = {}
    for name, config, seed in (("target", TARGET, 3), ("draft", DRAFT, 1)):
        params[name] = jax.device_get(random_params(config, seed))
        save_huggingface(directory / name, config, params[name])
        train_pieces(directory / name, LINES, V)
    eagle = EagleConfig(WIDTH, 8, 2, 4, 16, True)
    save_heads(directory / "eagle", eagle, init_params(eagle, jax.random.key(0)), params["target"])


def texts(count, seed=0):
    """Of one to twelve tokens."""
    generator = np.random.default_rng(seed)
    return [
        np.array([*generator.integers(3, V, size), 1], np.int32)
        for size in generator.integers(1, 12, count)
    ]


@dataclasses.dataclass(frozen=True)
class ThreeKinds(specdec.OwnRule):
    """The first token of an output decides how it goes on.

    A third repeats it and ends at exactly ``middle`` tokens, a third ends at ``short``, and a third
    goes on past ``long``.
    """

    short: int
    middle: int
    long: int
    size: int = V

    def init(self, row):
        del row
        return {"count": jnp.int32(0), "first": jnp.int32(-1)}

    def allow(self, state, logits):
        first, count = state["first"], state["count"]
        begun, kind, ids = first >= 0, first % 3, jnp.arange(self.size)
        ends = begun & (
            ((kind == 0) & (count >= self.middle - 1)) | ((kind == 1) & (count >= self.short - 1))
        )
        may_end = ends | (begun & (kind == 2) & (count >= self.long))
        repeats = begun & (kind == 0)
        allowed = jnp.where(ids == 1, may_end, ~ends & jnp.where(repeats, ids == first, ids > 2))
        return jnp.where(allowed, logits, -jnp.inf)

    def advance(self, state, token):
        first = jnp.where(state["first"] < 0, token, state["first"])
        return {"count": state["count"] + 1, "first": first}


def assert_alike(found, expected):
    """All that was found is what was expected; floats are close."""
    if isinstance(found, dict):
        for name, value in found.items():
            assert_alike(value, expected[name])
    elif isinstance(found, (list, tuple)) and not isinstance(expected, np.ndarray):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif (
        isinstance(found, float)
        or getattr(found, "dtype", None) == np.float32
        or (getattr(expected, "dtype", None) == np.float32)
    ):
        np.testing.assert_allclose(found, expected, atol=1e-3)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
