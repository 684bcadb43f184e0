"""What is read beside a vocabulary goes with it, and what is damaged is one line."""

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
from specdec.text.word_pieces import train_word_pieces

tokenizers = pytest.importorskip("tokenizers")

PIECES, ROWS = 54, 170
OWN = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100}
T5 = dataclasses.replace(TINY["v1.1"], vocab_size=ROWS)


# T5X's rule, which is seqio's


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


# GPT-2's settings


def test_a_space_in_front_and_a_token_before_the_text(bpe, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bpe / name, tmp_path)
    plain = open_tokenizer(bpe / "vocab.json")
    assert plain.start_ids == ()
    told = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True}
    write_json(tmp_path / "tokenizer_config.json", told)
    ours = open_tokenizer(tmp_path / "vocab.json")
    assert ours.encode("The fox") == plain.encode(" The fox") != plain.encode("The fox")
    assert ours.start_ids == (ours.eos_id,)


@pytest.mark.parametrize("own", ["vocab.json", "tokenizer.json"])
def test_a_text_ends_at_the_models_eos_alone(bpe, tmp_path, own):
    """The vocabulary's EOS inside of an output, which the model does not end with, cuts nothing."""
    config = dataclasses.replace(TINY_GPT["gpt"], vocab_size=300, eos_id=5, start_id=0, pad_id=0)
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(tmp_path / role, config, jax.device_get(random_params(config, seed)))
        if own == "vocab.json":
            shutil.copy(bpe / "vocab.json", tmp_path / role)
            shutil.copy(bpe / "merges.txt", tmp_path / role)
        else:
            backend = tokenizers.ByteLevelBPETokenizer.from_file(
                str(bpe / "vocab.json"), str(bpe / "merges.txt")
            )
            backend.add_special_tokens(["<|endoftext|>"])
            backend.save(str(tmp_path / role / "tokenizer.json"))
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    (batch,) = make_batches([np.array([40, 41], np.int32)], 1, pair.target.model)
    the, fox = (pair.vocabulary.encode(text) for text in ("The", " fox"))
    assert pair.vocabulary.eos_id == 0
    assert pair.texts.of(np.array([*the, 0, *fox, 5]), batch, 0) == "The fox"


# Texts of outputs


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


def test_the_rest_of_a_character_is_that_character(bpe):
    ours = open_tokenizer(bpe / "vocab.json")
    ids = ours.encode("a 🙂")
    assert added_text(ours, ids[:-1], ids[-1:]) == "🙂"


# Files beside


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
    ours = specdec.load_pair(target=pair[0], draft=pair[1]).vocabulary
    assert ours.encode("a<") == [*ours.encode("a"), PIECES + 100]
    assert ours.encode("<mask>") == [PIECES + 101]
    assert ours.decode([PIECES + 100]) == "<"
    assert len(ours) == PIECES + 102


def test_other_added_tokens_are_another_vocabulary(pair):
    write_json(pair[1] / "added_tokens.json", {">": PIECES + 100})
    with pytest.raises(ValueError, match=r"token '<' is 154 in the former and not there in the l"):
        specdec.load_pair(target=pair[0], draft=pair[1])


def test_the_same_tokens_in_another_file_are_the_same_vocabulary(pair):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(pair[1])
    for name in ("spiece.model", "added_tokens.json", "special_tokens_map.json"):
        (pair[1] / name).unlink()
    theirs.save_pretrained(pair[1])
    assert find_vocabulary(pair[1]).name == "tokenizer.json"
    specdec.load_pair(target=pair[0], draft=pair[1])


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
    for name in ("vocab.json", "tokenizer_config.json"):
        if (copied / name).is_file():  # Written otherwise, and the same.
            content = json.loads((copied / name).read_text())
            (copied / name).write_text(json.dumps(content, indent=1))
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
        ("vocab.json", b'{"a": 0}', r"vocab.json cannot be read by .*<unk> token must be in"),
        ("vocab.json", b"[1]", r"vocab.json"),
        ("tokenizer_config.json", b'{"separate_vocabs": 3}', r"separate_vocabs is 3, not true or"),
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
    size = write_m2m100(tmp_path) - 100  # Languages may be beyond them.
    with pytest.raises(ValueError, match=f"has {size} pieces, but the model's embedding only"):
        open_tokenizer(tmp_path / "vocab.json", size - 1, source_language="en")


# Damaged files

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
NESTED = "[" * 200_000 + "]" * 200_000


def of_model(text):
    return f'{{"added_tokens": [], "model": {text}}}'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("spiece.model", POINTER, "is a Git LFS pointer, .* run `git lfs pull`"),
        ("spiece.model", "", "is not a SentencePiece model that can be read"),
        ("spiece.model", "\n\x05", "is not a SentencePiece model that can be read"),
        ("tokenizer_config.json", POINTER, "is a Git LFS pointer"),
        ("tokenizer_config.json", "[]", "is not a JSON object"),
        ("tokenizer_config.json", NESTED, "is not valid JSON .*recursion"),
        ("tokenizer_config.json", '{"extra_ids": true}', "extra_ids is True, not a number"),
        ("tokenizer_config.json", '{"extra_ids": -1}', "extra_ids is -1, not a number"),
        ("tokenizer_config.json", '{"eos_token": 3}', "eos_token is 3, not a token"),
        ("tokenizer_config.json", '{"pad_token": "\\ud800"}', "pad_token is .*, not a token"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "decoder.'x'. is 'x', n"),
        ("tokenizer_config.json", '{"added_tokens_decoder": []}', "added_tokens_decoder is .., n"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"3": {"content": "a", "lstrip": 1}}}',
            "lstrip is 1, not true or false",
        ),
        ("tokenizer_config.json", '{"extra_special_tokens": 3}', "tokens is 3, not a list of t"),
        ("added_tokens.json", '{"<": "154"}', ".'<'. is .154., not a token's id"),
        ("added_tokens.json", '{"<": true}', ".'<'. is True, not a token's id"),
        ("added_tokens.json", '{"<": -1}', ".'<'. is -1, not a token's id"),
        ("added_tokens.json", '{"<": 154, ">": 154}', "gives id 154 to both '<' and '>'"),
        ("added_tokens.json", '{"<": 162}', "the id 162, but it gets 154"),
        ("special_tokens_map.json", '{"eos_token": {}}', "eos_token is {}, not a token"),
        ("tokenizer.json", POINTER, "is a Git LFS pointer"),
        ("tokenizer.json", '{"model": {', "is not valid JSON"),
        ("tokenizer.json", NESTED, "is not valid JSON .*recursion"),
        ("tokenizer.json", of_model("[]"), "model is .., not an object"),
        ("tokenizer.json", of_model('{"vocab": 3}'), "model.vocab is 3, not an object or a list"),
        ("tokenizer.json", of_model('{"vocab": [["a"]]}'), "model.vocab.0. is ..a.., not a piece"),
        ("tokenizer.json", of_model('{"vocab": {"a": 0, "b": 0}}'), "id 0 to both 'a' and 'b'"),
        ("tokenizer.json", of_model('{"vocab": {"a": 9e9}}'), "vocab.'a'. is 9000000000.0, not"),
        ("tokenizer.json", of_model('{"vocab": {}, "merges": 3}'), "model.merges is 3, not a list"),
        (
            "tokenizer.json",
            of_model('{"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}'),
            "tokenizer.json cannot be read by transformers",
        ),
        (
            "tokenizer.json",
            '{"added_tokens": [], "normalizer": {"type": "Precompiled", "precompiled_charsmap": '
            '"AAAA"}, "model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 0}}',
            "tokenizer.json cannot be read by transformers",
        ),
        ("tokenizer.json", '{"model": {"vocab": {}}, "added_tokens": 3}', "added_tokens is 3, not"),
        ("tokenizer_config.json", '{"extra_ids": 2000000000}', "extra_ids is 2000000000, not a n"),
        ("tokenizer_config.json", '{"tokenizer_class": "AutoModel"}', "is 'AutoModel', not a cla"),
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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.json", '{"a": 0, "b": 0}', "gives id 0 to both 'a' and 'b'"),
        ("vocab.json", '{"a": true}', ".'a'. is True, not a token's id"),
        ("merges.txt", "#version: 0.2\nun known\n", "cannot be read by transformers.* .un. out of"),
        ("merges.txt", POINTER, "merges.txt is a Git LFS pointer"),
    ],
)
def test_damaged_files_of_gpt2(bpe, tmp_path, name, content, words):
    for each in ("vocab.json", "merges.txt"):
        shutil.copy(bpe / each, tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        open_tokenizer(tmp_path / "vocab.json")
    assert "\n" not in str(caught.value)


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
