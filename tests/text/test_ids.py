"""Tokenizers of translators, summarizers and decoders: ids and texts of transformers."""

import re
import shutil
import warnings

import pytest
from small_vocabularies import (
    LINES,
    NLLB,
    train_model,
    write_json,
    write_m2m100,
    write_marian,
    write_nllb,
)

from specdec.checkpoints import find_vocabulary
from specdec.checkpoints.hf_files import HUB_FILES
from specdec.text.opening import open_tokenizer
from specdec.text.vocabulary import Vocabulary

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


SENTINELS = re.compile(r"<extra_id_\d+>")


def check(directory, theirs=None, texts=TEXTS, outputs=False, rows=None, **language):
    """Ids of texts, and the texts of ids and of the same ids backwards, are transformers'."""
    theirs = theirs or auto(directory)
    ours = open_tokenizer(find_vocabulary(directory), rows, **language)
    listed = getattr(theirs, "target_encoder", theirs)
    assert len(ours) == len(listed)
    assert ours.eos_id == theirs.eos_token_id
    for text in texts:
        ids = theirs(text).input_ids
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids, text
        assert ours.encode(text, add_eos=True) == ids, text
        if outputs:
            ids = theirs(text_target=text).input_ids
        for each in (ids, ids[::-1]):
            shown = ours.decode(each)
            if SENTINELS.search(shown) is None:
                assert shown == theirs.decode(each, skip_special_tokens=True), text
    ids = theirs("The fox").input_ids
    assert [*ours.start_ids, *ours.encode("The fox"), *ours.end_ids] == ids
    return ours


def auto(directory, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return transformers.AutoTokenizer.from_pretrained(directory, **options)


def saved(directory, theirs, model_type):
    """A directory with what transformers saves of a tokenizer."""
    theirs.save_pretrained(directory)
    return described(directory, model_type)


def described(directory, model_type, **config):
    """The directory, with a model's type and what tokenizer_config.json tells."""
    write_json(directory / "config.json", {"model_type": model_type})
    if config:
        write_json(directory / "tokenizer_config.json", config)
    return directory


@pytest.mark.parametrize("apart", [False, True])
def test_marian(tmp_path, apart):
    """A text is cut by source.spm; ids are vocab.json's, and outputs' may be others."""
    described(tmp_path, "marian")
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
    described(tmp_path, "m2m_100")
    write_m2m100(tmp_path)
    theirs = auto(tmp_path, src_lang="fr")
    ours = check(tmp_path, theirs, source_language="fr")
    assert ours.encode("a", add_eos=True)[0] == theirs.get_lang_id("fr")
    check(saved(tmp_path / "again", theirs, "m2m_100"), theirs, source_language="fr")


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb(tmp_path, legacy):
    """Languages are before a text, or behind it as in older versions."""
    write_nllb(transformers, tmp_path, legacy_behaviour=legacy)
    described(tmp_path, "m2m_100")
    theirs = auto(tmp_path, src_lang="zho_Hans")
    ours = check(tmp_path, theirs, source_language="zho_Hans")
    code = theirs.convert_tokens_to_ids("zho_Hans")
    ids = ours.encode("a", add_eos=True)
    assert ids[-2:] == [2, code] if legacy else (ids[0], ids[-1]) == (code, 2)
    assert set(ours.languages.ids) == set(NLLB)


@pytest.mark.parametrize("kind", ["MBartTokenizer", "MBart50Tokenizer"])
def test_mbart(tmp_path, kind):
    described(tmp_path, "mbart", tokenizer_class=kind)
    train_model(tmp_path / "sentencepiece.bpe.model")
    theirs = auto(tmp_path, src_lang="ro_RO")
    ours = check(tmp_path, theirs, source_language="ro_RO")
    code, ids = theirs.convert_tokens_to_ids("ro_RO"), ours.encode("a", add_eos=True)
    assert (ids[-2:] if kind == "MBartTokenizer" else [ids[-1], ids[0]]) == [2, code]
    check(saved(tmp_path / "again", theirs, "mbart"), theirs, source_language="ro_RO")


def test_pegasus(tmp_path):
    """103 tokens stand before the pieces."""
    described(tmp_path, "pegasus")
    train_model(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    assert min(ours.encode("The fox")) > 103
    check(saved(tmp_path / "again", theirs, "pegasus"), theirs)


def test_bart(tmp_path):
    """Around a text stand <s> and </s>, and no special token is text."""
    described(tmp_path, "bart")
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(LINES, 320, special_tokens=special, show_progress=False)
    trained.save_model(str(tmp_path))
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    assert (ours.start_ids, ours.end_ids) == ((0,), (2,))
    check(saved(tmp_path / "again", theirs, "bart"), theirs)


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("llama", "PreTrainedTokenizerFast"),
        ("llama", "LlamaTokenizer"),
        ("qwen2", "Qwen2Tokenizer"),
    ],
)
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
    config = {"eos_token": special[1], "clean_up_tokenization_spaces": starts}
    config |= {"bos_token": special[0]} if starts else {}
    described(tmp_path, model_type, tokenizer_class=kind, **config)
    ours = check(tmp_path, auto(tmp_path))
    assert (ours.start_ids, ours.end_ids) == ((0,) if starts else (), ())


T5 = {"tokenizer_class": "T5Tokenizer"}


@pytest.mark.parametrize(
    "told",
    [{}, T5 | {"extra_special_tokens": ["<new>"], "mask_token": "<mask>", "extra_ids": 7}],
)
def test_t5(spiece, tmp_path, told):
    """Sentinels are text, other special tokens are none."""
    shutil.copy(spiece, tmp_path)
    described(tmp_path, "t5", **told)
    write_json(tmp_path / "added_tokens.json", {})
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    text = "The<extra_id_0> fox<extra_id_6>"
    assert ours.decode([0, *ours.encode(text, add_eos=True)]) == text
    assert ours.decode([*ours.encode("dog"), len(ours), 10**6]) == "dog"
    check(saved(tmp_path / "again", theirs, "t5"), theirs)


def test_sentinels_among_the_pieces_are_the_only_ones(tmp_path):
    """UMT5 has 300 of them, and more rows than pieces; transformers wants to be told."""
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(130))]
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    train_model(tmp_path / "spiece.model", size=184, user_defined_symbols=sentinels, **ids)
    for model_type in ("umt5", "t5"):
        described(tmp_path, model_type)
        ours = open_tokenizer(tmp_path / "spiece.model", 200)
        assert len(ours) == 184
        assert ours.encode("<extra_id_0>") == [132]
        assert ours.encode("a <extra_id_129>", add_eos=True)[-2:] == [3, 1]
    assert len(Vocabulary(tmp_path, 200)) == 184


@pytest.mark.parametrize("spelt", [True, False])
def test_unknown_characters_of_a_t5(tmp_path, spelt):
    """They are bytes where the vocabulary has pieces of these, else its own unknown token."""
    train_model(tmp_path / "spiece.model", size=310 if spelt else 54, byte_fallback=spelt)
    described(tmp_path, "t5", **T5, extra_ids=0, legacy=True)
    for directory in (tmp_path, saved(tmp_path / "again", auto(tmp_path), "t5")):
        ours = open_tokenizer(find_vocabulary(directory))
        ids = ours.encode("The fox 🙂 <0x41> ж")
        shown = "The fox 🙂 <0x41> ж" if spelt else "The fox  x1 "
        assert (ours.decode(ids), ids.count(0)) == (shown, 0 if spelt else 5)
        every_byte = {bytes([byte]) for byte in range(128, 256)} <= {
            *ours.spelling(len(ours)).pieces
        }
        assert every_byte == spelt


@pytest.mark.filterwarnings("ignore:This sequence already has")
@pytest.mark.parametrize("bare", [True, False])
def test_byt5(tmp_path, bare):
    described(tmp_path, "t5", **({"tokenizer_class": "ByT5Tokenizer"} if bare else {}))
    if not bare:
        transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    ours = check(tmp_path, texts=[*TEXTS, "x</s>", " </s> x", "a <extra_id_124> b"], rows=384)
    ids = [0xC3 + 3, 0xF0 + 3, 100, 0xBC + 3]  # No characters.
    assert ours.decode([*ids, 10**6]) == "a"
    assert [*ours.spelling(259).pieces[3:]] == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize("told", [{}, {"add_prefix_space": True, "add_bos_token": True}])
def test_gpt2(bpe, tmp_path, told):
    """From each of its files, also from OpenAI's, which transformers does not know."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bpe / name, tmp_path)
    described(tmp_path, "gpt2", **told)
    theirs = auto(tmp_path)
    ours = check(tmp_path, theirs)
    assert ours.decode(ours.encode("naïve 🙂")).strip() == "naïve 🙂"
    check(saved(tmp_path / "again", theirs, "gpt2"))
    (tmp_path / "vocab.json").rename(tmp_path / "encoder.json")
    (tmp_path / "merges.txt").rename(tmp_path / "vocab.bpe")
    check(tmp_path, theirs)


@pytest.mark.parametrize(("model_type", "told"), [("llama", True), ("t5gemma", False)])
def test_tokenizer_model_alone(tmp_path, model_type, told):
    llama = model_type == "llama"
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2} if llama else {
        "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>",
        "eos_piece": "<eos>",
    }  # fmt: skip
    train_model(tmp_path / "tokenizer.model", "bpe", 340, byte_fallback=True, **ids)
    kind = "LlamaTokenizer" if llama else "GemmaTokenizer"
    config = {"tokenizer_class": kind, "add_bos_token": True, "add_eos_token": False}
    described(tmp_path, model_type, **(config if told else {}))
    ours = check(tmp_path)
    assert ours.start_ids == (ids["bos_id"],) * told
    assert ours.decode(ours.encode("The fox 🙂")) == "The fox 🙂"
    assert "tokenizer.model" in HUB_FILES
    theirs = auto(tmp_path)
    check(saved(tmp_path / "again", theirs, model_type), theirs)


def test_a_tokenizer_json_whose_model_has_no_type(tmp_path):
    """As files of 2020 and 2021 are: a Unigram whose pieces begin with the mark of a word."""
    special = [
        {"id": i, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, token in enumerate(("<pad>", "</s>", "<unk>"))
    ]
    marks = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁a", "b", "c"]
    content = {
        "version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": marks,
        "post_processor": None, "decoder": marks,
        "model": {"unk_id": 2, "vocab": [[piece, -float(i)] for i, piece in enumerate(pieces)]},
    }  # fmt: skip
    write_json(tmp_path / "tokenizer.json", content)
    described(tmp_path, "t5")
    ours, text = open_tokenizer(tmp_path / "tokenizer.json", 7), "abc a"
    assert ours.encode(text) == auto(tmp_path)(text, add_special_tokens=False).input_ids
    assert (ours.encode(text), ours.encode(text, add_eos=True)[-1]) == ([4, 5, 6, 4], 1)
    assert ours.decode(ours.encode(text, add_eos=True)) == text
    assert [*ours.spelling(7).pieces] == [b"", b"", b"", b" ", b" a", b"b", b"c"]


def test_languages_beyond_a_trimmed_embedding(tmp_path):
    """They are an error when they are used; other pieces there are another model's."""
    described(tmp_path, "mbart", tokenizer_class="NllbTokenizer")
    train_model(tmp_path / "sentencepiece.bpe.model", "bpe")
    path = find_vocabulary(tmp_path)
    whole = open_tokenizer(path, source_language="ace_Arab")
    codes = sorted(whole.languages.ids, key=whole.languages.ids.get)
    first = whole.languages.ids[codes[0]]
    ours = open_tokenizer(path, first + 1, source_language=codes[0])
    assert ours.encode("The fox", add_eos=True) == whole.encode("The fox", add_eos=True)
    beyond = rf"_language = '{codes[1]}' is token {first + 1}, but .* only {first + 1} rows"
    with pytest.raises(ValueError, match=beyond):
        open_tokenizer(path, first + 1, source_language=codes[1])
    with pytest.raises(ValueError, match=beyond):
        ours.languages.code("target_language", codes[1])
    with pytest.raises(ValueError, match=f"embedding only {first - 1} rows: it is another"):
        open_tokenizer(path, first - 1, source_language=codes[0])


# Real ones
