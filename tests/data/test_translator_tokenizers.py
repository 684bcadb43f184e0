"""Tokenizers of translators, summarizers and decoders: ids and texts of transformers."""

import json
import warnings

import pytest
from small_vocabularies import (
    BYTES,
    LINES,
    NLLB,
    train_model,
    write_json,
    write_m2m100,
    write_marian,
    write_nllb,
)

from specdec.checkpoints import find_vocabulary
from specdec.text.files import copy_vocabulary
from specdec.text.opening import difference, open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "a<=5", "The fox", " the dog\n\njumps", "naïve 日本 🙂", "", " ", " \n ", "  two  spaces ",
    "a</s>b <pad> c <unk>", "<extra_id_0>. The", "<s> <mask> x", "x<mask>", "<bos>a <eos>",
    "\x00a\x1f\x7f\x9b\u202eb", "e\u0301 ﬁ ½ Ⅷ \u0301x", "\t tab\r\nnl ", "שלום עולם مرحبا",
    "👨‍👩‍👧‍👦 🏳️‍🌈", "fox" * 50, "ＦＵＬＬ Ｆｕｌｌ Full full", "▁a ▁▁b", "<0x41>",
    "word  \n\n  word",
    "\ufeffbom\u00a0nb\u3000id\u2028ls\u200b", "don't , . ! ? 's", "İ ǅ ß", ">>fra<< The dog",
    "The >>fra<< dog", ">>xyz<<x", ">>fra", "eng_Latn a fra_Latn", "en_XX a ro_RO b",
    "__en__ a __fr__", "<unk_5> a", "<|endoftext|> a<|endoftext|>", "12345 1,000",
    "<|begin_of_text|>x<|eot_id|>", "<start_of_turn>user\nx",
]  # fmt: skip


def check(directory, theirs, texts=TEXTS, outputs=False, **language):
    """Ids of texts, and the texts of ids and of the same ids backwards."""
    ours = open_tokenizer(find_vocabulary(directory), 10**4, **language)
    listed = getattr(theirs, "target_encoder", theirs)
    assert len(ours) == len(listed)
    assert ours.eos_id == theirs.eos_token_id
    for text in texts:
        ids = theirs(text).input_ids
        assert ours.encode(text, add_eos=True) == ids, text
        assert [*ours.start_ids, *ours.encode(text), *ours.end_ids] == ids, text
        if outputs:
            ids = theirs(text_target=text).input_ids
        for each in (ids, ids[::-1]):
            assert ours.decode(each) == theirs.decode(each, skip_special_tokens=True), text
    return ours


def auto(directory, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return transformers.AutoTokenizer.from_pretrained(directory, **options)


def saved(directory, theirs, model_type):
    """A directory with what transformers saves of a tokenizer."""
    theirs.save_pretrained(directory)
    write_json(directory / "config.json", {"model_type": model_type})
    return directory


@pytest.mark.parametrize("apart", [False, True])
def test_marian(tmp_path, apart):
    """A text is cut by source.spm; ids are vocab.json's, and outputs' may be others."""
    write_json(tmp_path / "config.json", {"model_type": "marian"})
    write_marian(tmp_path, apart)
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs, outputs=True)
    code = ours.encode(">>fra<<")[0]
    assert ours.encode(">>fra<< The dog")[0] == code
    assert code not in ours.encode("The dog >>fra<<")
    unknown = theirs.unk_token_id
    assert unknown in ours.encode("fox")
    assert ours.encode(">>xyz<<")[0] == unknown
    check(saved(tmp_path / "again", theirs, "marian"), theirs, outputs=True)


def test_m2m100(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "m2m_100"})
    write_m2m100(tmp_path)
    theirs = auto(tmp_path, src_lang="fr")
    ours = check(tmp_path, theirs, source_language="fr")
    assert ours.encode("a", add_eos=True)[0] == theirs.get_lang_id("fr")
    check(saved(tmp_path / "again", theirs, "m2m_100"), theirs, source_language="fr")


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb(tmp_path, legacy):
    """Languages are before a text, or behind it as in older versions."""
    write_nllb(transformers, tmp_path, legacy_behaviour=legacy)
    write_json(tmp_path / "config.json", {"model_type": "m2m_100"})
    theirs = auto(tmp_path, src_lang="zho_Hans")
    ours = check(tmp_path, theirs, source_language="zho_Hans")
    code = theirs.convert_tokens_to_ids("zho_Hans")
    ids = ours.encode("a", add_eos=True)
    assert ids[-2:] == [2, code] if legacy else (ids[0], ids[-1]) == (code, 2)
    assert set(ours.languages.ids) == set(NLLB)


def test_nllb_of_its_pieces_alone(tmp_path):
    """Its languages follow the pieces, as in the public checkpoints; <mask> is the last token."""
    train_model(tmp_path / "sentencepiece.bpe.model", "bpe")
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer"})
    other = tmp_path / "saved"
    other.mkdir()
    size = write_nllb(transformers, other)
    write_json(other / "config.json", {"model_type": "m2m_100"})
    ours = open_tokenizer(find_vocabulary(tmp_path), source_language="ace_Arab")
    whole = open_tokenizer(find_vocabulary(other), source_language="ace_Arab")
    assert len(ours) == len(whole) == size
    assert ours.languages.ids["ace_Arab"] == size - 1 - len(NLLB)
    for text in TEXTS:
        if "<mask>" not in text and "_Latn" not in text:
            assert ours.encode(text) == whole.encode(text)


@pytest.mark.parametrize("kind", ["MBartTokenizer", "MBart50Tokenizer"])
def test_mbart(tmp_path, kind):
    write_json(tmp_path / "config.json", {"model_type": "mbart"})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": kind})
    train_model(tmp_path / "sentencepiece.bpe.model")
    theirs = auto(tmp_path, src_lang="ro_RO")
    ours = check(tmp_path, theirs, source_language="ro_RO")
    code, ids = theirs.convert_tokens_to_ids("ro_RO"), ours.encode("a", add_eos=True)
    assert (ids[-2:] if kind == "MBartTokenizer" else [ids[-1], ids[0]]) == [2, code]
    check(saved(tmp_path / "again", theirs, "mbart"), theirs, source_language="ro_RO")


@pytest.mark.parametrize("told", [False, True])
def test_pegasus(tmp_path, told):
    """103 tokens stand before the pieces."""
    write_json(tmp_path / "config.json", {"model_type": "pegasus"})
    if told:
        names = {"mask_token": "<mask_2>", "mask_token_sent": "<mask_1>", "offset": 103}
        write_json(
            tmp_path / "tokenizer_config.json", {"tokenizer_class": "PegasusTokenizer", **names}
        )
    train_model(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    assert min(ours.encode("The fox")) > 103
    # transformers exchanges them where a file tells their names.
    assert ours.encode("<mask_1><mask_2>") == [2, 3]
    theirs.save_pretrained(tmp_path / "again")
    write_json(tmp_path / "again/config.json", {"model_type": "pegasus"})
    check(tmp_path / "again", theirs, [*TEXTS, "<mask_1> a <mask_2>"])


def test_bart(tmp_path):
    """Around a text stand <s> and </s>, and no special token is text."""
    write_json(tmp_path / "config.json", {"model_type": "bart"})
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(LINES, 320, special_tokens=special, show_progress=False)
    trained.save_model(str(tmp_path))
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    assert (ours.start_ids, ours.end_ids) == ((0,), (2,))
    check(saved(tmp_path / "again", theirs, "bart"), theirs)


def pieces_of_bytes(special, **options):
    """A BPE whose unknown characters are bytes, with their pieces no tokens of a text."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*special, *BYTES], show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )  # fmt: skip
    start = special[2] if "<bos>" in special else "<s>"
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, special.index(start))]
    )
    content = json.loads(backend.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] not in BYTES
    ]
    return content


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "t5gemma", "t5gemma2"])
def test_gemma(tmp_path, model_type):
    """BOS is before a text, and nothing behind it, for an encoder too."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>"]
    write_json(tmp_path / "config.json", {"model_type": model_type})
    write_json(tmp_path / "tokenizer.json", pieces_of_bytes(special))
    named = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}
    write_json(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False}
        | named,
    )
    ours = check(tmp_path, auto(tmp_path))
    assert (ours.start_ids, ours.end_ids) == ((2,), ())


@pytest.mark.parametrize("legacy", [None, True, False])
def test_llama_2(tmp_path, legacy):
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    write_json(tmp_path / "tokenizer.json", pieces_of_bytes(["<unk>", "<s>", "</s>"]))
    write_json(
        tmp_path / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "legacy": legacy}
    )
    assert check(tmp_path, auto(tmp_path)).start_ids == (1,)


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("llama", "PreTrainedTokenizerFast"), ("llama", "LlamaTokenizer"),
        ("qwen2", "Qwen2Tokenizer"), ("qwen2", "PreTrainedTokenizerFast"),
        ("qwen3", "Qwen2TokenizerFast"), ("qwen3", "PreTrainedTokenizerFast"),
    ],
)  # fmt: skip
def test_bytes_of_llama_3_and_qwen(tmp_path, model_type, kind):
    """What the file puts before a text is what stands there; nothing is behind it."""
    pre, processors = tokenizers.pre_tokenizers, tokenizers.processors
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    words = tokenizers.Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s]")
    backend.pre_tokenizer = pre.Sequence(
        [pre.Split(words, "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|endoftext|>", "<|eot_id|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(LINES, trainer)
    starts = model_type == "llama"
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    if starts:
        template = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
        )
        backend.post_processor = processors.Sequence([backend.post_processor, template])
    backend.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "config.json", {"model_type": model_type})
    write_json(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": kind, "eos_token": special[1], "clean_up_tokenization_spaces": starts}
        | ({"bos_token": special[0]} if starts else {}),
    )
    ours = check(tmp_path, auto(tmp_path))
    assert (ours.start_ids, ours.end_ids) == ((0,) if starts else (), ())


# Files


@pytest.mark.parametrize("kind", ["marian", "m2m100", "pieces"])
def test_all_files_go_with_a_vocabulary(tmp_path, kind):
    made, copied = tmp_path / "made", tmp_path / "copied"
    made.mkdir(), copied.mkdir()
    if kind == "marian":
        write_marian(made, apart=True)
    elif kind == "m2m100":
        write_m2m100(made)
    else:
        train_model(made / "sentencepiece.bpe.model")
        write_json(made / "tokenizer_config.json", {"tokenizer_class": "MBart50Tokenizer"})
    copy_vocabulary(find_vocabulary(made), copied)
    assert {file.name for file in copied.iterdir()} == {file.name for file in made.iterdir()}
    assert difference(find_vocabulary(made), find_vocabulary(copied)) is None


def test_what_differs_between_two_marians(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_marian(tmp_path / name, apart=True)
    path = tmp_path / "b/target_vocab.json"
    ids = json.loads(path.read_text())
    ids["▁new"] = len(ids)
    write_json(path, ids)
    told = difference(tmp_path / "a/vocab.json", tmp_path / "b/vocab.json")
    assert (
        told
        == f"token '▁new of outputs' is not there in the former and {len(ids) - 1} in the latter"
    )


def test_pieces_of_texts(tmp_path):
    """What each token adds: all together are the text."""
    write_marian(tmp_path)
    ours = open_tokenizer(tmp_path / "vocab.json")
    pieces, ids = ours.pieces(), ours.encode("a quick brown dog", add_eos=True)
    assert b"".join(pieces[i] for i in ids).decode().strip() == "a quick brown dog"
    assert pieces[ours.eos_id] == b""


# Bad input


def test_a_language_is_missing_or_unknown(tmp_path):
    write_m2m100(tmp_path)
    path = tmp_path / "vocab.json"
    with pytest.raises(
        ValueError, match=r"^source_language is missing: .* 100 languages: af, am, "
    ):
        open_tokenizer(path)
    with pytest.raises(
        ValueError, match=r"'eng' is no language .* has 100 languages: .*, \.\.\.\.$"
    ):
        open_tokenizer(path, source_language="eng")
    write_json(tmp_path / "tokenizer_config.json", {"src_lang": "en", "language_codes": "wmt21"})
    told = open_tokenizer(path)
    assert told.start_ids == open_tokenizer(path, source_language="en").start_ids
    assert set(told.languages.ids) == {"en", "ha", "is", "ja", "cs", "ru", "zh", "de"}
    with pytest.raises(ValueError, match=r"has 8 languages: cs, de, en, ha, is, ja, ru, zh\.$"):
        open_tokenizer(path, source_language="fr")


def test_a_language_of_a_vocabulary_without_any(tmp_path):
    write_marian(tmp_path)
    with pytest.raises(ValueError, match=r"'fra', but the vocabulary has no languages.*>>fra<<"):
        open_tokenizer(tmp_path / "vocab.json", source_language="fra")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target.spm", None, r"vocab.json cannot be read without target.spm"),
        ("target.spm", b"x", r"target.spm is not a SentencePiece model"),
        ("target_vocab.json", None, r"vocab.json cannot be read without target_vocab.json"),
        ("vocab.json", b'{"a": 0}', r"vocab.json has no token '</s>', the eos_token"),
        ("vocab.json", b"[1]", r"vocab.json"),
        ("tokenizer_config.json", b'{"separate_vocabs": 3}', r"separate_vocabs is 3, not true or"),
        ("tokenizer_config.json", b'{"src_lang": 3}', r"src_lang is 3, not a text"),
    ],
)
def test_damaged_files_of_marian(tmp_path, name, content, message):
    write_marian(tmp_path, apart=True)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_tokenizer(tmp_path / "vocab.json", 100)


def test_more_tokens_than_rows(tmp_path):
    size = write_m2m100(tmp_path)
    open_tokenizer(tmp_path / "vocab.json", size, source_language="en")
    with pytest.raises(ValueError, match=f"has {size} pieces, but the model's embedding only"):
        open_tokenizer(tmp_path / "vocab.json", size - 1, source_language="en")


def test_pieces_of_nobody(tmp_path):
    train_model(tmp_path / "sentencepiece.bpe.model")
    with pytest.raises(ValueError, match=r"tokenizer_class in .* one of NllbTokenizer, MBart"):
        open_tokenizer(find_vocabulary(tmp_path))


def test_codes_that_nobody_lists(tmp_path):
    write_m2m100(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"language_codes": "all"})
    with pytest.raises(ValueError, match=r"language_codes .* is 'all', not one of m2m100, wmt21"):
        open_tokenizer(tmp_path / "vocab.json", source_language="en")
