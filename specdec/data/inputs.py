"""Texts as the token ids that a model is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec.data.vocabulary import Tokenizer
from specdec.models.base import Model

Text = str | Sequence[int]


def text_ids(
    text: Text, name: str, vocabulary: Tokenizer | None, model: Model, max_input_len: int,
    max_decode_len: int = 0,
) -> np.ndarray:  # fmt: skip
    """Token ids of a text as a model takes it, or the ids that it is given as, checked.

    EOS is included where an encoder reads it. A text that the output continues has none, and may
    be empty.

    Args:
      name: what messages call the text.
      max_decode_len: tokens that the model's positions must have room for behind it.

    Raises:
      ValueError: naming the text: empty, too long, not a token of the vocabulary, or a string
        where there is no vocabulary.
    """
    vocab_size, continued = model.vocab_size, model.reads_prefix
    if isinstance(text, str):
        if not text.strip() and not continued:
            raise ValueError(f"{name} is empty.")
        if vocabulary is None:
            raise ValueError(
                f"{name} is a string, but this pair has no vocabulary (no spiece.model or "
                "tokenizer.json beside the target); give token ids."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} is not valid Unicode: character {error.start} is half of a surrogate pair."
            ) from None
        ids = np.asarray(vocabulary.encode(text, add_eos=not continued), np.int64)
    else:
        ids = np.asarray(text) if len(text) else np.zeros(0, np.int64)
        whole = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
        if not whole or (ids.size == 0 and not continued):
            raise ValueError(f"{name} must be a string or a non-empty list of token ids.")
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(f"{name} has a token outside the vocabulary [0, {vocab_size}).")
    ids = ids.astype(np.int32)
    if len(ids) > max_input_len:
        raise ValueError(
            f"{name} has {len(ids)} tokens, more than max_input_len = {max_input_len}; "
            "shorten it or raise max_input_len."
        )
    limit = model.max_positions
    if limit is not None and len(ids) + max_decode_len > limit:
        raise ValueError(
            f"{name} has {len(ids)} tokens; with max_decode_len = {max_decode_len} that is more "
            f"than the model's {limit} positions. Shorten it or lower max_decode_len."
        )
    return ids
