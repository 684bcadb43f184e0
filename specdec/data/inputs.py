"""Texts as the token ids that a model is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec.data.vocabulary import Tokenizer

Text = str | Sequence[int]


def text_ids(
    text: Text, name: str, vocabulary: Tokenizer | None, vocab_size: int, max_input_len: int
) -> np.ndarray:
    """Token ids of a text, EOS included, or the ids that it is given as, checked.

    Args:
      name: what messages call the text.

    Raises:
      ValueError: naming the text: empty, too long, not a token of the vocabulary, or a string
        where there is no vocabulary.
    """
    if isinstance(text, str):
        if not text.strip():
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
        ids = np.asarray(vocabulary.encode(text, add_eos=True), np.int64)
    else:
        ids = np.asarray(text)
        if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"{name} must be a string or a non-empty list of token ids.")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"{name} has a token outside the vocabulary [0, {vocab_size}).")
    ids = ids.astype(np.int32)
    if len(ids) > max_input_len:
        raise ValueError(
            f"{name} has {len(ids)} tokens, more than max_input_len = {max_input_len}; "
            "shorten it or raise max_input_len."
        )
    return ids
