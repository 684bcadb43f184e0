"""Chi-square: the joint distribution of two tokens through the real loop, on real networks.

False-alarm rate 1e-6. Power: with 60,000 rows a total-variation error of 3 % in the joint
distribution is rejected with probability above 0.99 (noncentral chi-square, checked below).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tiny import TINY, TINY_GPT, random_params

from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer as GPT
from specdec.models.transformer.network import Transformer as T5
from specdec.testing import mutants
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

ROWS, POSITIONS, V, EOS = 60_000, 2, 19, 1
FALSE_ALARM = 1e-6
SAMPLED = SamplingConfig(1.0).traced()
# A text of a T5, one that a GPT continues, and none, which it begins.
CASES = {"t5": (5, 9, 3, 1), "gpt": (5, 9, 3, 7, 12), "gpt from nothing": ()}


@functools.cache
def models(case):
    """(target, its parameters, draft, its parameters) that agree now and then."""
    kind, configs, random = (TransformerModel, TINY, random_params)
    names = ("v1.1", "v1.0")
    if case != "t5":
        kind, configs, random = (TransformerModel, TINY_GPT, random_params)
        names = ("gpt", "gpt_untied")
    found = []
    for name, seed in zip(names, (3, 1), strict=True):
        model = kind(configs[name])
        found += [model, model.pack(random(configs[name], seed))]
    return tuple(found)


def decoded(case, verifier):
    """Many rows of one text."""
    target, params, draft, draft_params = models(case)
    text = CASES[case]
    tokens = np.tile(np.array(text, np.int32), (ROWS, 1))
    return decode(
        Engine(target, ModelDrafter(draft, 3), verifier),
        EngineParams(params, SAMPLED, DraftParams(draft_params, SAMPLED)),
        target.prompt(tokens, np.full(ROWS, len(text), np.int32)), jnp.arange(ROWS), 3, 0,
        output_bucket=16,
    )  # fmt: skip


def exact_joint(case):
    """The joint distribution of the first tokens, {tokens: probability}, by the network."""
    config, text = models(case)[0].config, CASES[case]
    if case == "t5":
        texts = jnp.tile(jnp.array(text), (V, 1))
        given = texts, jnp.array([[0, token] for token in range(V)])
        network, params = T5(config), random_params(config, 3)
    else:
        given = (jnp.array([(*(text or (config.start_id,)), token) for token in range(V)]),)
        network, params = GPT(config), random_params(config, 3)
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


each_case = pytest.mark.parametrize(
    "case", ["t5", *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != "t5")]
)


@each_case
def test_the_loop_samples_the_networks_distribution(case):
    distribution, result = exact_joint(case), decoded(case, TokenVerifier())
    examined = float(result.stats.examined.sum())
    assert 0.05 < float(result.stats.accepted.sum()) / examined < 0.95
    assert p_value(result, distribution) > FALSE_ALARM


@each_case
def test_power(case):
    noncentrality = ROWS * (2 * 0.03) ** 2  # sum (dp)^2 / p >= (sum |dp|)^2 = (2 TV)^2.
    freedom = len(large(exact_joint(case)))
    threshold = stats.chi2.isf(FALSE_ALARM, freedom)
    assert freedom > 20
    assert stats.ncx2.sf(threshold, freedom, noncentrality) > 0.99


@each_case
def test_a_mutant_is_caught(case):
    """The oracle catches them all; this is that the test above can fail."""
    assert p_value(decoded(case, mutants.SharedKeys()), exact_joint(case)) < FALSE_ALARM
