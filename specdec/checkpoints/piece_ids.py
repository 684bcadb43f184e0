"""Vocabularies whose ids are in vocab.json, beside SentencePiece models: Marian's and M2M100's.

As ``MarianTokenizer`` and ``M2M100Tokenizer`` of transformers 5.24 read them, of which the latter
splits texts at languages' tokens only where a file lists these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from specdec.checkpoints.files import read_json
from specdec.checkpoints.languages import M2M100, WMT21, Languages
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.tokenizer_settings import NAMED, Settings, check_ids, read_settings
from specdec.checkpoints.vocabulary_files import (
    FAIRSEQ_PIECES,
    SOURCE_PIECES,
    TARGET_PIECE_IDS,
    TARGET_PIECES,
)

_MARIAN = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
_M2M100 = _MARIAN | {"bos_token": "<s>", "sep_token": "</s>"}
_LISTS = {"m2m100": M2M100, "wmt21": WMT21}


@dataclasses.dataclass(frozen=True)
class PieceIds:
    """What the files say.

    Attributes:
      ids, target_ids: of texts' pieces and of outputs', which are the same but in some Marians.
      added: what is one token wherever it is in a text, by id.
      special: ids of those that are no text.
      named: special tokens by name.
      models: SentencePiece's, of texts and of outputs.
      languages: None where there are none.
      options: of tokenizer_config.json.
    """

    ids: Mapping[str, int]
    target_ids: Mapping[str, int]
    added: Mapping[int, AddedToken]
    special: frozenset[int]
    named: Mapping[str, str]
    models: tuple[Path, Path]
    languages: Languages | None
    options: Mapping[str, Any]

    @property
    def marian(self) -> bool:
        """Whether a language stands before a text as ``>>fra<<``."""
        return self.languages is None


def read_piece_ids(path: Path) -> PieceIds:
    """The vocabulary of a vocab.json and the files beside it.

    Raises:
      CheckpointError: a file is damaged or missing.
    """
    ids, settings = _ids_of(path), read_settings(path.parent, None)
    marian = path.with_name(SOURCE_PIECES).is_file()
    names = (SOURCE_PIECES, TARGET_PIECES) if marian else (FAIRSEQ_PIECES, FAIRSEQ_PIECES)
    models = path.with_name(names[0]), path.with_name(names[1])
    for each in models:
        _check_file(path, each)
    named = (_MARIAN if marian else _M2M100) | settings.named
    named = {key: token for key, token in named.items() if token is not None}
    apart = marian and settings.options.get("separate_vocabs", False)
    target_ids = ids
    if apart:
        _check_file(path, path.with_name(TARGET_PIECE_IDS))
        target_ids = _ids_of(path.with_name(TARGET_PIECE_IDS))
    languages = None if marian else _languages(path, len(ids), settings)
    if languages is not None:
        ids = target_ids = {**ids, **{f"__{code}__": i for code, i in languages.ids.items()}}
    added, special = _added(ids, named, settings, languages)
    names = {key: str(token) for key, token in named.items()}
    for key in ("eos_token", "unk_token"):
        if names.get(key) not in ids:
            raise CheckpointError(
                f"{path} has no token {names.get(key)!r}, the {key}; name it in "
                "tokenizer_config.json, or copy or download the file again."
            )
    return PieceIds(
        ids, target_ids, added, special, names, models, languages, settings.options
    )  # fmt: skip


def _ids_of(path: Path) -> dict[str, int]:
    return check_ids(path, read_json(path))


def _check_file(path: Path, beside: Path) -> None:
    if not beside.is_file():
        raise CheckpointError(
            f"{path} cannot be read without {beside.name}, which is not beside it; copy or "
            "download it too."
        )


def _languages(path: Path, first: int, settings: Settings) -> Languages:
    """M2M100's: behind the ids of vocab.json."""
    listed = settings.options.get("language_codes", "m2m100")
    if listed not in _LISTS:
        raise CheckpointError(
            f"{path}: language_codes in tokenizer_config.json is {listed!r}, not one of "
            f"{', '.join(_LISTS)}."
        )
    ids = {code: first + i for i, code in enumerate(_LISTS[listed])}
    told = (settings.options.get(key) for key in ("src_lang", "tgt_lang"))
    return Languages(ids, "before", False, *told)


def _added(
    ids: Mapping[str, int], named: Mapping[str, str | AddedToken], settings: Settings,
    languages: Languages | None,
) -> tuple[dict[int, AddedToken], frozenset[int]]:  # fmt: skip
    """Added tokens by id, and which are special: what is not in the vocabulary follows it."""
    added, extra = dict(settings.added), settings.extra or ()
    codes = [] if languages is None else [f"__{code}__" for code in languages.ids]
    known = {token.content: i for i, token in added.items()}
    size = max(ids.values(), default=-1) + 1
    order = [*NAMED, *(key for key in named if key not in NAMED)]
    specials = [*(named[key] for key in order if key in named), *extra, *codes]
    for token in specials:
        if str(token) not in known:
            i = ids.get(str(token), max([size, *(found + 1 for found in added)]))
            known[str(token)] = i
            added[i] = (
                AddedToken(token, normalized=False, special=True)
                if isinstance(token, str)
                else token
            )
    special = {known[str(token)] for token in specials}
    return added, frozenset(special | {i for i, token in added.items() if token.special})
