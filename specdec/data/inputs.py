"""Texts, and forced first tokens of outputs, as the token ids that a model is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec.models.base import LoadableModel
from specdec.text.base import Tokenizer

Text = str | Sequence[int] | np.ndarray  # Or features [S, M] of an encoder that reads them.
Prefix = Text | Sequence[Text]  # One for all texts, or one for each.
Given = Text | Sequence[Text] | None  # A text that a row's draft follows, several, or none.


def text_ids(
    text: Text, name: str, vocabulary: Tokenizer | None, model: LoadableModel, max_input_len: int,
    max_decode_len: int = 0, truncate: bool = False,
) -> np.ndarray:  # fmt: skip
    """Token ids of a text as a model takes it, or the ids or features that it is given as, checked.

    What the tokenizer puts around a text, such as EOS, is included where an encoder reads it. A
    text that the output continues has nothing behind it, and may be empty.

    Args:
      name: of the text, in messages.
      max_decode_len: tokens for which positions of the model must be left behind it.
      truncate: leave out what is behind ``max_input_len`` tokens, but not what stands behind an
        encoder's texts, such as EOS, as transformers does.

    Raises:
      ValueError: naming the text: empty, too long, not a token of the vocabulary, one that stands
        for an image, or a string where there is no vocabulary.
    """
    if model.input_shape is not None:
        return _features(text, name, model.input_shape)
    continued = model.reads_prefix
    before = vocabulary.start_ids if continued and vocabulary is not None else ()
    return _ids(
        text, name, vocabulary, model, max_input_len, max_decode_len, continued, before, truncate
    )


def _features(given: Any, name: str, shape: tuple[int, int]) -> np.ndarray:
    """Features of sound, checked.

    Raises:
      ValueError: they are of another shape than the model reads, or not finite.
    """
    if isinstance(given, str) or np.ndim(given) != 2:
        raise ValueError(
            f"{name} must be features of sound, an array of {shape[0]} x {shape[1]} (frames x mel "
            "bins): this model listens. Give sound to transcribe."
        )
    features = np.asarray(given, np.float32)
    frames, bins = features.shape
    if bins != shape[1]:
        raise ValueError(
            f"{name} has {bins} mel bins, and the model reads {shape[1]}: they are another model's "
            "features. Compute them with this checkpoint's preprocessor_config.json."
        )
    if frames != shape[0]:
        raise ValueError(
            f"{name} has {frames} frames, and the model reads {shape[0]}, filled up with silence: "
            "cut or fill it, or give sound to transcribe."
        )
    _check_finite(features, name)
    return features


def encodings(given: Sequence[Any], count: int, width: int | None) -> list[np.ndarray]:
    """Encoder outputs [S, D] for each of ``count`` rows, checked.

    Args:
      width: D; None for a model without an encoder.

    Raises:
      ValueError: another number than rows, or one that no encoder of this model can have made.
    """
    if width is None:
        raise ValueError("encoded is what an encoder made, and this model is decoder-only.")
    if len(given) != count:
        raise ValueError(f"encoded has {len(given)} entries for {count} texts: give one for each.")
    found = []
    for i, each in enumerate(given):
        states = np.asarray(each, np.float32)
        if states.ndim != 2 or states.shape[1] != width or not len(states):
            raise ValueError(
                f"encoded {i} has shape {states.shape}; it must be an encoder's output, an array "
                f"of states of width {width}."
            )
        _check_finite(states, f"encoded {i}")
        found.append(states)
    return found


def _check_finite(array: np.ndarray, name: str) -> None:
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has NaN or infinity: look at what it was computed from.")


def prefix_ids(
    prefix: Prefix | None, count: int, vocabulary: Tokenizer | None, model: LoadableModel,
    max_input_len: int, max_decode_len: int = 0,
) -> list[np.ndarray]:  # fmt: skip
    """Token ids that each of ``count`` outputs is made to begin with, without EOS.

    Args:
      prefix: a string or token ids, for all rows or in a list with one for each; None or an empty
        one forces nothing.

    Raises:
      ValueError: another number of prefixes than rows; one that is no string or list of token ids,
        contains EOS, has more than ``max_input_len`` tokens or leaves the output no positions; or
        the model's texts are prefixes themselves.
    """
    given: Any = () if prefix is None or (isinstance(prefix, str) and not prefix) else prefix
    if not isinstance(given, str | Sequence | np.ndarray):
        raise ValueError(
            f"prefix must be a string, token ids, or a list with one of these for each text, got "
            f"{prefix!r}."
        )
    if model.reads_prefix and len(given):
        raise ValueError(
            "prefix is what the decoder of an encoder-decoder begins with. This model is "
            "decoder-only: its text itself is the prefix. Leave prefix out and put it at the end "
            "of the text."
        )

    def ids(each: Any, name: str) -> np.ndarray:
        found = _ids(each, name, vocabulary, model, max_input_len, max_decode_len, True)
        ends = set(found.tolist()) & set(model.eos_ids)
        if ends:
            raise ValueError(
                f"{name} contains token {min(ends)}, which ends an output: leave EOS out."
            )
        return found

    if isinstance(given, str) or all(isinstance(each, int | np.integer) for each in given):
        return [ids(given, "prefix")] * count
    if len(given) != count:
        raise ValueError(
            f"prefix has {len(given)} entries for {count} texts: give one for each text, or a "
            "string or token ids for all."
        )
    return [ids(each, f"prefix {i}") for i, each in enumerate(given)]


def given_ids(
    given: Sequence[Given], count: int, vocabulary: Tokenizer | None, model: LoadableModel,
    first: int | None = None, names: Sequence[str] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The texts that each of ``count`` rows gives a draft to follow, as in ``Prompt.given``.

    A string gets EOS behind it, so that an output's end is guessed, too. Token ids stay as they
    are. Empty texts are left out.

    Args:
      first: token that outputs begin with, in front of strings; None for none.
      names: of the rows' entries in messages; "given 0" and so on by default.

    Raises:
      ValueError: another number of entries than rows; one that is no text, list of texts or None; a
        token outside the vocabulary, or a string where there is none.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"given must be a list with an entry for each text, got {given!r}.")
    if len(given) != count:
        raise ValueError(
            f"given has {len(given)} entries for {count} texts: give one for each, None where "
            "there is none."
        )
    before = () if first is None else (first,)

    def ids(text: Any, name: str) -> np.ndarray:
        found = _tokens(text, name, vocabulary, model.vocab_size, True, before)
        ends = model.eos_ids[:1] if isinstance(text, str) else ()
        return np.concatenate([found, np.asarray(ends, np.int64)])

    def packed(entry: Any, name: str) -> np.ndarray:
        texts = entry if _holds_texts(entry) else [entry]
        found = [ids(text, name) for text in texts if not isinstance(text, str | None) or text]
        pieces = [np.insert(tokens + 1, 0, 0) for tokens in found if len(tokens)]
        return np.concatenate([*pieces, [0]]).astype(np.int32)

    names = names or [f"given {i}" for i in range(count)]
    return [packed(entry, name) for entry, name in zip(given, names, strict=True)]


def _holds_texts(entry: Any) -> bool:
    """Whether it is a list of texts, and not one of token ids."""
    texts = str | Sequence | np.ndarray | None
    return isinstance(entry, list | tuple) and any(isinstance(each, texts) for each in entry)


def _ids(
    text: Any, name: str, vocabulary: Tokenizer | None, model: LoadableModel, max_input_len: int,
    max_decode_len: int, continued: bool, before: Sequence[int] = (), truncate: bool | None = None,
) -> np.ndarray:  # fmt: skip
    """See :func:`text_ids`; a ``continued`` text has no EOS, and the string ``before`` in front.

    A prefix is not truncated: None.
    """
    vocab_size = model.vocab_size if continued else model.input_vocab_size
    ids = _tokens(text, name, vocabulary, vocab_size, continued, before)
    if images := set(ids.tolist()) & set(model.image_ids):
        raise ValueError(
            f"{name} has token {min(images)}, which stands for an image: only texts can be read."
        )
    ids = ids.astype(np.int32)
    if len(ids) > max_input_len:
        if not truncate:
            cut = "" if truncate is None else ", or cut it with truncate=True"
            raise ValueError(
                f"{name} has {len(ids)} tokens, more than max_input_len = {max_input_len}; "
                f"shorten it or raise max_input_len{cut}."
            )
        behind = 0 if continued else 1 if vocabulary is None else len(vocabulary.end_ids)
        kept = max(0, max_input_len - behind)
        ids = np.concatenate([ids[:kept], ids[len(ids) - max_input_len + kept :]])
    limit, more = model.max_positions, max_decode_len if continued else 0
    if limit is not None and len(ids) + more > limit:
        with_output = f"; with max_decode_len = {more} that is" if more else ","
        lower = " or lower max_decode_len" if more else ""
        raise ValueError(
            f"{name} has {len(ids)} tokens{with_output} more than the model's {limit} positions. "
            f"Shorten it{lower}."
        )
    return ids


def _tokens(
    text: Any, name: str, vocabulary: Tokenizer | None, vocab_size: int, continued: bool,
    before: Sequence[int],
) -> np.ndarray:  # fmt: skip
    """Token ids of a string, or those that are given; see :func:`_ids`."""
    if isinstance(text, str):
        if not text.strip() and not continued:
            raise ValueError(f"{name} is empty.")
        if vocabulary is None:
            raise ValueError(
                f"{name} is a string, but this pair has no vocabulary (no spiece.model, "
                "tokenizer.json, vocab.json or encoder.json beside the target); give token ids."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} is not valid Unicode: character {error.start} is half of a surrogate pair."
            ) from None
        ids = np.asarray([*before, *vocabulary.encode(text, add_eos=not continued)], np.int64)
    else:
        ids = np.asarray(text)
        ids = ids if ids.size else np.zeros(0, np.int64)
        whole = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
        if not whole or (ids.size == 0 and not continued):
            some = "" if continued else "non-empty "
            raise ValueError(f"{name} must be a string or a {some}list of token ids.")
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(f"{name} has a token outside the vocabulary [0, {vocab_size}).")
    return ids.astype(np.int64)
