"""Tokenizers of T5s that people have: ByT5's bytes, MADLAD-400's pieces, CodeT5+'s BPE."""

import dataclasses
import json
import shutil

import jax
import pytest
import sentencepiece
from tiny import TINY, random_t5_params

import specdec
from specdec.checkpoints import find_vocabulary, save_huggingface
from specdec.text.opening import open_tokenizer
from specdec.text.vocabulary import Vocabulary
from specdec.training.train import check_vocabulary

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")
tokenizers = pytest.importorskip("tokenizers")

LINES = ["The quick brown fox jumps over the lazy dog.", "Grüße an den Fuß, naïve café!"] * 30
CONFIG = TINY["v1.1"]


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


def save(directory, config, vocabulary=None, seed=0):
    save_huggingface(directory, config, jax.device_get(random_t5_params(config, seed)), vocabulary)


# ByT5

TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "__type": "AddedToken"}
# As google/byt5-small has it.
PUBLIC_BYT5 = {
    "eos_token": TOKEN | {"content": "</s>"}, "unk_token": TOKEN | {"content": "<unk>"},
    "pad_token": TOKEN | {"content": "<pad>"}, "extra_ids": 125,
    "additional_special_tokens": [f"<extra_id_{i}>" for i in range(125)],
    "tokenizer_class": "ByT5Tokenizer",
}  # fmt: skip
BYTE_TEXTS = [
    "Grüße aus Köln: äöüß 🙂 日本", "a <pad> b", " </s> x", "x</s>", "a<extra_id_0>b",
    "a <extra_id_124> b <unk> c", "<extra_id_125>", "a\tb\n c ", "", " ",
]  # fmt: skip


@pytest.fixture(params=["public", "saved", "bare"])
def byt5(request, tmp_path):
    """The file in a directory, and transformers' tokenizer of it."""
    file = tmp_path / "tokenizer_config.json"
    if request.param == "saved":
        transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    else:
        bare = {"tokenizer_class": "ByT5Tokenizer"}
        write_json(file, PUBLIC_BYT5 if request.param == "public" else bare)
    write_json(tmp_path / "config.json", {"model_type": "t5"})
    return find_vocabulary(tmp_path), transformers.ByT5Tokenizer.from_pretrained(tmp_path)


@pytest.mark.filterwarnings("ignore:This sequence already has")
def test_bytes_are_the_ids_of_transformers(byt5):
    path, theirs = byt5
    ours = open_tokenizer(path, 384)
    assert isinstance(ours, ByteTokenizer)
    assert len(ours) == len(theirs) == 384
    for text in BYTE_TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == expected
        assert ours.encode(text, add_eos=True) == theirs(text).input_ids
        kept = [token for token in expected if token not in (0, 1)]
        assert ours.decode([0, *expected, 1]) == theirs.decode(kept)


def test_bytes_of_no_character_are_left_out_and_ids_past_the_end_are_unknown(byt5):
    path, theirs = byt5
    ours, ids = open_tokenizer(path), [0xC3 + 3, 0xF0 + 3, 100, 0xBC + 3]
    assert ours.decode(ids) == theirs.decode(ids) == "a"
    assert ours.decode([100, 10**6]) == "a<unk>"


@pytest.mark.parametrize("text", ["{", "[1]", '{"added_tokens_decoder": 3}'])
def test_a_file_that_is_no_tokenizer_config(tmp_path, text):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer_config.json(:| is not)"):
        open_tokenizer(path)


def test_bytes_without_an_end_are_refused(tmp_path):
    content = {"tokenizer_class": "ByT5Tokenizer", "eos_token": None}
    path = write_json(tmp_path / "tokenizer_config.json", content)
    with pytest.raises(ValueError, match=r"config\.json: eos_token is null"):
        open_tokenizer(path)


def test_only_byt5_is_known_by_its_config_alone(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "t5"})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})
    assert find_vocabulary(tmp_path) is None


def test_a_pair_of_bytes(tmp_path):
    """Text in and out; what else its file says makes no other vocabulary."""
    config = dataclasses.replace(CONFIG, vocab_size=384)
    file = write_json(tmp_path / "tokenizer_config.json", PUBLIC_BYT5)
    save(tmp_path / "target", config, file)
    other = write_json(tmp_path / "tokenizer_config.json", PUBLIC_BYT5 | {"name_or_path": "x"})
    save(tmp_path / "draft", config, other, seed=1)
    assert json.loads((tmp_path / "target/tokenizer_config.json").read_text()) == PUBLIC_BYT5
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    out = pair.generate(["Grüße 🙂"], method="autoregressive", max_decode_len=8)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    assert pair.vocabulary.encode("Grüße 🙂", add_eos=True) == theirs("Grüße 🙂").input_ids
    assert out.texts == [pair.vocabulary.decode(out.tokens[0])]


# SentencePiece models with ids of their own


def train(directory, **options):
    with open(directory / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, model_type="unigram", minloglevel=2,
            **options,
        )  # fmt: skip
    return directory


@pytest.fixture
def madlad(tmp_path):
    """Unknown 0, <s> 1, EOS 2, no pad; languages are pieces."""
    write_json(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": "T5Tokenizer", "bos_token": "<s>", "pad_token": "<s>", "extra_ids": 0},
    )
    return train(
        tmp_path, vocab_size=44, pad_id=-1, unk_id=0, bos_id=1, eos_id=2,
        user_defined_symbols=["<2de>", "<2pt>"],
    )  # fmt: skip


def test_ids_are_the_files_own(madlad):
    ours = open_tokenizer(madlad / "spiece.model", 44)
    theirs = transformers.T5Tokenizer.from_pretrained(madlad)
    assert (len(ours), ours.eos_id) == (len(theirs), theirs.eos_token_id) == (44, 2)
    for text in ("<2de> The dog", "the <2pt>fox", "Fuß</s> an", "<unk> den", "<s> quick", ""):
        assert ours.encode(text, add_eos=True) == theirs(text).input_ids
    ids = ours.encode("<2de> The lazy dog", add_eos=True)
    assert ours.decode([1, *ids]) == "<2de> The lazy dog"


def test_a_pair_whose_eos_is_two(madlad, tmp_path):
    config = dataclasses.replace(CONFIG, vocab_size=44, pad_id=1, eos_id=2)
    for role, seed in (("target", 0), ("draft", 1)):
        save(tmp_path / role, config, madlad / "spiece.model", seed)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (1, 2, 44)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    out = pair.generate(["<2de> The dog"], gamma=2, max_decode_len=8)
    assert out.texts == [pair.vocabulary.decode(out.tokens[0])]


def test_an_eos_that_is_not_the_models_is_refused(madlad, tmp_path):
    save(tmp_path / "target", dataclasses.replace(CONFIG, vocab_size=44), madlad / "spiece.model")
    with pytest.raises(ValueError, match=r"spiece.model ends a text with token 2, .* with 1: it"):
        specdec.load_pair(target=tmp_path / "target", draft=specdec.Copying())


def test_models_are_not_trained_with_another_eos(madlad):
    with pytest.raises(ValueError, match="eos_id is 1; with this vocabulary it needs 2"):
        check_vocabulary(dataclasses.replace(CONFIG, vocab_size=44), Vocabulary(madlad))


def test_a_vocabulary_without_an_end_is_refused(tmp_path):
    train(tmp_path, vocab_size=40, pad_id=-1, unk_id=0, bos_id=-1, eos_id=-1)
    with pytest.raises(ValueError, match=r"has no piece that ends a text"):
        Vocabulary(tmp_path)


def test_sentinels_among_the_pieces_are_the_only_ones(tmp_path):
    """UMT5 has 300 of them, and more rows than pieces."""
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(130))]
    train(
        tmp_path, vocab_size=172, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        user_defined_symbols=sentinels,
    )  # fmt: skip
    ours = open_tokenizer(tmp_path / "spiece.model", 200)
    assert len(ours) == len(Vocabulary(tmp_path, 200)) == 172
    first = ours.encode("<extra_id_0>")
    assert first == [132]
    assert ours.encode("a <extra_id_129>")[-1] == 3
    assert ours.decode(first) == "<extra_id_0>"


# CodeT5+

TEXTS = ["The dog", "Grüße 🙂", "a </s> b", "a <extra_id_0> b", "a <mask> b", " x", ""]


@pytest.fixture
def roberta(tmp_path):
    """vocab.json with merges.txt and added_tokens.json, as old files; tokenizer.json; theirs."""
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(LINES, vocab_size=320, special_tokens=special)
    trained.save_model(str(tmp_path))
    theirs = transformers.RobertaTokenizer(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"),
        additional_special_tokens=["<extra_id_1>", "<extra_id_0>"],
    )  # fmt: skip
    size = len(trained.get_vocab())
    write_json(tmp_path / "added_tokens.json", {"<extra_id_0>": size + 1, "<extra_id_1>": size})
    theirs.save_pretrained(tmp_path / "saved")
    return tmp_path, theirs


@pytest.mark.parametrize("name", ["vocab.json", "saved/tokenizer.json"])
def test_roberta_around_a_text(roberta, name):
    """An encoder reads <s>, which is no text."""
    directory, theirs = roberta
    ours = open_tokenizer(directory / name)
    assert (len(ours), ours.eos_id) == (len(theirs), 2)
    for text in TEXTS:
        expected = theirs(text).input_ids
        assert expected[0] == 1
        assert ours.encode(text, add_eos=True) == expected
        assert ours.encode(text) == expected[1:-1]
        if "</s>" not in text:
            assert ours.decode([0, *expected]) == text


@pytest.mark.parametrize(
    "name", [pytest.param("vocab.json", marks=pytest.mark.slow), "saved/tokenizer.json"]
)
def test_a_pair_of_codet5p(roberta, tmp_path, name):
    """All files go with what is saved."""
    directory, theirs = roberta
    config = dataclasses.replace(CONFIG, vocab_size=len(theirs) + 3, eos_id=2)
    if name == "vocab.json":
        shutil.copyfile(
            directory / "saved/tokenizer_config.json", directory / "tokenizer_config.json"
        )
    for role, seed in (("target", 0), ("draft", 1)):
        save(tmp_path / role, config, directory / name, seed)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    assert (
        pair.vocabulary.encode("Grüße <extra_id_0>") == theirs("Grüße <extra_id_0>").input_ids[1:-1]
    )
    out = pair.generate(["Grüße 🙂"], method="autoregressive", max_decode_len=8)
    assert out.texts == [pair.vocabulary.decode(out.tokens[0])]
    if name != "vocab.json":
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
        assert again("Grüße 🙂").input_ids == theirs("Grüße 🙂").input_ids
