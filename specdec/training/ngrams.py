"""N-gram drafts, counted from token streams."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.ngrams import FILE_NAME, save_ngrams
from specdec.core.progress import say
from specdec.drafters.ngram_tables import NgramLevel, NgramTables, make_level
from specdec.training.checkpointing import load_vocabulary
from specdec.training.train import Files


@dataclasses.dataclass(frozen=True)
class _Counted:
    """One level on the host, sorted for binary search. Keys are tokens as digits to the base V.

    Level m has contexts of m tokens; level 0 is the unigram.
    """

    keys: np.ndarray  # [R] contexts
    backoff: np.ndarray  # [R] what goes to the context without its oldest token
    pairs: np.ndarray  # [E] context * V + successor
    weights: np.ndarray  # [E]
    best: np.ndarray  # [R]


def count_ngrams(
    sequences: Iterable[Sequence[int]],
    vocab_size: int,
    *,
    order: int,
    start_id: int,
    discount: float = 0.5,
    min_count: int = 2,
    max_successors: int = 16,
) -> NgramTables:
    """Tables of an interpolated back-off model by absolute discounting (Ney et al. 1994).

    q(x | c) = max(0, n(c, x) - discount) / n(c) + rest * q(x | c'), with c' being c without its
    oldest token and q(x) the relative frequency; ``rest`` is what remains of 1.

    Args:
      sequences: outputs as token ids, EOS included.
      vocab_size: V of the model that is drafted for.
      order: n >= 1.
      start_id: what precedes the first token, as often as a context needs it.
      discount: in (0, 1).
      min_count: a context of two or more tokens must have occurred so often; rarer ones back off.
      max_successors: of a context, the commonest so many are kept.

    Raises:
      ValueError: no token at all, a token outside the vocabulary, or a value out of its range.
    """
    if order < 1 or vocab_size**order >= 2**63:
        longest = int(63 / np.log2(vocab_size))
        raise ValueError(f"order must be in 1..{longest} for {vocab_size} tokens, got {order}.")
    if not 0 < discount < 1 or min_count < 1 or max_successors < 1:
        raise ValueError(
            f"discount must be in (0, 1), min_count and max_successors at least 1; got {discount}, "
            f"{min_count}, {max_successors}."
        )
    arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
    lengths = np.array([len(array) for array in arrays], np.int64)
    if not lengths.sum():
        raise ValueError("There is not a single token to count.")
    pad = np.full(order - 1, start_id, np.int64)
    stream = np.concatenate([part for array in arrays for part in (pad, array)])
    if stream.min() < 0 or stream.max() >= vocab_size:
        outside = stream.max() if stream.max() >= vocab_size else stream.min()
        raise ValueError(f"Token {outside} is outside the vocabulary [0, {vocab_size}).")
    real = np.arange(lengths.sum()) + (order - 1) * np.repeat(1 + np.arange(len(lengths)), lengths)
    unigram = np.bincount(stream[real], minlength=vocab_size) / len(real)
    likeliest = np.array([np.argmax(unigram)])
    nothing = np.zeros(1, np.int64)
    counted = [_Counted(nothing, np.zeros(1), np.arange(vocab_size), unigram, likeliest)]
    levels: list[NgramLevel] = []
    for m in range(1, order):
        grams = np.stack([stream[real - back] for back in range(m, -1, -1)], axis=1)
        level = _count(grams, vocab_size, counted, discount, min_count, max_successors)
        counted.append(level)
        at = np.searchsorted(level.pairs, level.keys * vocab_size)
        counts = np.diff(np.append(at, len(level.pairs)))
        contexts, successors = _digits(level.keys, vocab_size, m), level.pairs % vocab_size
        levels.append(make_level(contexts, counts, level.best, successors, level.weights))
    best = jnp.asarray(likeliest[0], jnp.int32)
    return NgramTables(jnp.asarray(unigram, jnp.float32), best, tuple(levels))


def _count(grams, vocab_size, lower, discount, min_count, max_successors) -> _Counted:
    """The level of contexts of m tokens from all [N, m + 1] grams; ``lower`` are those below."""
    m = grams.shape[1] - 1
    pairs, numbers = np.unique(_key(grams, vocab_size), return_counts=True)
    keys, first = np.unique(pairs // vocab_size, return_index=True)
    totals = np.add.reduceat(numbers, first)
    known = totals >= (min_count if m > 1 else 1)
    owner = np.repeat(np.arange(len(keys)), np.diff(np.append(first, len(pairs))))
    # Of each context the commonest successors; a pair's rank is its index among the context's own.
    order = np.lexsort((-numbers, owner))
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs)) - first[owner[order]]
    kept = known[owner] & (rank < max_successors)
    pairs, owner = pairs[kept], owner[kept]
    weights = (numbers[kept] - discount) / totals[owner]
    backoff = 1 - np.bincount(owner, weights, minlength=len(keys))
    # The likeliest token: a successor, or the shorter context's own likeliest.
    shorter, tokens = _digits(keys, vocab_size, m)[:, 1:], pairs % vocab_size
    likely = weights + backoff[owner] * _prob(lower, shorter[owner], tokens, vocab_size)
    best = _best(lower, shorter, vocab_size)
    top = backoff * _prob(lower, shorter, best, vocab_size)
    order = np.lexsort((likely, owner))  # The last of each context is its likeliest.
    last = order[np.append(owner[order][1:] != owner[order][:-1], True)] if len(order) else order
    better = likely[last] >= top[owner[last]]
    best[owner[last][better]] = tokens[last][better]
    return _Counted(keys[known], backoff[known], pairs, weights, best[known])


def _key(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """[N, m] tokens as one number each, the oldest in front."""
    key = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        key = key * vocab_size + column
    return key


def _digits(keys: np.ndarray, vocab_size: int, count: int) -> np.ndarray:
    """Inverse of :func:`_key`."""
    return np.stack([keys // vocab_size**i % vocab_size for i in reversed(range(count))], axis=1)


def _at(sorted_: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each wanted number is, and whether it is there at all."""
    if not len(sorted_):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(sorted_, wanted), len(sorted_) - 1)
    return at, sorted_[at] == wanted


def _prob(levels, contexts, tokens, vocab_size) -> np.ndarray:
    """q(token | context) by levels of up to m tokens, for contexts [N, m]."""
    probs = np.zeros(len(tokens))
    for m, level in enumerate(levels):
        key = _key(contexts[:, contexts.shape[1] - m :], vocab_size)
        at, known = _at(level.keys, key)
        pair, seen = _at(level.pairs, key * vocab_size + tokens)
        found = np.where(seen, level.weights[pair], 0.0) + level.backoff[at] * probs
        probs = np.where(known, found, probs)
    return probs


def _best(levels, contexts, vocab_size) -> np.ndarray:
    """The likeliest token after each context."""
    best = np.zeros(len(contexts), np.int64)
    for m, level in enumerate(levels):
        at, known = _at(level.keys, _key(contexts[:, contexts.shape[1] - m :], vocab_size))
        best = np.where(known, level.best[at], best)
    return best


def build(
    directory: str | os.PathLike,
    *,
    files: Files,
    vocabulary_path: str,
    vocab_size: int,
    order: int,
    start_id: int = 0,
    discount: float = 0.5,
    min_count: int = 2,
    max_successors: int = 16,
) -> NgramTables:
    """Counts the outputs of a file of pairs and writes ``ngrams.safetensors``.

    Args: see :func:`count_ngrams`; ``vocab_size`` is the target's, which may pad its vocabulary.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data, or a value out of its range.
    """
    vocabulary = load_vocabulary(vocabulary_path)
    outputs = ([*vocabulary.encode(output), vocabulary.eos_id] for _, output in files.read("train"))
    tables = count_ngrams(
        outputs, vocab_size, order=order, start_id=start_id, discount=discount,
        min_count=min_count, max_successors=max_successors,
    )  # fmt: skip
    path = Path(directory) / FILE_NAME
    save_ngrams(path, tables, vocabulary.path)
    sizes = ", ".join(str(int(np.sum(np.asarray(level.count) > 0))) for level in tables.levels)
    say(f"Wrote {path}: {path.stat().st_size} bytes, contexts: {sizes or 'none'}.")
    return tables
