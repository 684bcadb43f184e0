"""Rows of tokens as batches of static shape, and the rows of one that could not be decoded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from specdec.models.base import Model, forced
from specdec.rules.base import Rule
from specdec.types import NAN_OF_RULES, NO_TOKEN, AnyArray, Encoding, Prompt

_SMALLEST_BUCKET = 16


def refuse_failed(
    batch: Batch, failed: AnyArray, num_tokens: AnyArray, source: str, rules: Sequence[Rule]
) -> None:
    """Raises an error if a decode failed.

    Args:
      failed: [B] why, see :class:`specdec.types.DecodeState`; or [B, n] of its samples.
      num_tokens: of the same shape, tokens until then, or until the row's end.
      source: the models whose logits may be NaN.
      rules: all that were given.

    Raises:
      ValueError: there is such a row; it names the first one.
    """
    named = ", ".join(map(str, rules))
    for index in np.argwhere(failed):
        row, count = f"Row {batch.row_ids[index[0]]}", num_tokens[*index]
        if failed[*index] == NO_TOKEN:
            raise ValueError(
                f"{row}: together the rules leave no token within its first {count} tokens: "
                f"{named}. Loosen one of them."
            )
        if failed[*index] == NAN_OF_RULES:
            raise ValueError(
                f"{row}: rules made NaN or +inf of the model's logits within the first {count} "
                f"tokens: {named}. A rule's logits are finite, or -inf for what must not follow."
            )
        raise ValueError(
            f"{row}: the logits of {source} became NaN within the first {count} tokens. Look for "
            'NaN or infinity in the weights; bfloat16 models may need dtype="float32".'
        )


def bucket(length: int) -> int:
    """The static size of arrays for ``length`` output tokens: a power of two, at least 16.

    One program is compiled for each bucket, not for each length.
    """
    return max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def input_bucket(length: int) -> int:
    """The static size that inputs and prefixes of ``length`` tokens are padded to.

    Powers of two from 16, and three quarters of those from 64. An encoder computes with all that
    it is given, so a text of 33 tokens would cost a third more in 64 than it does in 48.
    """
    size = bucket(length)
    return size * 3 // 4 if size >= 4 * _SMALLEST_BUCKET and length <= size * 3 // 4 else size


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows that are decoded together."""

    prompt: Prompt  # NumPy arrays, padded to a bucket.
    row_ids: np.ndarray  # [B] indices into the texts; -1 for rows that only fill the batch up.

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the prompt's arrays; batches of the same ones share their programs."""
        return tuple(leaf.shape for leaf in jax.tree.leaves(self.prompt))

    def row(self, index: int) -> Prompt:
        """The prompt of one row alone."""
        return jax.tree.map(lambda array: array[index : index + 1], self.prompt)


def make_batches(
    ids: Sequence[np.ndarray], batch_size: int, model: Model,
    prefixes: Sequence[np.ndarray] | None = None, encodings: Sequence[np.ndarray] | None = None,
    given: Sequence[np.ndarray] | None = None,
) -> Iterator[Batch]:  # fmt: skip
    """Rows of the same buckets, ``batch_size`` at a time, the last filled up with empty rows.

    Args:
      ids: token ids of each text, or features [S, M].
      prefixes: of each text's output, the forced first tokens; those of no tokens share a bucket.
      encodings: the target's encoder's output for each, [S, D]; None to compute it.
      given: the texts of each that a draft follows, as in :class:`Prompt`; of one size in all rows.
    """
    by_bucket: dict[tuple[int, int, int], list[int]] = {}
    nothing = np.zeros(0, np.int32)
    prefixes = [nothing] * len(ids) if prefixes is None else prefixes
    given_size = None if given is None else input_bucket(max(map(len, given), default=1))
    for row, text in enumerate(ids):
        encoded_size = len(encodings[row]) if encodings is not None else 0
        sizes = _input_size(text), _bucket_or_0(len(prefixes[row])), _bucket_or_0(encoded_size)
        by_bucket.setdefault(sizes, []).append(row)
    for size, forced_size, encoded_size in sorted(by_bucket):
        rows = by_bucket[size, forced_size, encoded_size]
        for start in range(0, len(rows), batch_size):
            chosen = rows[start : start + batch_size]
            row_ids = np.full(batch_size, -1, np.int32)
            row_ids[: len(chosen)] = chosen
            prompt = model.prompt(*_padded(ids, chosen, (batch_size, size), model.pad_id))
            if forced_size:
                firsts = _padded(prefixes, chosen, (batch_size, forced_size), model.pad_id)
                prompt = forced(prompt, *firsts)
            if encodings is not None:
                encoding = Encoding(*_padded(encodings, chosen, (batch_size, encoded_size), 0))
                prompt = dataclasses.replace(prompt, encoding=encoding)
            if given is not None and given_size:
                followed, _ = _padded(given, chosen, (batch_size, given_size), 0)
                prompt = dataclasses.replace(prompt, given=followed)
            yield Batch(prompt, row_ids)


def _input_size(given: np.ndarray) -> int:
    """Size of inputs: a bucket of tokens, but features are as many as there are."""
    return input_bucket(len(given)) if given.ndim == 1 else len(given)


def _bucket_or_0(length: int) -> int:
    return input_bucket(length) if length else 0


def _padded(
    values: Sequence[np.ndarray], rows: Sequence[int], shape: tuple[int, int], pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """The chosen rows' tokens or features in an array of ``shape``, and how many each has."""
    first = values[rows[0]]
    padded = np.full((*shape, *first.shape[1:]), pad, first.dtype)
    lengths = np.zeros(shape[0], np.int32)
    for index, row in enumerate(rows):
        lengths[index] = len(values[row])
        padded[index, : lengths[index]] = values[row]
    return padded, lengths


def commonest(batches: Sequence[Batch]) -> list[Batch]:
    """The batches of the commonest shape."""
    shape, _ = Counter(batch.shape for batch in batches).most_common(1)[0]
    return [batch for batch in batches if batch.shape == shape]
