"""The tokenizer that transformers makes of a checkpoint's files, made without it.

The steps are those of transformers 5.24, which rebuilds a tokenizer from its vocabulary: of
tokenizer.json, ``T5Tokenizer``, ``GPT2Tokenizer`` and ``RobertaTokenizer`` take the vocabulary, the
merges and SentencePiece's normalizer, and no more. So the ids are the same. Where it differs:
unknown characters of a SentencePiece vocabulary have the id that the file gives them (not 2), and
pieces of bytes spell them where it has those.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
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

from specdec.checkpoints import tokenizer_classes
from specdec.checkpoints.byte_pieces import SPACE, BytePieces
from specdec.checkpoints.families import FAMILIES
from specdec.checkpoints.files import check_whole, read_json
from specdec.checkpoints.languages import Languages
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.tokenizer_checks import check_added, check_content, read_pieces, reading
from specdec.checkpoints.tokenizer_settings import NAMED, Settings, check_ids, read_settings
from specdec.checkpoints.vocabulary_files import (
    FAIRSEQ_PIECES,
    MERGES,
    TOKENIZER,
    TOKENIZER_CONFIG,
)

T5_CLASS, _GPT2, _ROBERTA, _AS_IT_IS = "T5Tokenizer", "GPT2Tokenizer", "RobertaTokenizer", ""
# transformers' tokenizers of the model types, where no file names one.
_REGISTERED = {name: kind for each in FAMILIES.values() for name, kind in each.tokenizers.items()}
# Whose class is this one, whatever a file says.
_ALWAYS = {"umt5", "qwen2"}
_SAME = {"BartTokenizer": _ROBERTA}
# Whose texts end with EOS whatever their tokenizer puts behind them, and whose special tokens, such
# as sentinels, are text: T5 and GPT-2. Files without a config.json are theirs.
_AS_T5 = {"t5", "mt5", "umt5", "gpt2", "None"}
# Their special tokens, where no file tells others.
SPECIAL = {
    T5_CLASS: {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    _GPT2: dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
    _ROBERTA: {
        "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
    },
    _AS_IT_IS: {},
    **tokenizer_classes.SPECIAL,
}  # fmt: skip
_MODELS = {T5_CLASS: "Unigram", _GPT2: "BPE", _ROBERTA: "BPE", **tokenizer_classes.MODELS}
MAX_EXTRA_IDS = 100  # T5's sentinels, <extra_id_0> ..., where no file tells their number.
_CONTROL, _DEFINED = 3, 4  # Types of pieces: control, and defined by the file's maker.


@dataclasses.dataclass(frozen=True)
class Opened:
    """A tokenizer, its special tokens by name, and how its texts are made.

    Attributes:
      cleans_up: spaces before punctuation are taken away; see transformers.
      as_t5: an encoder's texts end with EOS whatever the tokenizer puts behind them, and special
        tokens, such as sentinels, are text.
      languages: None where there are none.
    """

    backend: Tokenizer
    named: Mapping[str, str]
    cleans_up: bool
    as_t5: bool = True
    languages: Languages | None = None


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
        check_content(own, content)
    settings = read_settings(path.parent, content)
    with reading(path):
        kind, model_type = _kind(path, content)
        named = tokenizer_classes.with_flags(kind, SPECIAL[kind] | settings.named)
        if path == own:
            assert content is not None
            opened = _from_json(kind, content, named, settings)
        elif path.name in MERGES:
            vocab, merges = _merges_of(path)
            if kind == tokenizer_classes.QWEN_CLASS:
                opened = _of_class(kind, vocab, merges, None, named, settings)
            else:
                opened = _bpe(kind, vocab, merges, named, settings)
        elif kind == T5_CLASS:
            opened = _from_pieces(path, named, settings, rows)
        else:
            opened = _from_fairseq_pieces(kind, path, named, settings)
        opened.backend.encode("a \U0010fffd")  # What cannot be used is found here.
    check_added(path, opened.backend, settings)
    languages = tokenizer_classes.languages_of(kind, opened.backend, settings.options)
    return dataclasses.replace(opened, as_t5=model_type in _AS_T5, languages=languages)


def _kind(path: Path, content: Mapping[str, Any] | None) -> tuple[str, str]:
    """transformers' class, as ``AutoTokenizer`` finds it, and the model's type.

    Files without any class are guessed by name.
    """
    config = path.with_name("config.json")
    told = read_json(config) if config.is_file() else {}
    beside = path.with_name(TOKENIZER_CONFIG)
    named = read_json(beside).get("tokenizer_class") if beside.is_file() else None
    named = named or told.get("tokenizer_class")
    model_type = str(told.get("model_type"))
    registered = _REGISTERED.get(model_type)
    found = registered or _AS_IT_IS
    if named is not None and model_type not in _ALWAYS:
        found = str(named).removesuffix("Fast")
        found = _SAME.get(found, found)
    if path.name in MERGES:
        if found in (_ROBERTA, tokenizer_classes.QWEN_CLASS):
            return found, model_type
        known = named is not None or registered == _GPT2
        return _GPT2 if known else _guessed(read_json(path)), model_type
    if path.name == FAIRSEQ_PIECES:
        if found not in tokenizer_classes.CODES:
            raise CheckpointError(
                f"{path}: nothing beside it says whose pieces they are. tokenizer_class in "
                f"{TOKENIZER_CONFIG} must be one of {', '.join(tokenizer_classes.CODES)}; an "
                "M2M100Tokenizer needs vocab.json, too."
            )
        return found, model_type
    if path.name != TOKENIZER:
        pegasus = found == tokenizer_classes.PEGASUS_CLASS
        return found if pegasus else T5_CLASS, model_type
    content = content or {}
    if found == tokenizer_classes.LLAMA_CLASS and "ByteLevel" in str(content.get("pre_tokenizer")):
        found = _AS_IT_IS  # Llama 3's: the class is Llama 2's.
    return found if _MODELS.get(found) == content["model"].get("type") else _AS_IT_IS, model_type


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
    if _MODELS[kind] == "Unigram":
        vocab = [(piece, score) for piece, score in model["vocab"]]
        return _of_class(kind, vocab, [], normalizer, named, settings)
    empty = {**content, "model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
    processor = Tokenizer.from_str(json.dumps(empty)).post_processor
    merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model.get("merges", ())]
    if kind in tokenizer_classes.MODELS:
        return _of_class(kind, model["vocab"], merges, normalizer, named, settings, processor)
    return _bpe(kind, model["vocab"], merges, named, settings, processor)


def _of_class(
    kind: str, vocab: Any, merges: list[Any], normalizer: Any, named: Mapping[str, Any],
    settings: Settings, processor: Any = None,
) -> Opened:  # fmt: skip
    """By :mod:`specdec.checkpoints.tokenizer_classes`."""
    options = settings.options
    backend = tokenizer_classes.tokenizer_of(kind, vocab, merges, normalizer, named, options)
    if processor is not None:
        backend.post_processor = processor
    more = tokenizer_classes.extra_tokens(kind, options)
    opened = _finished(backend, named, settings, more)
    if kind == tokenizer_classes.PEGASUS_CLASS or kind in tokenizer_classes.CODES:
        end = opened.named["eos_token"]
        # Without the language of a text, which is not known here.
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", end], special_tokens=[(end, _id_of(backend, end))]
        )
    return opened


def _merges_of(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    check_ids(path, read_json(path))
    merges = path.with_name(MERGES[path.name])
    if not merges.is_file():
        raise CheckpointError(
            f"{path} cannot be read as a {path.name} ({merges.name} is not beside it); copy or "
            "download it too."
        )
    check_whole(merges)
    with reading(merges):
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
    trained = proto.trainer_spec
    fallback, normalizer = trained.byte_fallback, _normalizer_of(proto)
    return _t5(vocab, trained.unk_id, fallback, normalizer, named, settings, whole, count)


def _from_fairseq_pieces(
    kind: str, path: Path, named: Mapping[str, Any], settings: Settings
) -> Opened:
    """Of a SentencePiece model whose pieces have other ids than in the file."""
    proto = read_pieces(path)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    vocab, merges = tokenizer_classes.of_pieces(kind, pieces, named, settings.options)
    if kind == tokenizer_classes.NLLB_CLASS and not settings.added:
        codes = enumerate(tokenizer_classes.CODES[kind], start=len(vocab))
        added = {i: AddedToken(code, special=True) for i, code in codes}
        settings = dataclasses.replace(settings, added=added)
    return _of_class(kind, vocab, merges, _normalizer_of(proto), named, settings)


def _normalizer_of(proto: Any) -> Any:
    """A SentencePiece model's own normalization."""
    charsmap = proto.normalizer_spec.precompiled_charsmap
    return normalizers.Precompiled(charsmap) if charsmap else None


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


def _normalizer(told: Any) -> Any:
    """SentencePiece's own normalization in a tokenizer.json, the only one that T5 takes."""
    given = told or {}
    listed = given["normalizers"] if given.get("type") == "Sequence" else [given]
    for each in listed:
        if each.get("type") == "Precompiled":
            charsmap = base64.b64decode(each["precompiled_charsmap"], validate=True)
            return normalizers.Precompiled(charsmap)
    return None
