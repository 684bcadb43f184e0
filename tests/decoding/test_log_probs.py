"""Log-probabilities of what is emitted agree with the network's own, given the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, TINY_GPT, logits_along, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.decoding.build import open_rules
from specdec.rules import base
from specdec.testing.toys import reference_distribution

CLOSE = dict(rtol=1e-5, atol=1e-5)  # float32, in calls of other shapes.
RULES = (specdec.RepetitionPenalty(1.4), specdec.NoRepeatNgram(2), specdec.MinNewTokens(6))
WARM = specdec.SamplingConfig(0.8, 12, 0.95)
TEXTS = [[5, 9, 3, 1], [7, 1], [4, 4, 12, 13, 8, 1]]
WAYS = {
    "plain": {"method": "autoregressive"},
    "chain": {"gamma": 3, "batch_size": 3},
    "tree": {"tree": (2, 2)},
    "best-first": {"tree": specdec.Tree(nodes=5, depth=2, siblings=2), "batch_size": 2},
    "beams": {"method": "beam", "beam": specdec.BeamConfig(3), "batch_size": 2},
    "speculative beams": {
        "method": "speculative_beam", "beam": specdec.BeamConfig(2), "gamma": 2, "draft_beams": 4,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    for name, seed in (("target", 0), ("draft", 1)):
        config = TINY["v1.1"]
        # As they are, one rounding of the weights changes log p by 4e-5; smaller ones are calmer.
        calmer = jax.tree.map(lambda leaf: 0.7 * leaf, random_params(config, seed))
        save_huggingface(root / "t5" / name, config, jax.device_get(calmer))
        config = TINY_GPT["gpt_untied"]
        params = jax.device_get(random_params(config, seed))
        save_huggingface(root / "gpt" / name, config, params)
    return {
        kind: specdec.load_pair(target=root / kind / "target", draft=root / kind / "draft")
        for kind in ("t5", "gpt")
    }


def logits_of(pair, text, tokens):
    """The target's, where each of its tokens was drawn; [T, V]."""
    model = pair.target.model
    ids = text[:-1] if model.reads_prefix else text
    prompt = model.prompt(np.array([ids]), np.array([len(ids)]))
    read = [*np.asarray(prompt.last_token), *tokens[:-1]]
    return logits_along(model, pair.target.params, prompt, jnp.asarray([read]))[0]


def rules_on(pair, text, tokens, logits):
    """What the rules make of these logits, one after the other."""
    model = pair.target.model
    ids = text[:-1] if model.reads_prefix else text
    prompt = model.prompt(np.array([ids]), np.array([len(ids)]))
    rules = open_rules(pair.target, specdec.Decoding(rules=RULES))
    states, found = base.start(rules, prompt, 64, 64), []
    for token, row in zip(tokens, logits, strict=True):
        found.append(base.allowed(rules, states, row[None])[0])
        states = base.advanced(rules, states, jnp.asarray([token]))
    return jnp.stack(found)


@pytest.mark.parametrize(
    ("kind", "way", "warm"),
    [
        *(("t5", way, warm) for way in WAYS for warm in (False, True)
          if not (warm and "beam" in WAYS[way])),
        ("gpt", "chain", True),
    ],
)  # fmt: skip
def test_they_are_the_networks(pairs, kind, way, warm):
    pair, options = pairs[kind], WAYS[way]
    searches = "beam" in options
    texts = [each[:-1] for each in TEXTS] if kind == "gpt" else TEXTS
    if warm:
        options = options | {"sampling": WARM}
    out = pair.generate(texts, max_decode_len=14, rules=RULES, log_probs=True, **options)
    assert out.alternatives is None
    for i, text in enumerate(TEXTS):
        tokens = out.tokens[i]
        logits = logits_of(pair, text, tokens)
        plain = jax.nn.log_softmax(logits)
        at = np.arange(len(tokens)), tokens
        np.testing.assert_allclose(out.log_probs[i], plain[at], **CLOSE)
        ruled = rules_on(pair, text, tokens, plain if searches else logits)
        if searches:
            expected = ruled
        elif warm:
            probs = [reference_distribution(row, WARM) for row in np.asarray(ruled, np.float64)]
            expected = np.log(np.maximum(probs, 1e-30))
        else:
            expected = jax.nn.log_softmax(ruled)
        np.testing.assert_allclose(out.adjusted_log_probs[i], expected[at], **CLOSE)
        if searches:
            best = out.beams[i][0]
            np.testing.assert_allclose(best.adjusted_log_probs.sum(), best.log_prob, rtol=1e-5)


def test_alternatives(pairs):
    out = pairs["t5"].generate(TEXTS, gamma=2, max_decode_len=9, top_log_probs=3, batch_size=3)
    for i, text in enumerate(TEXTS):
        tokens, found = out.alternatives[i]
        plain = np.asarray(jax.nn.log_softmax(logits_of(pairs["t5"], text, out.tokens[i])))
        np.testing.assert_array_equal(tokens, np.argsort(-plain, axis=1, kind="stable")[:, :3])
        np.testing.assert_allclose(found, -np.sort(-plain, axis=1)[:, :3], **CLOSE)
        np.testing.assert_allclose(found[:, 0], out.log_probs[i], **CLOSE)  # Greedy.


def test_nothing_is_kept_unless_asked(pairs):
    out = pairs["t5"].generate(TEXTS, gamma=2, max_decode_len=9)
    assert out.log_probs is out.adjusted_log_probs is out.alternatives is None
