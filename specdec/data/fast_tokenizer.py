"""Tokenizers of the ``tokenizers`` library: ``tokenizer.json``, and GPT-2's own two files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from specdec.data.vocabulary import EOS_ID, PAD_ID, UNK_ID, Tokenizer, Vocabulary, check_rows

FILE_NAME = "tokenizer.json"  # In which transformers 5 saves every tokenizer.
# Byte-level BPE as transformers and as OpenAI name its files: tokens and merges.
BPE_FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
_ENDS = ("<|endoftext|>", "[SEP]")  # GPT-2's, BERT's.


class FastTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` of T5's form, GPT-2's or BERT's.

    T5's has pad 0, EOS 1 and unknown 2. Of another form EOS is what ``eos_token`` in
    tokenizer_config.json beside the file says, or GPT-2's ``<|endoftext|>``, or BERT's ``[SEP]``.

    Args:
      path: tokenizer.json; or vocab.json or encoder.json, with merges.txt or vocab.bpe beside it.
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
        ids = tuple(map(self._model.token_to_id, ("<pad>", "</s>", "<unk>")))
        end = _end(self.path, self._model)
        if ids == (PAD_ID, EOS_ID, UNK_ID):
            self.eos_id, self._pad_id, self._unk_id = EOS_ID, PAD_ID, UNK_ID
        elif end is not None:
            self.eos_id = end
            self._pad_id, self._unk_id = map(self._model.token_to_id, ("[PAD]", "[UNK]"))
        else:
            raise ValueError(
                f"{path} has (pad, eos, unk) = {ids}; T5 wants {(PAD_ID, EOS_ID, UNK_ID)}. Of "
                f"another form it needs one of {', '.join(_ENDS)}, or eos_token in "
                "tokenizer_config.json beside it."
            )
        # What the tokenizer would cut or pad, it would without a word.
        self._model.no_truncation()
        self._model.no_padding()
        added = self._model.get_added_tokens_decoder()
        self._special = {token for token, text in added.items() if text.special}
        check_rows(self.path, len(self), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``, without EOS unless asked for."""
        ids = self._model.encode(text, add_special_tokens=False).ids
        return [*ids, self.eos_id] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown."""
        parts: list[list[int]] = [[]]
        for token in map(int, ids):
            if token == self.eos_id:
                break
            if token in self._special and token not in (self._pad_id, self._unk_id):
                parts += [[token], []]
            elif token < len(self) and token != self._pad_id:
                parts[-1].append(token)
            elif token >= len(self) and self._unk_id is not None:
                parts[-1].append(self._unk_id)
        texts = (self._model.decode(part, skip_special_tokens=False) for part in parts if part)
        return " ".join(filter(None, texts))


def open_tokenizer(path: str | os.PathLike, rows: int | None = None) -> Tokenizer:
    """A checkpoint's tokenizer, by its file's name; any other than these is a SentencePiece model.

    Raises:
      ValueError: see :class:`FastTokenizer` and :class:`~specdec.data.vocabulary.Vocabulary`.
    """
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
    model.add_special_tokens([end for end in _ENDS[:1] if model.token_to_id(end) is not None])
    return model


def _end(path: Path, model: Backend) -> int | None:
    """EOS of a tokenizer that is not of T5's form; None where nothing tells."""
    try:
        config = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
        told = config.get("eos_token")
        names = [told.get("content") if isinstance(told, dict) else told]
    except (OSError, ValueError, AttributeError):
        names = []
    found = (model.token_to_id(name) for name in (*names, *_ENDS) if isinstance(name, str))
    return next((token for token in found if token is not None), None)
