"""Chi-square: the joint distribution of two tokens through the real loop, on real networks.

False-alarm rate 1e-6. Power: with 15,000 rows a total-variation error of 6 % in the joint
distribution is rejected with probability above 0.99 (noncentral chi-square, checked below), and the
mutant's error is far larger.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from tiny import TINY, random_params

from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer as T5
from specdec.testing import mutants
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

ROWS, POSITIONS, V, EOS = 15_000, 2, 19, 1
FALSE_ALARM = 1e-6
SAMPLED = SamplingConfig(1.0).traced()
TEXT = (5, 9, 3, 1)


@functools.cache
def models():
    """(target, its parameters, draft, its parameters): two T5s that agree now and then."""
    found = []
    for name, seed in (("v1.1", 3), ("v1.0", 1)):
        model = TransformerModel(TINY[name])
        found += [model, model.pack(random_params(TINY[name], seed))]
    return tuple(found)


def decoded(verifier):
    """Many rows of one text."""
    target, params, draft, draft_params = models()
    tokens = np.tile(np.array(TEXT, np.int32), (ROWS, 1))
    return decode(
        Engine(target, ModelDrafter(draft, 3), verifier),
        EngineParams(params, SAMPLED, DraftParams(draft_params, SAMPLED)),
        target.prompt(tokens, np.full(ROWS, len(TEXT), np.int32)), jnp.arange(ROWS), 3, 0,
        output_bucket=16,
    )  # fmt: skip


def exact_joint():
    """The joint distribution of the first tokens, {tokens: probability}, by the network."""
    config = TINY["v1.1"]
    given = jnp.tile(jnp.array(TEXT), (V, 1)), jnp.array([[0, token] for token in range(V)])
    network, params = T5(config), random_params(config, 3)
    logits = network.apply({"params": params}, *given)[:, -POSITIONS:]
    probs = np.asarray(jax.nn.softmax(logits), np.float64)
    distribution = {(EOS,): probs[0, 0, EOS]}
    for first, second in itertools.product(range(V), range(V)):
        if first != EOS:
            distribution[first, second] = probs[0, 0, first] * probs[first, 1, second]
    return distribution


def large(distribution):
    """Cells of at least 5 expected rows; the others are pooled."""
    return [tokens for tokens, p in distribution.items() if p * ROWS >= 5]


def p_value(result, distribution):
    """Of the first tokens of all rows."""
    seen = {}
    for tokens, count in zip(np.asarray(result.tokens), np.asarray(result.num_tokens), strict=True):
        key = tuple(tokens[: min(count, POSITIONS)].tolist())
        seen[key] = seen.get(key, 0) + 1
    assert seen.keys() <= distribution.keys()
    observed = [seen.get(tokens, 0) for tokens in large(distribution)]
    expected = [distribution[tokens] * ROWS for tokens in large(distribution)]
    observed.append(ROWS - sum(observed))
    expected.append(ROWS - sum(expected))
    return stats.chisquare(observed, expected).pvalue


def test_the_loop_samples_the_networks_distribution():
    distribution, result = exact_joint(), decoded(TokenVerifier())
    examined = float(result.stats.examined.sum())
    assert 0.05 < float(result.stats.accepted.sum()) / examined < 0.95
    assert p_value(result, distribution) > FALSE_ALARM


def test_power():
    noncentrality = ROWS * (2 * 0.06) ** 2  # sum (dp)^2 / p >= (sum |dp|)^2 = (2 TV)^2.
    freedom = len(large(exact_joint()))
    threshold = stats.chi2.isf(FALSE_ALARM, freedom)
    assert freedom > 20
    assert stats.ncx2.sf(threshold, freedom, noncentrality) > 0.99


def test_a_mutant_is_caught():
    """The oracle catches them all; this is that the test above can fail."""
    assert p_value(decoded(mutants.SharedKeys()), exact_joint()) < FALSE_ALARM
