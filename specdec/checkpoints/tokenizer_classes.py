"""The tokenizers that transformers' classes make of a vocabulary, beside T5's and GPT-2's.

The steps are those of ``GemmaTokenizer``, ``LlamaTokenizer``, ``Qwen2Tokenizer``,
``NllbTokenizer``, ``MBartTokenizer``, ``MBart50Tokenizer`` and ``PegasusTokenizer`` of transformers
5.24. Where it differs: of a SentencePiece model alone, NLLB's languages follow its pieces and
Pegasus' sentence mask comes first, as in the models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from specdec.checkpoints.byte_pieces import SPACE
from specdec.checkpoints.languages import MBART, MBART50, NLLB, Languages

GEMMA_CLASS, LLAMA_CLASS, QWEN_CLASS = "GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer"
NLLB_CLASS, PEGASUS_CLASS = "NllbTokenizer", "PegasusTokenizer"
MBART_CLASS, MBART50_CLASS = "MBartTokenizer", "MBart50Tokenizer"
_FAIRSEQ = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
    "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
# Special tokens where no file tells others.
SPECIAL: dict[str, dict[str, str]] = {
    GEMMA_CLASS: {
        "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    LLAMA_CLASS: {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    QWEN_CLASS: dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    NLLB_CLASS: _FAIRSEQ, MBART_CLASS: _FAIRSEQ, MBART50_CLASS: _FAIRSEQ,
    PEGASUS_CLASS: {
        "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask_2>",
    },
}  # fmt: skip
# What kind of model each has.
MODELS = {
    **dict.fromkeys((GEMMA_CLASS, LLAMA_CLASS, QWEN_CLASS, NLLB_CLASS), "BPE"),
    **dict.fromkeys((MBART_CLASS, MBART50_CLASS, PEGASUS_CLASS), "Unigram"),
}
# The languages of those that have some.
CODES = {NLLB_CLASS: NLLB, MBART_CLASS: MBART, MBART50_CLASS: MBART50}
_CODE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]+")
_MASKS = 103  # Tokens that Pegasus has before its pieces, where no file tells their number.
# How Qwen cuts a text into words.
_WORDS_OF_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(
    kind: str, vocab: Any, merges: list[Any], normalizer: Any, named: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Tokenizer:  # fmt: skip
    """What a class makes of a vocabulary, without its special tokens.

    Args:
      vocab: ids by piece, or pieces with scores, as :data:`MODELS` says.
      normalizer: SentencePiece's own; None where there is none.
      named: the special tokens.
      options: of tokenizer_config.json.
    """
    unknown = str(named["unk_token"])
    return _MAKERS[kind](vocab, merges, normalizer, unknown, options)


def _gemma(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = Tokenizer(
        models.BPE(vocab, merges, fuse_unk=True, unk_token=unknown, byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.normalizer = normalizers.Replace(" ", SPACE)
    return backend


def _llama(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = Tokenizer(models.BPE(vocab, merges, fuse_unk=True, byte_fallback=True))
    space = options.get("add_prefix_space", True)
    scheme = ("always" if options.get("legacy", False) else "first") if space else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, decoders.Strip(content=" ", left=1)] if space else steps
    )
    return backend


def _qwen(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = Tokenizer(
        models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="")
    )
    space = options.get("add_prefix_space", False)
    backend.decoder, backend.normalizer = decoders.ByteLevel(), normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS_OF_QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False),
        ]
    )
    return backend


def _nllb(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = _spaced(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True))
    if normalizer is not None:
        backend.normalizer = normalizers.Sequence([normalizer, _SINGLE_SPACES])
    return backend


def _mbart(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = _spaced(models.Unigram(vocab, 3, False))
    words: Any = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    return backend


def _mbart50(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    backend = _spaced(models.Unigram(vocab, 3, False))
    before = [] if normalizer is None else [normalizer]
    backend.normalizer = normalizers.Sequence([*before, _SINGLE_SPACES])
    return backend


def _pegasus(vocab: Any, merges: Any, normalizer: Any, unknown: str, options: Any) -> Tokenizer:
    index = [piece for piece, _ in vocab].index(unknown)
    backend = _spaced(models.Unigram(vocab, index, False))
    before = normalizers.Replace("\n", " ") if normalizer is None else normalizer
    backend.normalizer = normalizers.Sequence([before, _SINGLE_SPACES])
    return backend


def _spaced(model: Any) -> Tokenizer:
    """With a mark of a space before each word."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", split=True)
    backend.decoder = decoders.Metaspace(SPACE, "always", split=True)
    return backend


_SINGLE_SPACES = normalizers.Replace(Regex(" {2,}"), " ")
_MAKERS: dict[str, Callable[..., Tokenizer]] = {
    GEMMA_CLASS: _gemma, LLAMA_CLASS: _llama, QWEN_CLASS: _qwen, NLLB_CLASS: _nllb,
    MBART_CLASS: _mbart, MBART50_CLASS: _mbart50, PEGASUS_CLASS: _pegasus,
}  # fmt: skip


def of_pieces(
    kind: str, pieces: list[tuple[str, float]], named: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, list[tuple[str, str]]]:
    """The vocabulary and the merges of a SentencePiece model's pieces, as a class orders them."""

    def token(name: str) -> tuple[str, float]:
        return str(named[name]), 0.0

    if kind == PEGASUS_CLASS:
        count = options.get("offset", _MASKS)
        masks = [(options.get("mask_token_sent", "<mask_1>"), 0.0), token("mask_token")]
        filler = [(f"<unk_{i}>", -100.0) for i in range(2, count)]
        return [token("pad_token"), token("eos_token"), *masks, *filler, *pieces[2:]], []
    first = [token(name) for name in ("bos_token", "pad_token", "eos_token", "unk_token")]
    if kind != NLLB_CLASS:
        codes = [(code, 0.0) for code in CODES[kind]]
        return [*first, *pieces[3:], *codes, token("mask_token")], []
    names = dict.fromkeys(piece for piece, _ in [*first, *pieces])
    return {name: i for i, name in enumerate(names)}, _merges([piece for piece, _ in pieces])


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """Every pair of pieces whose text is a piece: those of earlier ones first."""
    ranks, found = {piece: rank for rank, piece in enumerate(pieces)}, []
    for piece, rank in ranks.items():
        for i in range(1, len(piece)):
            left, right = piece[:i], piece[i:]
            if left in ranks and right in ranks:
                order = (rank, len(left), len(right), ranks[left], ranks[right])
                found.append((order, (left, right)))
    return [merge for _, merge in sorted(found)]


def extra_tokens(kind: str, options: Mapping[str, Any]) -> list[str | AddedToken]:
    """Special tokens without a name of their own."""
    if kind == PEGASUS_CLASS:
        filler = (f"<unk_{i}>" for i in range(2, options.get("offset", _MASKS)))
        return [options.get("mask_token_sent", "<mask_1>"), *filler]
    return [*CODES.get(kind, ())]


def with_flags(kind: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens, of which a class takes some spaces away."""
    mask = named.get("mask_token")
    if kind in CODES and isinstance(mask, str):
        flags = {"normalized": True, "special": True} if kind == NLLB_CLASS else {}
        return {**named, "mask_token": AddedToken(mask, lstrip=True, **flags)}
    return dict(named)


def languages_of(kind: str, backend: Tokenizer, options: Mapping[str, Any]) -> Languages | None:
    """The languages of a tokenizer that is whole; None where it has none."""
    if kind not in CODES:
        return None
    added = backend.get_added_tokens_decoder().values()
    codes = {t.content for t in added if t.special and _CODE.fullmatch(t.content)}
    ids = {code: backend.token_to_id(code) for code in (*CODES[kind], *sorted(codes))}
    behind = kind == MBART_CLASS or options.get("legacy_behaviour", False)
    return Languages(
        {code: i for code, i in ids.items() if i is not None},
        "behind" if behind and kind != MBART50_CLASS else "before",
        kind == MBART_CLASS, options.get("src_lang"), options.get("tgt_lang"),
    )  # fmt: skip
