"""NaN logits are an error that names the row, and no token is made of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, random_params

from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core.standardize import has_nan, standardize
from specdec.drafters.model import model_draft
from specdec.types import SamplingConfig

BROKEN = 17  # The token whose embedding is NaN.
SAMPLINGS = {"greedy": SamplingConfig(0.0), "sampled": SamplingConfig(1.0)}


def model(seed, *, broken=False):
    params = random_params(TINY["v1.1"], seed)
    if broken:
        params["token_embedder"]["embedding"] = (
            params["token_embedder"]["embedding"].at[BROKEN].set(jnp.nan)
        )
    return load_packed(TINY["v1.1"], params, "random")


def generate(target, draft, sampling, **options):
    texts = [[5, 6, 7, 1], [8, 9, 1], [BROKEN, 6, 1]]
    pair = Pair(target, model_draft(draft), None)
    return pair.generate(texts, sampling=sampling, max_decode_len=4, batch_size=4, **options)


PLAIN, SPECULATIVE = {"method": "autoregressive"}, {"gamma": 2}


@pytest.mark.parametrize(
    ("options", "sampling"), [(PLAIN, "greedy"), (SPECULATIVE, "sampled")], ids=str
)
def test_the_row_is_named(options, sampling):
    sampling = SAMPLINGS[sampling]
    with pytest.raises(ValueError, match="Row 2: the logits of random or of its draft became NaN"):
        generate(model(0, broken=True), model(1), sampling, **options)
    assert len(generate(model(0), model(1), sampling, **options).tokens) == 3


def test_a_drafts_nan_would_change_the_distribution():
    with pytest.raises(ValueError, match=r"Row 2: .* its draft"):
        generate(model(0), model(1, broken=True), SAMPLINGS["sampled"], gamma=2)
    greedy = [
        generate(model(0), draft, SAMPLINGS["greedy"], gamma=2)
        for draft in (model(1, broken=True), model(1))
    ]
    for ours, theirs in zip(*(output.tokens for output in greedy), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(0.0), SamplingConfig(1.0), SamplingConfig(1.0, 2, 0.9)], ids=str
)
@pytest.mark.parametrize("index", [0, 3, 4])
def test_one_nan_is_enough(sampling, index):
    logits = np.zeros((1, 2, 5), np.float32)
    logits[0, 1, index] = np.nan
    found = has_nan(jnp.asarray(logits), standardize(jnp.asarray(logits), sampling.traced()))
    assert found.tolist() == [[False, True]]
