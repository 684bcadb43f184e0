"""Tokenizers of the ``tokenizers`` library: ``tokenizer.json``, and GPT-2's own two files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from specdec.data import byte_tokenizer
from specdec.data.vocabulary import Tokenizer, Vocabulary, check_rows

FILE_NAME = "tokenizer.json"  # In which transformers 5 saves every tokenizer.
# Byte-level BPE as transformers and as OpenAI name its files: tokens and merges.
BPE_FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
_ENDS = ("<|endoftext|>", "</s>", "[SEP]")  # GPT-2's, T5's and RoBERTa's, BERT's.
_ROBERTA = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")  # Its special tokens.


class FastTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` of T5's form, RoBERTa's, GPT-2's or BERT's.

    EOS is what ``eos_token`` in tokenizer_config.json beside the file says; else T5's ``</s>``,
    GPT-2's ``<|endoftext|>`` or BERT's ``[SEP]``. What the tokenizer puts around a text, such as
    RoBERTa's ``<s>``, an encoder reads too.

    Args:
      path: tokenizer.json; or vocab.json or encoder.json, with merges.txt or vocab.bpe beside it.
        Tokens that were added to the former are in added_tokens.json.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: a file cannot be read, has no such EOS, or has more tokens than there are rows.
    """

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        try:
            self._model = _backend(self.path)
        except Exception as error:  # The library raises this type itself.
            raise ValueError(f"{path} cannot be read as a {self.path.name} ({error}).") from None
        self.eos_id, pad, self._unk_id = (
            _find(self.path, self._model, name, usual)
            for name, usual in (
                ("eos_token", _ENDS), ("pad_token", ("<pad>", "[PAD]")),
                ("unk_token", ("<unk>", "[UNK]")),
            )
        )  # fmt: skip
        if self.eos_id is None:
            raise ValueError(
                f"{path} has no token that ends a text: it needs one of {', '.join(_ENDS)}, or "
                "eos_token in tokenizer_config.json beside it."
            )
        # What the tokenizer would cut or pad, it would without a word.
        self._model.no_truncation()
        self._model.no_padding()
        added = self._model.get_added_tokens_decoder()
        self._special = {token for token, text in added.items() if text.special}
        around = self._model.encode("").ids
        first = self._model.encode("a", add_special_tokens=False).ids[:1]
        text = self._model.encode("a").ids
        self.start_ids = tuple(text[: text.index(first[0])] if first else around)
        self._ends_texts = around[-1:] == [self.eos_id]
        self._no_text = {pad, *around}
        # Where tokens of bytes have all spaces, none is put beside special ones.
        self._between = "" if isinstance(self._model.decoder, decoders.ByteLevel) else " "
        check_rows(self.path, len(self), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it, EOS last."""
        ids = self._model.encode(text, add_special_tokens=add_eos).ids
        return [*ids, self.eos_id] if add_eos and not self._ends_texts else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown."""
        parts: list[list[int]] = [[]]
        for token in map(int, ids):
            if token == self.eos_id:
                break
            if token in self._no_text:
                continue
            if token in self._special and token != self._unk_id:
                parts += [[token], []]
            elif token < len(self):
                parts[-1].append(token)
            elif self._unk_id is not None:
                parts[-1].append(self._unk_id)
        texts = (self._model.decode(part, skip_special_tokens=False) for part in parts if part)
        return self._between.join(filter(None, texts))


def open_tokenizer(path: str | os.PathLike, rows: int | None = None) -> Tokenizer:
    """A checkpoint's tokenizer, by its file's name; any other than these is a SentencePiece model.

    Raises:
      ValueError: see :class:`FastTokenizer`, :class:`~specdec.data.vocabulary.Vocabulary` and
        :class:`~specdec.data.byte_tokenizer.ByteTokenizer`.
    """
    if Path(path).name == byte_tokenizer.FILE_NAME:
        return byte_tokenizer.ByteTokenizer(path, rows)
    fast = Path(path).name in (FILE_NAME, *BPE_FILES)
    return (FastTokenizer if fast else Vocabulary)(path, rows)


def _backend(path: Path) -> Backend:
    if path.name not in BPE_FILES:
        return Backend.from_file(str(path))
    merges = path.with_name(BPE_FILES[path.name])
    if not merges.is_file():
        raise FileNotFoundError(f"{merges.name} is not beside it")
    model = Backend(models.BPE.from_file(str(path), str(merges)))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    start, end = (model.token_to_id(name) for name in _ROBERTA[:2])
    special = _ENDS[:1]
    if start is not None and end is not None:
        special = _ROBERTA
        model.post_processor = processors.RobertaProcessing(
            (_ROBERTA[1], end), (_ROBERTA[0], start), trim_offsets=False, add_prefix_space=False
        )
    model.add_special_tokens([name for name in special if model.token_to_id(name) is not None])
    added = path.with_name("added_tokens.json")
    if added.is_file():
        ids = json.loads(added.read_text(encoding="utf-8"))
        model.add_special_tokens(sorted(ids, key=ids.__getitem__))
    return model


def _find(path: Path, model: Backend, kind: str, usual: tuple[str, ...]) -> Any:
    """A special token's id, as tokenizer_config.json or else usage names it; None without one."""
    try:
        config = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
        told = config.get(kind)
        names = [told.get("content") if isinstance(told, dict) else told]
    except (OSError, ValueError, AttributeError):
        names = []
    found = (model.token_to_id(name) for name in (*names, *usual) if isinstance(name, str))
    return next((token for token in found if token is not None), None)
