"""N-gram drafts, counted from token streams."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.ngrams import FILE_NAME, save_ngrams
from specdec.core.progress import say
from specdec.drafters.ngram_tables import NgramLevel, NgramTables, make_level
from specdec.training.checkpointing import load_vocabulary
from specdec.training.train import Files

DISCOUNT, MAX_SUCCESSORS = 0.5, 16
_MIN_COUNT = 2  # Of a context of two or more tokens.


class _Context(NamedTuple):
    """A known context: the weights of its successors, and what goes to the shorter context."""

    weights: dict[int, float]
    backoff: float
    best: int


def count_ngrams(
    sequences: Iterable[Sequence[int]],
    vocab_size: int,
    *,
    order: int,
    start_id: int,
) -> NgramTables:
    """Tables of an interpolated back-off model by absolute discounting (Ney et al. 1994).

    q(x | c) = max(0, n(c, x) - 0.5) / n(c) + rest * q(x | c'), with c' being c without its oldest
    token and q(x) the relative frequency; ``rest`` is what remains of 1. Of a context the commonest
    16 tokens x are kept. One of two or more tokens that occurred only once backs off.

    Args:
      sequences: outputs as token ids, EOS included.
      vocab_size: V of the model that is drafted for.
      order: n >= 1.
      start_id: precedes the first token, as often as a context needs it.

    Raises:
      ValueError: no token at all, a token outside the vocabulary, or an order below 1.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}.")
    counts = _counts(sequences, order, start_id)
    unigrams = counts[0][()]
    if not unigrams:
        raise ValueError("There is not a single token to count.")
    for token in (min(unigrams), max(unigrams)):
        if not 0 <= token < vocab_size:
            raise ValueError(f"Token {token} is outside the vocabulary [0, {vocab_size}).")
    unigram = np.zeros(vocab_size)
    unigram[list(unigrams)] = list(unigrams.values())
    unigram /= unigrams.total()
    known: list[dict[tuple[int, ...], _Context]] = []  # By length, of contexts of 1, 2, ... tokens.

    def prob(context: tuple[int, ...], token: int) -> float:
        if not context:
            return unigram[token]
        shorter, found = prob(context[1:], token), known[len(context) - 1].get(context)
        return found.weights.get(token, 0.0) + found.backoff * shorter if found else shorter

    def best(context: tuple[int, ...]) -> int:
        if not context:
            return int(np.argmax(unigram))
        found = known[len(context) - 1].get(context)
        return found.best if found else best(context[1:])

    for m in range(1, order):
        level = {}
        for context, successors in sorted(counts[m].items()):
            total = successors.total()
            if m > 1 and total < _MIN_COUNT:
                continue
            commonest = sorted(successors, key=lambda token: (-successors[token], token))
            kept = sorted(commonest[:MAX_SUCCESSORS])
            weights = {token: (successors[token] - DISCOUNT) / total for token in kept}
            backoff, shorter = 1 - sum(weights.values()), context[1:]
            likely = {token: w + backoff * prob(shorter, token) for token, w in weights.items()}
            # Of equally likely tokens the last, and a successor before any other.
            first = max(reversed(kept), key=likely.__getitem__)
            other = best(shorter)
            if likely[first] < backoff * prob(shorter, other):
                first = other
            level[context] = _Context(weights, backoff, first)
        known.append(level)
    levels = tuple(_level(m, level) for m, level in enumerate(known, start=1))
    return NgramTables(jnp.asarray(unigram, jnp.float32), jnp.asarray(best(()), jnp.int32), levels)


def _counts(
    sequences: Iterable[Sequence[int]], order: int, start_id: int
) -> list[defaultdict[tuple[int, ...], Counter[int]]]:
    """How often each token follows each context of 0, 1, ... ``order`` - 1 tokens."""
    counts = [defaultdict(Counter) for _ in range(order)]
    for sequence in sequences:
        tokens = [start_id] * (order - 1) + [int(token) for token in sequence]
        for at in range(order - 1, len(tokens)):
            for m, level in enumerate(counts):
                level[tuple(tokens[at - m : at])][tokens[at]] += 1
    return counts


def _level(m: int, contexts: dict[tuple[int, ...], _Context]) -> NgramLevel:
    """The table of contexts of m tokens."""
    found = contexts.values()
    return make_level(
        np.array(list(contexts), np.int64).reshape(-1, m),
        np.array([len(each.weights) for each in found], np.int64),
        np.array([each.best for each in found], np.int64),
        np.array([token for each in found for token in each.weights], np.int64),
        np.array([weight for each in found for weight in each.weights.values()]),
    )


def build(
    directory: str | os.PathLike,
    *,
    files: Files,
    vocabulary_path: str,
    vocab_size: int,
    order: int,
    start_id: int = 0,
) -> NgramTables:
    """Counts the outputs of a file of pairs and writes ``ngrams.safetensors``.

    Args: see :func:`count_ngrams`; ``vocab_size`` is the target's, which may pad its vocabulary.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data, or a value out of its range.
    """
    vocabulary = load_vocabulary(vocabulary_path)
    outputs = ([*vocabulary.encode(output), vocabulary.eos_id] for _, output in files.read("train"))
    tables = count_ngrams(outputs, vocab_size, order=order, start_id=start_id)
    path = Path(directory) / FILE_NAME
    save_ngrams(path, tables, vocabulary.path)
    say(f"Wrote {path}: {path.stat().st_size} bytes.")
    return tables
