"""What is read beside a vocabulary goes with it; pairs of vocabularies; damage is one line."""

import contextlib
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from small_vocabularies import train_model, write_json, write_m2m100, write_marian
from tiny import TINY, TINY_GPT, random_params

import specdec
from specdec.checkpoints import find_vocabulary, save_huggingface
from specdec.decoding.batches import make_batches
from specdec.text.base import added_text
from specdec.text.files import copy_vocabulary
from specdec.text.opening import difference, open_tokenizer
from specdec.text.vocabulary import Vocabulary
from specdec.text.word_pieces import train_word_pieces
from specdec.training.train import check_vocabulary

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")

PIECES, ROWS = 54, 170
OWN = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100}
T5 = dataclasses.replace(TINY["v1.1"], vocab_size=ROWS)


def test_t5x_has_the_ids_of_seqio(spiece):
    """A full stop behind a sentinel has no space in front there; transformers puts one."""
    seqio = pytest.importorskip("seqio")
    theirs = seqio.SentencePieceVocabulary(str(spiece), extra_ids=100)
    ours = open_tokenizer(spiece, ROWS, of_t5x=True)
    texts = ["<extra_id_0>. The", "a</s>b <pad>", "The <extra_id_99>x", "", " \n fox", "日本 \x00"]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    hugging_face = open_tokenizer(spiece, ROWS)
    assert len(hugging_face) == len(ours) == PIECES + 100
    assert hugging_face.encode(texts[0])[0] == ours.encode(texts[0])[0] == PIECES + 99
    assert len(hugging_face.encode(texts[0])) == len(ours.encode(texts[0])) + 1


def test_a_text_ends_at_the_models_eos_alone(bpe, tmp_path):
    """The vocabulary's EOS inside of an output, which the model does not end with, cuts nothing."""
    config = dataclasses.replace(TINY_GPT["gpt"], vocab_size=300, eos_id=5, start_id=0, pad_id=0)
    params = jax.device_get(random_params(config, 0))
    save_huggingface(tmp_path / "target", config, params, bpe / "vocab.json")
    pair = specdec.load_pair(target=tmp_path / "target", draft=specdec.Copying())
    (batch,) = make_batches([np.array([40, 41], np.int32)], 1, pair.target.model)
    the, fox = (pair.vocabulary.encode(text) for text in ("The", " fox"))
    assert pair.vocabulary.eos_id == 0
    assert pair.texts.of(np.array([*the, 0, *fox, 5]), batch, 0) == "The fox"


def test_a_piece_that_continues_a_word_has_no_space_in_front(tmp_path):
    lines = ["The ants sang singing songs.", "An ant's song, été!", "Singers sing; ants don't."] * 5
    pieces = train_word_pieces(lines, 45, tmp_path / "tokenizer.json")
    ids = pieces.encode("the singing ants.")
    for cut in range(len(ids) + 1):
        before, after = ids[:cut], ids[cut:]
        assert pieces.decode(before) + added_text(pieces, before, after) == "the singing ants."
    continued = next(
        i
        for i in range(1, len(ids))
        if not pieces.decode(ids).startswith(pieces.decode(ids[:i]) + " ")
    )
    assert not added_text(pieces, ids[:continued], ids[continued:]).startswith(" ")


@pytest.fixture
def pair(spiece, tmp_path):
    """Target and draft with an added token, and their directories."""
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(spiece, source)
    write_json(source / "tokenizer_config.json", OWN)
    write_json(source / "added_tokens.json", {"<": PIECES + 100})
    write_json(source / "special_tokens_map.json", {"mask_token": "<mask>"})
    for role, seed in (("target", 0), ("draft", 1)):
        params = jax.device_get(random_params(T5, seed))
        save_huggingface(tmp_path / role, T5, params, source / "spiece.model")
    return tmp_path / "target", tmp_path / "draft"


def test_all_files_go_with_a_checkpoint(pair):
    """The same tokens in another file are the same vocabulary; other added tokens are none."""
    target, draft = pair
    ours = specdec.load_pair(target=target, draft=draft).vocabulary
    assert ours.encode("a<") == [*ours.encode("a"), PIECES + 100]
    assert ours.encode("<mask>") == [PIECES + 101]
    assert ours.decode([PIECES + 100]) == "<"
    assert len(ours) == PIECES + 102
    theirs = transformers.AutoTokenizer.from_pretrained(draft)
    write_json(draft / "added_tokens.json", {">": PIECES + 100})
    with pytest.raises(ValueError, match=r"token '<' is 154 in the former and not there in the l"):
        specdec.load_pair(target=target, draft=draft)
    for name in ("spiece.model", "added_tokens.json", "special_tokens_map.json"):
        (draft / name).unlink()
    theirs.save_pretrained(draft)
    assert find_vocabulary(draft).name == "tokenizer.json"
    specdec.load_pair(target=target, draft=draft)


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
    for name in ("vocab.json", "tokenizer_config.json"):
        if (copied / name).is_file():  # Written otherwise, and the same.
            content = json.loads((copied / name).read_text())
            (copied / name).write_text(json.dumps(content, indent=1))
    assert difference(find_vocabulary(made), find_vocabulary(copied)) is None


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target.spm", None, r"vocab.json cannot be read without target.spm"),
        ("target_vocab.json", None, r"vocab.json cannot be read without target_vocab.json"),
        ("vocab.json", b'{"a": 0}', r"vocab.json cannot be read by .*<unk> token must be in"),
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


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("spiece.model", POINTER, "is a Git LFS pointer, .* run `git lfs pull`"),
        ("spiece.model", "\n\x05", "is not a SentencePiece model that can be read"),
        ("tokenizer_config.json", "[]", "is not a JSON object"),
        ("tokenizer_config.json", '{"extra_ids": true}', "extra_ids is True, not a number"),
        ("tokenizer_config.json", '{"extra_special_tokens": 3}', "cannot be read by transformers"),
        ("tokenizer.json", '{"model": {', "cannot be read by transformers, .*JSONDecodeError"),
        (
            "tokenizer.json", '{"added_tokens": [], "model": []}', "cannot be read by transformers"
        ),
        (
            "tokenizer.json",
            '{"added_tokens": [], "normalizer": {"type": "Precompiled", "precompiled_charsmap": '
            '"AAAA"}, "model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 0}}',
            "tokenizer.json cannot be read by transformers",
        ),
    ],
)  # fmt: skip
def test_damaged_files_are_one_line(spiece, tmp_path, name, content, words):
    shutil.copy(spiece, tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "t5"})
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        open_tokenizer(find_vocabulary(tmp_path), ROWS)
    message = str(caught.value)
    assert str(tmp_path / name) in message or "beside" in message
    assert "\n" not in message
    assert len(message) < 600


def test_nothing_that_a_directory_names_is_run(bpe, tmp_path):
    """Neither code of its own, nor another library's class."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bpe / name, tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass A: pass\n")
    named = {"AutoConfig": "evil.A", "AutoTokenizer": ["evil.A", "evil.A"]}
    for model_type in ("gpt2", "none"):
        write_json(tmp_path / "config.json", {"model_type": model_type, "auto_map": named})
        for told in ({}, {"tokenizer_class": "A"}, {"tokenizer_class": "ATokenizer"}):
            write_json(tmp_path / "tokenizer_config.json", {"auto_map": named, **told})
            with contextlib.suppress(ValueError):
                open_tokenizer(tmp_path / "vocab.json")
            assert not (tmp_path / "ran").exists()


CONFIG = TINY["v1.1"]
BYT5 = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125, "pad_token": "<pad>"}


def save(directory, config, vocabulary=None, seed=0):
    save_huggingface(directory, config, jax.device_get(random_params(config, seed)), vocabulary)


def test_a_pair_of_bytes(tmp_path):
    """Text in and out; what else its file says makes no other vocabulary."""
    config = dataclasses.replace(CONFIG, vocab_size=384)
    file = tmp_path / "tokenizer_config.json"
    write_json(file, BYT5)
    save(tmp_path / "target", config, file)
    write_json(file, BYT5 | {"name_or_path": "x"})
    save(tmp_path / "draft", config, file, seed=1)
    assert json.loads((tmp_path / "target/tokenizer_config.json").read_text()) == BYT5
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    out = pair.generate(["Grüße 🙂"], method="autoregressive", max_decode_len=8)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    assert pair.vocabulary.encode("Grüße 🙂", add_eos=True) == theirs("Grüße 🙂").input_ids
    assert out.texts == [pair.vocabulary.decode(out.tokens[0])]


@pytest.fixture
def madlad(tmp_path):
    """Unknown 0, <s> 1, EOS 2, no pad; languages are pieces."""
    write_json(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": "T5Tokenizer", "bos_token": "<s>", "pad_token": "<s>", "extra_ids": 0},
    )
    train_model(tmp_path / "spiece.model", size=56, user_defined_symbols=["<2de>", "<2pt>"])
    return tmp_path


def test_ids_are_the_files_own(madlad):
    ours = open_tokenizer(madlad / "spiece.model", 56)
    theirs = transformers.T5Tokenizer.from_pretrained(madlad)
    assert (len(ours), ours.eos_id) == (len(theirs), theirs.eos_token_id) == (56, 2)
    for text in ("<2de> The dog", "the <2pt>fox", "Fuß</s> an", "<unk> den", "<s> quick", ""):
        assert ours.encode(text, add_eos=True) == theirs(text).input_ids
    ids = ours.encode("<2de> The lazy dog", add_eos=True)
    assert ours.decode([1, *ids]) == "<2de> The lazy dog"


def test_an_eos_that_is_not_the_models_is_refused(madlad, tmp_path):
    save(tmp_path / "target", dataclasses.replace(CONFIG, vocab_size=56), madlad / "spiece.model")
    with pytest.raises(ValueError, match=r"spiece.model ends a text with token 2, .* with 1: it"):
        specdec.load_pair(target=tmp_path / "target", draft=specdec.Copying())


def test_models_are_not_trained_with_another_eos(madlad):
    with pytest.raises(ValueError, match="eos_id is 1; with this vocabulary it needs 2"):
        check_vocabulary(dataclasses.replace(CONFIG, vocab_size=56), Vocabulary(madlad))


def test_a_vocabulary_without_an_end_is_refused(tmp_path):
    train_model(tmp_path / "spiece.model", bos_id=-1, eos_id=-1)
    with pytest.raises(ValueError, match=r"has no piece that ends a text"):
        Vocabulary(tmp_path)


def test_padding_of_the_embedding_may_differ(spiece, tmp_path):
    """The draft guesses the common tokens: greedily the target's own output comes out."""
    target_rows, draft_rows = ROWS, ROWS - 8
    for name, rows, seed in (("target", target_rows, 0), ("draft", draft_rows, 0)):
        config = dataclasses.replace(T5, vocab_size=rows)
        save_huggingface(tmp_path / name, config, random_params(config, seed), spiece)
    with pytest.warns(UserWarning, match=f"have {target_rows} and {draft_rows} rows"):
        pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    texts = [[5, 6, 1], [7, 8, 9, 1]]
    fast = pair.generate(texts, gamma=2, max_decode_len=12)
    plain = pair.generate(texts, method="autoregressive", max_decode_len=12)
    for ours, expected in zip(fast.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, expected)
    sampled = pair.generate(
        texts, gamma=2, max_decode_len=12, sampling=specdec.SamplingConfig(1.0), trace=True
    )
    guesses = {t for row in sampled.traces for b in row for t in b.accepted + b.rejected}
    assert max(guesses) < min(target_rows, draft_rows)


def test_another_size_without_a_common_vocabulary_names_the_remedy(tmp_path):
    for name, rows in (("target", 160), ("draft", 152)):
        config = dataclasses.replace(T5, vocab_size=rows)
        save_huggingface(tmp_path / name, config, random_params(config, 0))
    with pytest.raises(ValueError, match=r"put the same spiece\.model beside both"):
        specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
