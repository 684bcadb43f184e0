"""Tokenizers of Hugging Face checkpoints, as transformers' ``AutoTokenizer`` reads them.

It reads files alone: nothing is downloaded, and nothing that a file names is executed.
"""

from __future__ import annotations

import functools
import re
import reprlib
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from specdec.core.checkpoint_files import CheckpointError, check_whole, read_json
from specdec.rules.spelling import Finish, Spelling
from specdec.text.base import CLEAN_UP, SPACE, Languages, check_rows
from specdec.text.files import (
    BESIDE,
    FAIRSEQ_PIECES,
    FILES,
    LLAMA_PIECES,
    MERGES,
    SOURCE_PIECES,
    TARGET_PIECE_IDS,
    TARGET_PIECES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARIES,
    VOCABULARY,
    has_piece_ids,
)
from specdec.text.hf_library import config_object, library_errors
from specdec.text.pieces import spelling_of
from specdec.text.vocabulary import read_pieces

_CONFIG = "config.json"
# Whose texts end with EOS whatever their tokenizer puts behind them, as those of WordPiece do.
# Files without a config.json are a vocabulary to train with.
_ENDED = {"t5", "mt5", "umt5", "None"}
_ENDS = ("<|endoftext|>", "</s>", "[SEP]")  # GPT-2's, T5's and RoBERTa's, BERT's.
_PADS = ("<pad>", "[PAD]")
_SENTINEL = re.compile(r"<extra_id_\d+>")
_TRANSLATORS = {"NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer", "M2M100Tokenizer"}
_LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]+")
_BYTE_OFFSET = 3  # Byte b is ByT5's token b + 3.
_MOST_MADE = 10**5  # Tokens that a number in a file makes.
_STRIPPED = {"MarianTokenizer", "M2M100Tokenizer"}  # Their texts.
# transformers' names of the files that OpenAI and others name otherwise.
_NAMES = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}


class HuggingFaceTokenizer:
    """A :class:`~specdec.text.base.Tokenizer` with transformers' ids and texts.

    EOS is the tokenizer's ``eos_token``; where there is none, T5's ``</s>``, GPT-2's
    ``<|endoftext|>`` or BERT's ``[SEP]``. An encoder reads what the tokenizer puts around a text,
    such as RoBERTa's ``<s>`` or its language; T5's and what is trained here EOS in any case.
    Special tokens have no text, except for T5's sentinels.

    Args:
      path: a file of :data:`specdec.text.files.VOCABULARIES`; all of its directory's count.
      rows: of the model's embedding; None for any number. Added tokens may be beyond them, as a
        trimmed translator's languages are: these cannot be used.
      source_language: a text's, where there are languages; None for the one that the file names.

    Raises:
      ValueError: a file cannot be read, has no EOS, or has more pieces than there are rows; or the
        language is none or missing.
    """

    def __init__(self, path: Path, rows: int | None = None, source_language: str | None = None):
        self.path = path
        self._theirs = theirs = opened(path)
        # Of outputs, which have ids of their own in some Marians.
        self._tokens: Mapping[str, int] = (
            theirs.target_encoder if _apart(theirs) else theirs.get_vocab()
        )
        self._known = frozenset(self._tokens.values())
        self._size = 1 + max(self._known, default=-1)
        added = theirs.added_tokens_decoder.values()
        pieces = self._tokens.keys() - {token.content for token in added}
        check_rows(path, 1 + max((self._tokens[piece] for piece in pieces), default=-1), rows)
        ends = (self._tokens.get(token) for token in (str(theirs.eos_token), *_ENDS))
        end = next((token for token in ends if token is not None), None)
        if end is None:
            raise ValueError(
                f"{path} has no token that ends a text: it needs one of {', '.join(_ENDS)}, or "
                "eos_token in tokenizer_config.json beside it."
            )
        self.eos_id: int = end
        self._batched = theirs.backend_tokenizer.decode_batch if theirs.is_fast else None
        special = {token.content for token in added if token.special}
        special = special if theirs.is_fast else {*theirs.all_special_tokens}
        special = {token for token in special if not _SENTINEL.fullmatch(token)} | {*_PADS}
        self._hidden = {self._tokens[token] for token in special & self._tokens.keys()} | {end}
        cleans_up = theirs.clean_up_tokenization_spaces and not self._is(models.BPE)
        strips = type(theirs).__name__ in _STRIPPED
        self.finish = Finish(strips, CLEAN_UP if cleans_up else ())
        self.languages = _languages(theirs, path, rows)
        if self.languages is not None:
            theirs.src_lang = self.languages.code("source_language", source_language)
        ids, whole = self._ids("a"), self._ids("a", True)
        places = range(len(whole))
        before = next((i for i in places if whole[i : i + len(ids)] == ids), 0)
        self.start_ids, self.end_ids = tuple(whole[:before]), tuple(whole[before + len(ids) :])
        config = path.with_name(_CONFIG)
        model_type = str(read_json(config).get("model_type") if config.is_file() else None)
        ended = model_type in _ENDED or self._is(models.WordPiece)
        self._adds_end = ended and self.end_ids[-1:] != (end,)
        self.end_ids += (end,) * self._adds_end

    def __len__(self) -> int:
        return self._size

    def _is(self, kind: type) -> bool:
        return self._theirs.is_fast and isinstance(self._theirs.backend_tokenizer.model, kind)

    def _ids(self, text: str, special: bool = False) -> list[int]:
        return self._theirs.encode(text, add_special_tokens=special, verbose=False)

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it."""
        ids = self._ids(text, add_eos)
        ended = not (add_eos and self._adds_end) or ids[-1:] == [self.eos_id]
        return ids if ended else [*ids, self.eos_id]

    def _shown(self, ids: Iterable[int]) -> list[int]:
        return [i for i in map(int, ids) if i in self._known and i not in self._hidden]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; special tokens and ids past the end have none."""
        return self._theirs.decode(self._shown(ids))

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished."""
        return self._all_joined([[*ids]])[0]

    def _all_joined(self, rows: list[list[int]]) -> list[str]:
        shown = [*map(self._shown, rows)]
        if self._batched is not None:
            return self._batched(shown, skip_special_tokens=False)
        if not self.finish.strips:
            return [self._unfinished(ids) for ids in shown]
        # Behind the last token of a text stands one that is no space.
        letter = self._letter
        alone = self._unfinished(letter)
        tail = self._unfinished(letter * 2).removeprefix(alone)
        texts = (self._unfinished(ids + letter) for ids in shown)
        return ["" if text == alone else text.removesuffix(tail) for text in texts]

    def _unfinished(self, ids: list[int]) -> str:
        return self._theirs.decode(ids, clean_up_tokenization_spaces=False)

    @functools.cached_property
    def _letter(self) -> list[int]:
        """A token that shows more than spaces."""
        letters = (*self._ids("a")[-1:], *sorted(self._known - self._hidden))
        return [next((i for i in letters if self._unfinished([i]).strip()), letters[0])]

    def tokens(self) -> dict[str, int]:
        """The id of each token, by how the file writes it."""
        return tokens_of(self._theirs)

    def spelling(self, size: int) -> Spelling:
        """Spelling of the first ``size`` token ids."""
        if type(self._theirs).__name__ != "ByT5Tokenizer":
            letter = self._ids("a")[-1:]
            return spelling_of(
                size, self._tokens, self._all_joined, self.finish, letter[0] if letter else None
            )
        pieces = [text.encode("utf-8") for text in self._all_joined([[i] for i in range(size)])]
        for token in range(_BYTE_OFFSET, min(_BYTE_OFFSET + 256, size)):  # Alone it is no text.
            if token not in self._theirs.added_tokens_decoder:
                pieces[token] = bytes([token - _BYTE_OFFSET])
        return Spelling.of_bytes(pieces, "dropped", finish=self.finish)


def tokens_of(theirs: Any) -> dict[str, int]:
    """A tokenizer's tokens, and those of outputs where these have ids of their own."""
    outputs = theirs.target_encoder if _apart(theirs) else {}
    of_outputs = {f"{piece} of outputs": i for piece, i in outputs.items()}
    return {**theirs.get_vocab(), **of_outputs}


def _apart(theirs: Any) -> bool:
    return type(theirs).__name__ == "MarianTokenizer" and theirs.separate_vocabs


def _languages(theirs: Any, path: Path, rows: int | None) -> Languages | None:
    kind = type(theirs).__name__
    if kind not in _TRANSLATORS:
        return None
    ids = {} if kind == "NllbTokenizer" else dict(theirs.lang_code_to_id)
    ids |= {code: theirs.convert_tokens_to_ids(code) for code in _codes(theirs)}
    ids = {code: i for code, i in ids.items() if i != theirs.unk_token_id}
    beside = path.with_name(TOKENIZER_CONFIG)
    settings = read_json(beside) if beside.is_file() else {}
    return Languages(
        ids, kind == "MBartTokenizer", settings.get("src_lang"), settings.get("tgt_lang"), rows
    )


def _codes(theirs: Any) -> list[str]:
    """Special tokens that are languages."""
    return [*filter(_LANGUAGE.fullmatch, map(str, theirs.extra_special_tokens))]


def opened(path: Path) -> Any:
    """transformers' tokenizer of a file and those beside it.

    Raises:
      CheckpointError: one of them cannot be read, or transformers cannot make anything of them.
    """
    beside = (path.with_name(name) for name in (TOKENIZER_CONFIG, _CONFIG))
    settings, config = (read_json(file) if file.is_file() else {} for file in beside)
    _check_files(path, settings)
    with library_errors(path, _reason):
        if path.name in (*VOCABULARIES, TOKENIZER_CONFIG) and path.name not in _NAMES:
            theirs = _opened(path, settings, config)
        else:
            theirs = _renamed(path, settings, config)
        if type(theirs).__name__ == "T5Tokenizer":
            _spell_unknown(theirs)
        theirs.encode("a \U0010fffd", verbose=False)  # A tokenizer that cannot be used fails here.
    _check_added(path, theirs)
    return theirs


def _check_files(path: Path, settings: Mapping[str, Any]) -> None:
    """CheckpointError unless a vocabulary's file and those beside it are there and whole."""
    for file in {path, *map(path.with_name, FILES)}:
        if file.exists() or file == path:
            check_whole(file)
            if file.suffix in (".model", ".spm"):
                read_pieces(file)
    beside = [MERGES.get(path.name, path.name)]
    if has_piece_ids(path):
        separate = settings.get("separate_vocabs") is True
        of_outputs = (TARGET_PIECES, TARGET_PIECE_IDS)[: 1 + separate]
        beside = of_outputs if path.with_name(SOURCE_PIECES).is_file() else []
    for name in beside:
        if not path.with_name(name).is_file():
            raise CheckpointError(
                f"{path} cannot be read without {name}, which is not beside it; copy or "
                "download it too."
            )
    for field in ("extra_ids", "offset"):
        if type(value := settings.get(field, 0)) is not int or not 0 <= value <= _MOST_MADE:
            raise CheckpointError(
                f"{path.with_name(TOKENIZER_CONFIG)}: {field} is {reprlib.repr(value)}, not a "
                f"number of tokens, at most {_MOST_MADE}; correct it."
            )


def _check_added(path: Path, theirs: Any) -> None:
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


def _opened(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    model_type = str(config.get("model_type"))
    registered = TOKENIZER_MAPPING_NAMES.get(model_type)
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    sized = path.name != VOCABULARY or "extra_ids" in settings
    if not sized and b"<extra_id_0>" in path.read_bytes():
        options["extra_ids"] = 0  # Sentinels are among the pieces.
    # WordPieces that were trained here are no class's. Of a UMT5, tokenizer.json alone is read.
    trained_here = path.name == TOKENIZER and b'"WordPiece"' in path.read_bytes()
    if (
        (not named and (trained_here or "model_type" not in config))
        or (path.name == VOCABULARY and registered == "TokenizersBackend")
    ):  # fmt: skip
        return getattr(transformers, _guessed(path)).from_pretrained(path.parent, **options)
    if not config:
        options["config"] = transformers.PreTrainedConfig()
    elif model_type in CONFIG_MAPPING:
        options["config"] = config_object(model_type, config, path.with_name(_CONFIG))
        options["config"].name_or_path = str(path.parent)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    if type(theirs).__name__ == "NllbTokenizer" and not _codes(theirs):
        # SentencePiece's model has none. They follow its pieces, and <mask> is last, as in models.
        from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

        mask = AddedToken("<mask>", lstrip=True, special=True)
        options |= {"mask_token": None, "extra_special_tokens": [*FAIRSEQ_LANGUAGE_CODES, mask]}
        return transformers.NllbTokenizer.from_pretrained(path.parent, **options)
    return theirs


def _renamed(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Open files that have other names than transformers knows."""
    known = {path.name: VOCABULARY} | {name: name for name in (_CONFIG, *BESIDE)}
    known |= _NAMES if path.name in _NAMES else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in known:
            if path.with_name(name).is_file():
                (Path(folder) / known[name]).symlink_to(path.with_name(name).absolute())
        return _opened(Path(folder) / known[path.name], settings, config)


def _guessed(path: Path) -> str:
    """The class of files that name none and belong to no model."""
    if path.name == TOKENIZER:
        return "PreTrainedTokenizerFast"
    if has_piece_ids(path):
        return "MarianTokenizer" if path.with_name(SOURCE_PIECES).is_file() else "M2M100Tokenizer"
    if path.name in MERGES:
        return "RobertaTokenizer" if {"<s>", "</s>"} <= read_json(path).keys() else "GPT2Tokenizer"
    if path.name == FAIRSEQ_PIECES:
        raise CheckpointError(
            f"{path}: nothing beside it says whose pieces they are. tokenizer_class in "
            f"{TOKENIZER_CONFIG} must be one of {', '.join(sorted(_TRANSLATORS))}; an "
            "M2M100Tokenizer needs vocab.json, too."
        )
    return "LlamaTokenizer" if path.name == LLAMA_PIECES else "T5Tokenizer"


def _spell_unknown(theirs: Any) -> None:
    """Gives a T5's tokenizer its vocabulary's own unknown token, and its pieces of bytes.

    transformers takes token 2 for it, which is EOS in some, and leaves such pieces out.
    """
    scores, backend = theirs._vocab_scores, theirs.backend_tokenizer
    ids = {piece: i for i, (piece, _) in enumerate(scores)}
    unknown, spelt = ids.get(str(theirs.unk_token), 2), "<0x00>" in ids
    if spelt or unknown != 2:
        backend.model = models.Unigram(scores, unknown, spelt)
    if spelt:
        words = pre_tokenizers.Metaspace(SPACE, "always", split=True)
        # A text's own "<0x41>" is not the piece of that byte.
        own = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), words, own]
        )
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])


def _reason(error: BaseException) -> str:
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", 250)
    return (
        f" cannot be read by transformers, with the files beside it ({reason}); copy or download "
        "them again."
    )
