"""What is said of a tokenizer beside its vocabulary: special tokens, added tokens and options.

The files and their precedence are those of transformers 5.24
(``PreTrainedTokenizerBase._from_pretrained``): with ``added_tokens_decoder`` in
tokenizer_config.json nothing else is read. Without it special_tokens_map.json overrides that file,
and added tokens are those of added_tokens.json and, before them, of tokenizer.json.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from specdec.checkpoints.files import read_json
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.vocabulary_files import (
    ADDED_TOKENS,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
)

NAMED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_EXTRA, _OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_OPTIONS: dict[str, type] = {
    "extra_ids": int, "add_prefix_space": bool, "add_bos_token": bool, "add_eos_token": bool,
    "split_special_tokens": bool, "clean_up_tokenization_spaces": bool, "trim_offsets": bool,
    "legacy": bool, "legacy_behaviour": bool, "separate_vocabs": bool, "offset": int,
    "mask_token_sent": str, "src_lang": str, "tgt_lang": str, "language_codes": str,
}  # fmt: skip
_MOST_IDS = 2**31  # Token ids are int32.


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the files say; tokens are texts where no file gives their flags."""

    named: dict[str, str | AddedToken | None]  # Those of NAMED that are told, and models' own.
    extra: list[str | AddedToken] | None  # Further special tokens; None where none are told.
    additional: list[str | AddedToken] | None  # The same by its old name, where that is kept.
    added: dict[int, AddedToken]  # By the ids that files tell.
    options: dict[str, Any]


def read_settings(directory: Path, tokenizer: Mapping[str, Any] | None) -> Settings:
    """The settings in a directory; ``tokenizer`` is what its tokenizer.json holds, if it has one.

    Raises:
      CheckpointError: a file is no JSON object, or a field has another type than it must.
    """
    path = directory / TOKENIZER_CONFIG
    told = read_json(path) if path.is_file() else {}
    if tokenizer is not None:
        told = {key: told[key] for key in told if key not in ("add_bos_token", "add_eos_token")}
    if _OLD_EXTRA in told and not told.get(_EXTRA):
        told[_EXTRA] = told.pop(_OLD_EXTRA)
    own = {
        key: told.pop(key)
        for key, value in list(told.items())
        if key.endswith("_token") and key not in NAMED and isinstance(value, str)
    }
    if isinstance(told.get(_EXTRA), dict):
        own |= told.pop(_EXTRA)
    origins = dict.fromkeys(told, path)
    if "added_tokens_decoder" in told:
        added = _decoder(path, told["added_tokens_decoder"])
    else:
        beside = directory / SPECIAL_TOKENS_MAP
        for key, value in (read_json(beside) if beside.is_file() else {}).items():
            if key == _EXTRA and isinstance(value, list):
                before = told.get(_EXTRA) or []
                value = [*before, *(token for token in value if token not in before)]
            told[key], origins[key] = value, beside
        if isinstance(told.get(_EXTRA), dict):
            own |= told.pop(_EXTRA)
        special = [_token(origins[key], key, told[key]) for key in NAMED if told.get(key)]
        if told.get(_EXTRA):
            special += _tokens(origins[_EXTRA], _EXTRA, told[_EXTRA])
        texts = {token if isinstance(token, str) else token.content for token in special}
        added = _legacy_added(directory, texts) | _added_of(directory / TOKENIZER, tokenizer)
    by_text = {token.content: token for token in added.values()}
    named = {
        key: value if value is None else _token(origins.get(key, path), key, value)
        for key, value in (told | own).items()
        if key in NAMED or key in own or (key.endswith("_token") and isinstance(value, str | dict))
    }
    named = {  # Flags that the list of added tokens gives.
        key: by_text.get(str(value), value) if key in NAMED and value is not None else value
        for key, value in named.items()
    }
    extra, additional = (
        _tokens(origins[key], key, told[key]) if told.get(key) is not None else None
        for key in (_EXTRA, _OLD_EXTRA)
    )
    return Settings(named, extra, additional, added, _options(origins, told))


def _options(origins: Mapping[str, Path], told: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, kind in _OPTIONS.items():
        value = told.get(key)
        if value is None:
            continue
        if type(value) is not kind or (kind is int and not 0 <= value < _MOST_IDS):
            what = {int: "a number of tokens", bool: "true or false", str: "a text"}[kind]
            raise _wrong(origins[key], key, value, what)
        found[key] = value
    return found


def _legacy_added(directory: Path, special: Collection[str]) -> dict[int, AddedToken]:
    """Tokens of added_tokens.json, of which some are ``special``."""
    path = directory / ADDED_TOKENS
    ids = check_ids(path, read_json(path)) if path.is_file() else {}
    return {
        token: AddedToken(text, normalized=text not in special, special=text in special)
        for text, token in ids.items()
    }


def _added_of(path: Path, tokenizer: Mapping[str, Any] | None) -> dict[int, AddedToken]:
    """``added_tokens`` of a tokenizer.json."""
    found: dict[int, AddedToken] = {}
    told = None if tokenizer is None else tokenizer.get("added_tokens")
    if not isinstance(told, list | None):
        raise _wrong(path, "added_tokens", told, "a list of tokens")
    for i, each in enumerate(told or ()):
        name = f"added_tokens[{i}]"
        token = _token(path, name, each, True)
        index = _id(path, f"{name}.id", each.get("id"))
        if index in found:
            raise CheckpointError(
                f"{path}: added_tokens gives id {index} twice; copy or download it again."
            )
        found[index] = token
    return found


def _decoder(path: Path, told: Any) -> dict[int, AddedToken]:
    """``added_tokens_decoder`` of tokenizer_config.json."""
    if not isinstance(told, dict):
        raise _wrong(path, "added_tokens_decoder", told, "an object of tokens by id")
    found = {}
    for key, value in told.items():
        name = f"added_tokens_decoder[{reprlib.repr(key)}]"
        index = _id(path, name, int(key) if key.isascii() and key.isdigit() else key)
        found[index] = _token(path, name, value, True)
    return found


def check_ids(path: Path, ids: Mapping[str, Any], field: str = "") -> dict[str, int]:
    """Ids by token; CheckpointError for an invalid id, or one that two tokens have."""
    found: dict[int, str] = {}
    for text, value in ids.items():
        name = f"{field}[{reprlib.repr(text)}]"
        if not _is_text(text):
            raise _wrong(path, name, text, "a token's text")
        other = found.setdefault(_id(path, name, value), text)
        if other != text:
            raise CheckpointError(
                f"{path}: {field or 'it'} gives id {value} to both {reprlib.repr(other)} and "
                f"{reprlib.repr(text)}; copy or download it again."
            )
    return dict(ids)


def _is_text(value: Any) -> bool:
    """Whether it is a string without halves of surrogate pairs."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _id(path: Path, field: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_IDS:
        raise _wrong(path, field, value, "a token's id, a whole number from 0 on")
    return value


def _tokens(path: Path, field: str, told: Any) -> list[str | AddedToken]:
    if not isinstance(told, list):
        raise _wrong(path, field, told, "a list of tokens")
    return [_token(path, f"{field}[{i}]", each) for i, each in enumerate(told)]


def _token(path: Path, field: str, told: Any, flags: bool = False) -> Any:
    """A token as text, or with its flags (always with ``flags``)."""
    if _is_text(told) and not flags:
        return told
    if not isinstance(told, dict) or not _is_text(told.get("content")):
        raise _wrong(path, field, told, "a token")
    found = {flag: told[flag] for flag in _FLAGS if flag in told}
    for flag, value in found.items():
        if type(value) is not bool:
            raise _wrong(path, f"{field}.{flag}", value, "true or false")
    if path.name == SPECIAL_TOKENS_MAP:
        found["special"] = True
    return AddedToken(told["content"], **found)


def _wrong(path: Path, field: str, value: Any, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {field} is {reprlib.repr(value)}, not {what}; correct it, or copy or download "
        "the file again."
    )
