"""The tokenizer that transformers makes of a checkpoint's files, made without it.

The steps are those of transformers 5.24, which rebuilds a tokenizer from its vocabulary: of
tokenizer.json, ``T5Tokenizer``, ``GPT2Tokenizer`` and ``RobertaTokenizer`` take the vocabulary, the
merges and SentencePiece's normalizer, and no more. So the ids are the same. Where it differs:
unknown characters of a SentencePiece vocabulary have the id that the file gives them (not 2), and
pieces of bytes spell them where it has those.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
import reprlib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from specdec.checkpoints.byte_pieces import SPACE, BytePieces
from specdec.checkpoints.files import check_whole, read_json
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.tokenizer_settings import NAMED, Settings, check_ids, read_settings
from specdec.checkpoints.vocabulary_files import MERGES, TOKENIZER, TOKENIZER_CONFIG

T5_CLASS, _GPT2, _ROBERTA, _AS_IT_IS = "T5Tokenizer", "GPT2Tokenizer", "RobertaTokenizer", ""
# transformers' tokenizers of the architectures, where no file names one.
_REGISTERED = {"t5": T5_CLASS, "mt5": T5_CLASS, "umt5": _AS_IT_IS, "gpt2": _GPT2}
# Their special tokens, where no file tells others.
SPECIAL = {
    T5_CLASS: {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    _GPT2: dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
    _ROBERTA: {
        "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
    },
    _AS_IT_IS: {},
}  # fmt: skip
_MODELS = {T5_CLASS: "Unigram", _GPT2: "BPE", _ROBERTA: "BPE"}
MAX_EXTRA_IDS = 100  # T5's sentinels, <extra_id_0> ..., where no file tells their number.
_CONTROL, _DEFINED = 3, 4  # Types of pieces: control, and defined by the file's maker.


@dataclasses.dataclass(frozen=True)
class Opened:
    """A tokenizer, its special tokens by name, and how texts of its tokens are cleaned up."""

    backend: Tokenizer
    named: Mapping[str, str]
    cleans_up: bool  # Spaces before punctuation are taken away; see transformers.


def open_backend(path: Path, rows: int | None = None) -> Opened:
    """The tokenizer of tokenizer.json, vocab.json, encoder.json, or else of a SentencePiece model.

    Args:
      rows: of the model's embedding. A SentencePiece model has 100 sentinels, or as many as there
        are rows behind its pieces; without ``rows``, 100 if a checkpoint's config.json is beside
        it, else none. ``extra_ids`` in tokenizer_config.json overrides this.

    Raises:
      CheckpointError: one of the files that are read is damaged, or merges are missing.
    """
    check_whole(path)
    own = path.with_name(TOKENIZER)
    content = read_json(own) if own.is_file() else None
    if content is not None:
        _check_content(own, content)
    settings = read_settings(path.parent, content)
    with _reading(path):
        kind = _kind(path, content)
        named = SPECIAL[kind] | settings.named
        if path == own:
            assert content is not None
            opened = _from_json(kind, content, named, settings)
        elif path.name in MERGES:
            opened = _bpe(kind, *_merges_of(path), named, settings)
        else:
            opened = _from_pieces(path, named, settings, rows)
        opened.backend.encode("a \U0010fffd")  # What cannot be used is found here.
    _check_added(path, opened.backend, settings)
    return opened


def _kind(path: Path, content: Mapping[str, Any] | None) -> str:
    """transformers' class, as ``AutoTokenizer`` finds it; files without any are guessed by name."""
    config = path.with_name("config.json")
    told = read_json(config) if config.is_file() else {}
    beside = path.with_name(TOKENIZER_CONFIG)
    named = read_json(beside).get("tokenizer_class") if beside.is_file() else None
    named = named or told.get("tokenizer_class")
    registered = _REGISTERED.get(str(told.get("model_type")))
    if path.name in MERGES:
        if named in (_ROBERTA, _ROBERTA + "Fast"):
            return _ROBERTA
        known = named is not None or registered == _GPT2
        return _GPT2 if known else _guessed(read_json(path))
    if path.name != TOKENIZER:
        return T5_CLASS
    found = registered or _AS_IT_IS
    if named is not None and registered != _AS_IT_IS:
        found = str(named).removesuffix("Fast")
    model = (content or {})["model"].get("type")
    return found if _MODELS.get(found) == model else _AS_IT_IS


def _guessed(vocab: Mapping[str, Any]) -> str:
    return _ROBERTA if {"<s>", "</s>"} <= vocab.keys() else _GPT2


def _from_json(
    kind: str, content: Mapping[str, Any], named: Mapping[str, Any], settings: Settings
) -> Opened:
    # Found damaged here it is an error; the library would stop the process's thread with a trace.
    model, normalizer = content["model"], _normalizer(content.get("normalizer"))
    if kind == T5_CLASS:
        vocab = [(piece, score) for piece, score in model["vocab"]]
        spelt = model.get("byte_fallback", False)
        count = settings.options.get("extra_ids", MAX_EXTRA_IDS)
        more = settings.additional
        return _t5(vocab, model["unk_id"], spelt, normalizer, named, settings, more, count)
    text = json.dumps(content)
    if kind == _AS_IT_IS:
        return _finished(Tokenizer.from_str(text), named, settings, settings.additional)
    empty = {**content, "model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
    processor = Tokenizer.from_str(json.dumps(empty)).post_processor
    merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model.get("merges", ())]
    return _bpe(kind, model["vocab"], merges, named, settings, processor)


def _merges_of(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    check_ids(path, read_json(path))
    merges = path.with_name(MERGES[path.name])
    if not merges.is_file():
        raise CheckpointError(
            f"{path} cannot be read as a {path.name} ({merges.name} is not beside it); copy or "
            "download it too."
        )
    check_whole(merges)
    with _reading(merges):
        return models.BPE.read_file(str(path), str(merges))


def _bpe(
    kind: str, vocab: dict[str, int], merges: list[Any], named: Mapping[str, Any],
    settings: Settings, processor: Any = None,
) -> Opened:  # fmt: skip
    space = settings.options.get("add_prefix_space", False)
    backend = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    if processor is not None:
        backend.post_processor = processor
    opened = _finished(backend, named, settings, settings.additional)
    if kind == _ROBERTA:
        first, last = opened.named["cls_token"], opened.named["sep_token"]
        trims = settings.options.get("trim_offsets", True)
        backend.post_processor = processors.RobertaProcessing(
            (last, _id_of(backend, last)), (first, _id_of(backend, first)), trims, space
        )
    return opened


def _from_pieces(
    path: Path, named: Mapping[str, Any], settings: Settings, rows: int | None
) -> Opened:
    """Of a SentencePiece model, as T5 reads it: sentinels follow its pieces, the first one last."""
    proto = read_pieces(path)
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    count = settings.options.get("extra_ids")
    if count is None:
        among = any("<extra_id_" in piece for piece, _ in vocab)
        if rows is None:
            rows = len(vocab) + MAX_EXTRA_IDS * path.with_name("config.json").is_file()
        count = 0 if among else min(MAX_EXTRA_IDS, max(0, rows - len(vocab)))
    vocab += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(count))]
    whole: list[str | AddedToken] = [
        AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
        for piece in proto.pieces
        if piece.type in (_CONTROL, _DEFINED)
    ]
    trained, charsmap = proto.trainer_spec, proto.normalizer_spec.precompiled_charsmap
    normalizer = normalizers.Precompiled(charsmap) if charsmap else None
    fallback = trained.byte_fallback
    return _t5(vocab, trained.unk_id, fallback, normalizer, named, settings, whole, count)


def _t5(
    vocab: list[tuple[str, float]], unknown: int | None, spelt: bool, normalizer: Any,
    named: Mapping[str, Any], settings: Settings, additional: list[str | AddedToken] | None,
    count: int,
) -> Opened:  # fmt: skip
    sentinels = [f"<extra_id_{i}>" for i in range(count)]
    if not any("<extra_id_" in str(token) for token in additional or ()):
        additional = [*(additional or ()), *sentinels]
    backend = Tokenizer(models.Unigram(vocab, unknown, spelt))
    if normalizer is not None:
        backend.normalizer = normalizer
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    steps = [pre_tokenizers.WhitespaceSplit(), words]
    if spelt:  # A text's own "<0x41>" is not the piece of that byte.
        steps.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.decoder = decoders.Decoder.custom(BytePieces(spaces)) if spelt else spaces
    opened = _finished(backend, named, settings, additional)
    end = opened.named.get("eos_token")
    if end is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", "</s>"], special_tokens=[("</s>", _id_of(backend, end))]
        )
    return opened


def _finished(
    backend: Tokenizer, named: Mapping[str, Any], settings: Settings,
    additional: list[str | AddedToken] | None,
) -> Opened:  # fmt: skip
    """With its added and special tokens, as ``TokenizersBackend.__init__`` adds them."""
    options = settings.options
    backend.no_truncation()  # What the tokenizer would cut or pad, it would without a word.
    backend.no_padding()
    backend.encode_special_tokens = options.get("split_special_tokens", False)
    extra = (settings.extra if settings.extra is not None else additional) or []
    order = [*NAMED, *(key for key in named if key not in NAMED)]
    specials = [named[key] for key in order if named.get(key) is not None]
    tokens: list[Any] = [token for _, token in sorted(settings.added.items())]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in tokens}
    for token in (*specials, *extra):
        if str(token) not in known and token not in tokens:
            tokens.append(token)
    names = {key: str(named[key]) for key in order if named.get(key) is not None}
    for token in tokens:
        if isinstance(token, AddedToken) and token.content in names.values():
            token.special = True
    backend.add_tokens(
        [AddedToken(token, special=True) if isinstance(token, str) else token for token in tokens]
    )
    adds = {key: options[key] for key in ("add_bos_token", "add_eos_token") if key in options}
    if adds or backend.post_processor is None:
        first, last = (
            names.get(key) if adds.get(f"add_{key}") else None for key in ("bos_token", "eos_token")
        )
        around = [token for token in (first, last) if token is not None]
        backend.post_processor = processors.TemplateProcessing(
            single=[*([first] if first else []), "$A", *([last] if last else [])],
            special_tokens=[(token, _id_of(backend, token)) for token in dict.fromkeys(around)],
        )
    cleans = options.get("clean_up_tokenization_spaces", False)
    return Opened(backend, names, cleans and not isinstance(backend.model, models.BPE))


def _id_of(backend: Tokenizer, text: str) -> int:
    """The id of a special token, which is there once all are added."""
    found = backend.token_to_id(text)
    assert found is not None
    return found


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


def _normalizer(told: Any) -> Any:
    """SentencePiece's own normalization in a tokenizer.json, the only one that T5 takes."""
    given = told or {}
    listed = given["normalizers"] if given.get("type") == "Sequence" else [given]
    for each in listed:
        if each.get("type") == "Precompiled":
            charsmap = base64.b64decode(each["precompiled_charsmap"], validate=True)
            return normalizers.Precompiled(charsmap)
    return None


def _check_content(path: Path, content: Mapping[str, Any]) -> None:
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


def _check_added(path: Path, backend: Tokenizer, settings: Settings) -> None:
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
def _reading(path: Path) -> Iterator[None]:
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
