"""Verifiers on the same blocks, against whole decodes by each of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import prompt_of

from specdec.core.topology import Topology
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.base import LoadedModel
from specdec.models.toy import ToyModel
from specdec.studies.measure.same_blocks import compared, decode_and_compare, emitted
from specdec.types import SamplingConfig, Verdict
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier
from tests.measure.test_alpha import LENGTH, V, table

TOY = ToyModel(V, eos_ids=())
BOTH = RecursiveVerifier(), TraversalVerifier()
ROWS = 3000


@functools.cache
def found(followed):
    """Of the place of the verifier that is followed: (blocks, tokens by both), and its decode."""
    sampling = SamplingConfig().traced()
    params = EngineParams(table(0), sampling, DraftParams(table(1), sampling))
    prompt = prompt_of(TOY, np.ones((ROWS, 1), np.int32))
    batch = Batch(prompt, np.arange(ROWS))
    target = LoadedModel(TOY, params.target, "toy")
    drafter = ModelTreeDrafter(TOY, Topology.branching((2, 2)))
    decoder = BatchDecoder(Engine(TOY, drafter, BOTH[followed]), params, target, LENGTH, 0)
    parts = decode_and_compare(
        decoder.engine, *decoder.arguments(batch), verifiers=BOTH,
        output_bucket=decoder.output_bucket,
    )  # fmt: skip
    return jax.tree.map(np.asarray, parts), decoder.decode(batch)


@pytest.mark.parametrize("followed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_means_are_those_of_decodes(followed):
    """Within 5 standard errors over 3,000 rows: 6e-7 of false alarm, for each of two."""
    (blocks, tokens), result = found(followed)
    np.testing.assert_array_equal(blocks, result.stats.target_calls)
    # Tokens beyond the limit are counted as well.
    error = tokens[:, followed] - result.num_tokens - result.stats.dropped
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(ROWS)
    assert error.std() > 0


def test_nothing_counts_behind_an_end():
    nothing = jnp.zeros((3, 3), jnp.int32)
    tokens = jnp.asarray([[4, 1, 5], [4, 5, 6], [1, 4, 5]])
    given = jnp.asarray([3, 2, 3])
    verdict = Verdict(tokens, given, given - 1, nothing, nothing * 1.0, given)
    np.testing.assert_array_equal(emitted(verdict, (1,)), [2, 2, 1])


def test_traversal_keeps_more():
    blocks_and_tokens, _ = found(0)
    measured = compared([blocks_and_tokens], ("recursive", "traversal"))
    assert measured["traversal"] - measured["recursive"] == pytest.approx(measured["difference"])
    assert 0 < measured["interval"][0] < measured["difference"] < measured["interval"][1]
    assert measured["num_blocks"] == blocks_and_tokens[0].sum()
