"""Byte-level BPE and WordPiece: the ids and texts of transformers, from each of their files."""

import json
import shutil

import jax
import pytest
from specdec.data.fast_tokenizer import FastTokenizer, open_tokenizer
from tiny import TINY_GPT, random_gpt_params

import specdec
from specdec.checkpoints import save_huggingface

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")
tokenizers = pytest.importorskip("tokenizers")

LINES = ["The quick brown fox jumps over the lazy dog.", "Grüße an den Fuß, naïve café!"] * 20
TEXTS = ["The fox", " the dog\n\njumps", "naïve 日本 🙂", "", "  two  spaces", "a<|endoftext|>b"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """vocab.json and merges.txt, as GPT-2's training makes them, and the same as tokenizer.json."""
    directory = tmp_path_factory.mktemp("bpe")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=300, special_tokens=["<|endoftext|>"])
    trained.save_model(str(directory))
    theirs = transformers.GPT2TokenizerFast(
        vocab=str(directory / "vocab.json"), merges=str(directory / "merges.txt")
    )
    (directory / "saved").mkdir()
    theirs.save_pretrained(directory / "saved")
    for ours, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (directory / "openai").mkdir(exist_ok=True)
        shutil.copyfile(directory / name, directory / "openai" / ours)
    return directory, theirs


@pytest.mark.parametrize("name", ["vocab.json", "openai/encoder.json", "saved/tokenizer.json"])
def test_the_ids_of_transformers(files, name):
    directory, theirs = files
    ours = open_tokenizer(directory / name)
    assert len(ours) == len(theirs)
    assert ours.eos_id == theirs.convert_tokens_to_ids("<|endoftext|>")
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == expected
        if "<|" not in text:
            assert ours.decode(ours.encode(text, add_eos=True)) == text


def test_an_id_beyond_the_embedding_is_refused(files, tmp_path):
    """However few tokens there are."""
    ids = json.loads((files[0] / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(ids | {next(reversed(ids)): 1000}))
    shutil.copyfile(files[0] / "merges.txt", tmp_path / "merges.txt")
    with pytest.raises(ValueError, match=r"vocab\.json .* the model's embedding only 400 rows"):
        open_tokenizer(tmp_path / "vocab.json", 400)


def test_a_character_of_several_tokens_comes_out_whole(files):
    ours = open_tokenizer(files[0] / "vocab.json")
    ids = ours.encode("🙂")
    assert len(ids) > 1
    assert ours.decode(ids) == "🙂"


def test_gpt2s_own_vocabulary(data_dir, tmp_path):
    """OpenAI's files: the same text comes back, and known ids."""
    if not (data_dir / "vocab" / "gpt2_encoder.json").is_file():
        pytest.skip(f"{data_dir} has no vocab/gpt2_encoder.json, GPT-2's vocabulary")
    for name in ("encoder.json", "vocab.bpe"):
        shutil.copyfile(data_dir / "vocab" / f"gpt2_{name}", tmp_path / name)
    ours = open_tokenizer(tmp_path / "encoder.json")
    assert (len(ours), ours.eos_id) == (50257, 50256)
    text = "Alan Turing theorized that computers would one day become"
    assert ours.encode(text)[:4] == [36235, 39141, 18765, 1143]
    assert ours.decode(ours.encode(text)) == text


def test_wordpiece(tmp_path):
    """BERT's: EOS is [SEP], and pads are left out."""
    backend = tokenizers.BertWordPieceTokenizer()
    backend.train_from_iterator(LINES, vocab_size=120)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = FastTokenizer(tmp_path / "tokenizer.json")
    ids = ours.encode("the quick fox", add_eos=True)
    assert ids[-1] == ours.eos_id == backend.token_to_id("[SEP]")
    assert ours.decode([backend.token_to_id("[PAD]"), *ids]) == "the quick fox"


def test_berts_own_vocabulary(data_dir, tmp_path):
    """The uncased English BERT's list of pieces: known ids."""
    path = data_dir / "vocab" / "bert_uncased_vocab.txt"
    if not path.is_file():
        pytest.skip(f"{data_dir} has no vocab/bert_uncased_vocab.txt, BERT's vocabulary")
    backend = tokenizers.BertWordPieceTokenizer(str(path), lowercase=True)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = open_tokenizer(tmp_path / "tokenizer.json")
    assert (len(ours), ours.eos_id) == (30522, 102)
    ids = ours.encode("Hello, embeddings!", add_eos=True)
    assert ids == [101, 7592, 1010, 7861, 8270, 4667, 2015, 999, 102]
    assert ours.decode(ids) == "hello, embeddings!"


def test_a_pair_with_its_files_continues_texts(files, tmp_path):
    """A string is the prompt; an empty one is generation from nothing."""
    import dataclasses

    config = dataclasses.replace(TINY_GPT["gpt"], vocab_size=300, eos_id=0, start_id=0, pad_id=0)
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(tmp_path / role, config, jax.device_get(random_gpt_params(config, seed)))
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(files[0] / name, tmp_path / role / name)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    assert pair.vocabulary is not None
    out = pair.generate(["The quick", ""], max_decode_len=8, method="autoregressive")
    for text, tokens in zip(out.texts, out.tokens, strict=True):
        kept = [t for t in tokens.tolist() if t != config.eos_id]
        assert text == pair.vocabulary.decode(kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: (d / "merges.txt").unlink(), "merges.txt is not beside it"),
        (lambda d: (d / "vocab.json").write_text("{"), "vocab.json is not valid JSON"),
        (
            lambda d: (d / "vocab.json").write_text(json.dumps({"a": 0, "b": 1})),
            "vocab.json cannot be read|merges.txt cannot be read|needs one of",
        ),
    ],
)
def test_damaged_files(files, tmp_path, change, words):
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(files[0] / name, tmp_path / name)
    change(tmp_path)
    with pytest.raises(ValueError, match=words):
        open_tokenizer(tmp_path / "vocab.json")
