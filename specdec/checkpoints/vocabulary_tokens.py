"""Tokens by id: those of ByT5, and what differs between two vocabularies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tokenizers import AddedToken

from specdec.checkpoints.files import read_json
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.piece_ids import read_piece_ids
from specdec.checkpoints.tokenizer_backends import SPECIAL, T5_CLASS, open_backend
from specdec.checkpoints.tokenizer_settings import NAMED, Settings, read_settings
from specdec.checkpoints.vocabulary_files import (
    MERGES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    has_piece_ids,
)

BYTE_OFFSET = 3  # Byte b is ByT5's token b + 3.
_BYTE_IDS = 125  # ByT5's sentinels, where no file tells their number.


def byte_tokens(path: Path) -> tuple[dict[int, AddedToken], Settings]:
    """ByT5's tokens that are no bytes, by id, and its settings, of its tokenizer_config.json.

    As ``ByT5Tokenizer`` has them: pad 0, EOS 1, unknown 2, and from 259 on what else is special.

    Raises:
      CheckpointError: a file is damaged.
    """
    own = path.with_name(TOKENIZER)
    settings = read_settings(path.parent, read_json(own) if own.is_file() else None)
    named = SPECIAL[T5_CLASS] | settings.named
    order = [*NAMED, *(key for key in named if key not in NAMED)]
    named = {key: named[key] for key in order if named.get(key) is not None}
    added = {
        i: AddedToken(token, lstrip=True, rstrip=True) if isinstance(token, str) else token
        for i, key in enumerate(("pad_token", "eos_token", "unk_token"))
        for token in [named.get(key, SPECIAL[T5_CLASS][key])]
    } | settings.added
    sentinels = [f"<extra_id_{i}>" for i in range(settings.options.get("extra_ids", _BYTE_IDS))]
    extra = next(
        (told for told in (settings.extra, settings.additional) if told is not None), sentinels
    )
    ids = {chr(byte): byte + BYTE_OFFSET for byte in range(256)}
    for i, token in sorted(added.items()):
        ids[token.content] = i
    known = {token.content for token in added.values()}
    for text in map(str, (*named.values(), *extra)):
        if text and text not in known:
            known.add(text)
            token = ids.setdefault(text, len(ids))
            if token in added:
                raise CheckpointError(
                    f"{path} and the files beside it give {added[token].content!r} the id {token}, "
                    f"which {text!r} gets too. List all of them, the sentinels first, in "
                    "added_tokens_decoder of tokenizer_config.json."
                )
            added[token] = AddedToken(text, normalized=False, special=True)
    names = {key: str(token) for key, token in named.items()}
    return added, dataclasses.replace(settings, named=names)


def difference(ours: Path, theirs: Path) -> str | None:
    """What differs between the tokens of two vocabularies' files; None where they are the same.

    Two are the same if each id is the same text in both. Where no file gives the number of a
    SentencePiece model's sentinels, the model does, and they are not compared.

    Raises:
      CheckpointError: a file is damaged.
    """
    first, second = (_tokens_of(path) for path in (ours, theirs))
    untold = not (_tells_sentinels(ours) and _tells_sentinels(theirs))
    for text in sorted({text for text, _ in first.items() ^ second.items()}):
        if not (untold and text.startswith("<extra_id_")):
            told = (found.get(text, "not there") for found in (first, second))
            return f"token {text!r} is {next(told)} in the former and {next(told)} in the latter"
    return None


def _tokens_of(path: Path) -> dict[str, int]:
    if path.name == TOKENIZER_CONFIG:
        return {token.content: i for i, token in byte_tokens(path)[0].items()}
    if has_piece_ids(path):
        found = read_piece_ids(path)
        tokens = {**found.ids, **{token.content: i for i, token in found.added.items()}}
        if found.target_ids is not found.ids:
            tokens |= {f"{piece} of outputs": i for piece, i in found.target_ids.items()}
        return tokens
    return open_backend(path).backend.get_vocab()


def _tells_sentinels(path: Path) -> bool:
    if path.name in (TOKENIZER, TOKENIZER_CONFIG, *MERGES):
        return True
    return "extra_ids" in read_settings(path.parent, None).options
