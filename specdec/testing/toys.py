"""Dyadic toy tables whose decisions fall on the oracle's grid."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np

from specdec.drafters.ngram_tables import NgramTables, make_level
from specdec.types import SamplingConfig


def dyadic_table(
    contexts: int, vocab_size: int, seed: int, *, denominator: int = 4, temperature: float = 1.0
) -> np.ndarray:
    """Random logits [C, V] whose softmax at ``temperature`` has multiples of 1/denominator.

    Some probabilities are zero (a logit of -1e9) and none is one.
    """
    choices = np.array(list(itertools.product(range(denominator), repeat=vocab_size)))
    choices = choices[choices.sum(axis=1) == denominator]
    numerators = choices[np.random.default_rng(seed).integers(len(choices), size=contexts)]
    with np.errstate(divide="ignore"):
        logits = np.log(numerators / denominator) * temperature
    return np.maximum(logits, -1e9).astype(np.float32)


def tailed_table(contexts: int, vocab_size: int, seed: int, temperature: float) -> np.ndarray:
    """Logits [C, V] with one unlikely token each, which top-k = V - 1 or top-p = 0.9 removes.

    Without it the others have probabilities 2/4, 1/4, 1/4 in some order (V = 4).
    """
    base = np.log(np.array([8, 4, 4, 1]) / 17)[:vocab_size] * temperature
    return _permuted(base, contexts, seed)


def reference_distribution(logits: np.ndarray, sampling: SamplingConfig) -> np.ndarray:
    """Standardize for one context in float64 NumPy, written independently of ``core``."""
    if sampling.temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    probs = np.exp((logits - logits.max()) / sampling.temperature)
    probs /= probs.sum()
    if sampling.top_k:
        cut = sorted(probs)[-min(sampling.top_k, len(probs))]
        probs = np.where(probs >= cut * (1 - 1e-6), probs, 0)
        probs /= probs.sum()
    if sampling.top_p < 1:
        order = np.argsort(-probs, kind="stable")
        before = np.concatenate([[0], np.cumsum(probs[order])[:-1]])
        cut = probs[order][before < sampling.top_p].min()
        probs = np.where(probs >= cut * (1 - 1e-6), probs, 0)
        probs /= probs.sum()
    if sampling.min_p:
        probs = np.where(probs >= sampling.min_p * probs.max() * (1 - 1e-6), probs, 0)
        probs /= probs.sum()
    if sampling.typical_p < 1:
        surprise = -np.log(np.maximum(probs, 1e-300))
        distance = np.where(probs > 0, np.abs(surprise - probs @ surprise), np.inf)
        order = np.argsort(distance, kind="stable")
        before = np.concatenate([[0], np.cumsum(probs[order])[:-1]])
        cut = distance[order][before < sampling.typical_p].max()
        probs = np.where(distance <= cut + 1e-6, probs, 0)
        probs /= probs.sum()
    return probs


def quarters_table(contexts: int, seed: int) -> np.ndarray:
    """Logits [C, 3] of probabilities 1/2, 1/4 and 1/4 in some order.

    Drafts whose q is at least 1/4 everywhere leave block verification few different decisions.
    """
    return _permuted(np.log(np.array([2, 1, 1]) / 4), contexts, seed)


def _permuted(logits: np.ndarray, contexts: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(logits) for _ in range(contexts)]).astype(np.float32)


def dyadic_ngrams(order: int) -> NgramTables:
    """Tables for three tokens whose distributions, back-off included, have multiples of 1/4."""
    first = make_level(
        contexts=np.array([[0], [2]]), counts=np.array([1, 2]), best=np.array([2, 0]),
        successors=np.array([2, 0, 2]), weights=np.full(3, 0.5),
    )  # fmt: skip
    # After 0, 2: half of it is the weight's, half what follows 2.
    second = make_level(
        contexts=np.array([[0, 2]]), counts=np.array([1]), best=np.array([2]),
        successors=np.array([2]), weights=np.array([0.5]),
    )  # fmt: skip
    unigram = jnp.array([0.5, 0.0, 0.5])
    return NgramTables(unigram, jnp.array(0), (first, second)[: order - 1])
