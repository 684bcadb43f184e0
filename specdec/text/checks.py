"""Checks of a tokenizer's files, before transformers is given them."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.core.checkpoint_files import CheckpointError, check_whole, read_json
from specdec.text.files import (
    ADDED_TOKENS,
    FILES,
    MERGES,
    SOURCE_PIECES,
    SPECIAL_TOKENS_MAP,
    TARGET_PIECE_IDS,
    TARGET_PIECES,
    TOKENIZER_CONFIG,
    has_piece_ids,
)
from specdec.text.vocabulary import read_pieces

_CLASS = re.compile(r"\w+Tokenizer(Fast)?|TokenizersBackend|PythonBackend|SentencePieceBackend")
_MOST_MADE = 10**5  # Tokens that a number in a file makes.
_MOST_IDS = 2**31  # Token ids are int32.
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LISTS = ("extra_special_tokens", "additional_special_tokens")


def check_files(path: Path, settings: Mapping[str, Any]) -> None:
    """CheckpointError unless a vocabulary's file and those beside it are whole and well formed.

    Args:
      settings: the content of tokenizer_config.json.
    """
    for file in {path, *map(path.with_name, FILES)}:
        if file.exists() or file == path:
            check_whole(file)
            if file.suffix in (".model", ".spm"):
                read_pieces(file)
    beside = [path.with_name(MERGES.get(path.name, path.name))]
    if has_piece_ids(path):
        beside = []
        if path.with_name(SOURCE_PIECES).is_file():
            separate = settings.get("separate_vocabs") is True
            names = (TARGET_PIECES, TARGET_PIECE_IDS)[: 1 + separate]
            beside = [path.with_name(name) for name in names]
    for file in beside:
        if not file.is_file():
            raise CheckpointError(
                f"{path} cannot be read without {file.name}, which is not beside it; copy or "
                "download it too."
            )
    for name in (*MERGES, TARGET_PIECE_IDS, ADDED_TOKENS):
        if path.with_name(name).is_file():
            _check_ids(path.with_name(name), read_json(path.with_name(name)))
    _check_settings(path.with_name(TOKENIZER_CONFIG), settings)
    special = path.with_name(SPECIAL_TOKENS_MAP)
    if special.is_file():
        _check_settings(special, read_json(special))


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Special tokens and options, which transformers takes as they are."""
    for key, value in settings.items():
        if key.endswith("_token") and value is not None and not isinstance(value, bool):
            _check_token(path, key, value)
        elif key in _LISTS and value is not None:
            if not isinstance(value, dict | list):
                raise _wrong(path, key, value, "a list of tokens")
            for i, each in enumerate(value.values() if isinstance(value, dict) else value):
                _check_token(path, f"{key}[{i}]", each)
        elif key in ("extra_ids", "offset") and (
            type(value) is not int or not 0 <= value <= _MOST_MADE
        ):
            raise _wrong(path, key, value, f"a number of tokens, at most {_MOST_MADE}")
        elif key in ("separate_vocabs", "legacy_behaviour") and not isinstance(value, bool | None):
            raise _wrong(path, key, value, "true or false")
        elif key == "tokenizer_class" and not (
            value is None or (isinstance(value, str) and _CLASS.fullmatch(value))
        ):
            raise _wrong(path, key, value, "a class of transformers' tokenizers")
        elif key == "added_tokens_decoder":
            if not isinstance(value, dict):
                raise _wrong(path, key, value, "an object of tokens by id")
            for index, token in value.items():
                if not (index.isascii() and index.isdigit() and int(index) < _MOST_IDS):
                    raise _wrong(path, f"{key}[{reprlib.repr(index)}]", index, "a token's id")
                _check_token(path, f"{key}[{index}]", token)


def _check_token(path: Path, field: str, token: Any) -> None:
    """CheckpointError unless it is a token as text, or with its flags."""
    text = token.get("content") if isinstance(token, dict) else token
    # Halves of surrogate pairs are no text.
    if not isinstance(text, str) or re.search("[\ud800-\udfff]", text):
        raise _wrong(path, field, token, "a token")
    for flag in _FLAGS if isinstance(token, dict) else ():
        if not isinstance(token.get(flag, True), bool):
            raise _wrong(path, f"{field}.{flag}", token[flag], "true or false")


def _check_ids(path: Path, ids: Mapping[str, Any], field: str = "") -> None:
    """CheckpointError unless each token has an id of its own."""
    found: dict[int, str] = {}
    for text, value in ids.items():
        if type(value) is not int or not 0 <= value < _MOST_IDS:
            raise _wrong(path, f"{field}[{reprlib.repr(text)}]", value, "a token's id")
        if found.setdefault(value, text) != text:
            raise CheckpointError(
                f"{path}: {field or 'it'} gives id {value} to both "
                f"{reprlib.repr(found[value])} and {reprlib.repr(text)}; copy or download it again."
            )


def check_content(path: Path) -> None:
    """CheckpointError that names what in a tokenizer.json is not as it must be, if that is found.

    For files that transformers refused, since it takes longer than reading them.
    """
    content = read_json(path)
    model = content.get("model")
    if not isinstance(content.get("added_tokens"), list):
        raise _wrong(path, "added_tokens", content.get("added_tokens"), "a list of tokens")
    for i, token in enumerate(content["added_tokens"]):
        _check_token(path, f"added_tokens[{i}]", token)
    if not isinstance(model, dict):
        raise _wrong(path, "model", model, "an object")
    for field, kinds in {"vocab": dict | list, "merges": list | None}.items():
        if not isinstance(model.get(field), kinds):
            what = "an object or a list" if field == "vocab" else "a list"
            raise _wrong(path, f"model.{field}", model.get(field), what)
    if isinstance(model["vocab"], dict):
        _check_ids(path, model["vocab"], "model.vocab")
    else:
        for i, row in enumerate(model["vocab"]):
            kinds = [type(part) for part in row] if isinstance(row, list) else []
            if kinds not in ([str, float], [str, int]):
                raise _wrong(path, f"model.vocab[{i}]", row, "a piece and its score")


def check_added(path: Path, theirs: Any) -> None:
    """CheckpointError unless added tokens have the ids that the files give."""
    for given, token in theirs.init_kwargs.get("added_tokens_decoder", {}).items():
        found, text = theirs.convert_tokens_to_ids(str(token)), reprlib.repr(str(token))
        if found != given:
            raise CheckpointError(
                f"{path} and the files beside it give the added token {text} the id {given}, but "
                f"it gets {found}: ids of added tokens must follow those of the vocabulary, "
                "without gaps. Correct added_tokens.json, added_tokens_decoder in "
                "tokenizer_config.json or added_tokens in tokenizer.json, whichever has it."
            )


def _wrong(path: Path, field: str, value: Any, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {field} is {reprlib.repr(value)}, not {what}; correct it, or copy or download "
        "the file again."
    )
