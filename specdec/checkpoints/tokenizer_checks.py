"""What a tokenizer's files must be: whole, and of one meaning."""

from __future__ import annotations

import contextlib
import math
import reprlib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specdec.checkpoints.files import check_whole
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.tokenizer_settings import Settings, check_ids


def read_pieces(path: Path) -> Any:
    """A SentencePiece model's message.

    Raises:
      CheckpointError: the file is none, or is damaged.
    """
    import sentencepiece
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    check_whole(path)
    content, messages = path.read_bytes(), sentencepiece_model_pb2
    try:
        sentencepiece.SentencePieceProcessor(model_proto=content)
        proto: Any = messages.ModelProto.FromString(content)  # pyright: ignore
        whole = proto.pieces and all(math.isfinite(piece.score) for piece in proto.pieces)
    except (RuntimeError, DecodeError):
        whole = False
    if not whole:
        raise CheckpointError(
            f"{path} is not a SentencePiece model that can be read; copy or download it again."
        )
    return proto


def check_content(path: Path, content: Mapping[str, Any]) -> None:
    """CheckpointError unless tokenizer.json's vocabulary is one."""

    def wrong(field: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"{path} cannot be read as a {path.name} ({field} is not {what}); copy or download it "
            "again."
        )

    model = content.get("model")
    if not isinstance(model, dict):
        raise wrong("model", "an object")
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        check_ids(path, vocab, "model.vocab")
    elif not isinstance(vocab, list):
        raise wrong("model.vocab", "an object or a list")
    else:
        for i, row in enumerate(vocab):
            pair = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)
            score = row[1] if pair else None
            if isinstance(score, bool) or not isinstance(score, int | float):
                raise wrong(f"model.vocab[{i}]", "a piece and its score")
    merges = model.get("merges") or []
    if not isinstance(merges, list):
        raise wrong("model.merges", "a list")
    for i, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or [type(part) for part in parts] != [str, str]:
            raise wrong(f"model.merges[{i}]", "two tokens")


def check_added(path: Path, backend: Tokenizer, settings: Settings) -> None:
    """CheckpointError unless added tokens have the ids that files tell."""
    for told, token in settings.added.items():
        found, text = backend.token_to_id(token.content), reprlib.repr(token.content)
        if found != told:
            raise CheckpointError(
                f"{path} and the files beside it give the added token {text} the id {told}, but "
                f"it gets {found}: ids of added tokens must follow those of the vocabulary, "
                "without gaps. Correct added_tokens.json, added_tokens_decoder in "
                "tokenizer_config.json or added_tokens in tokenizer.json, whichever tells it."
            )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever the library raises, Rust's panics too, as a CheckpointError that names the file."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = textwrap.shorten(str(error), 200)
        raise CheckpointError(
            f"{path} cannot be read as a {path.name} ({reason}); copy or download it again."
        ) from None
