"""Pairs with vocabularies of every kind: texts in and out, and what does not go together."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from small_vocabularies import LINES, train_model, write_json
from tiny import TINY, TINY_GPT, random_params

import specdec
from specdec.checkpoints import find_vocabulary, save_huggingface
from specdec.text.opening import open_tokenizer
from specdec.text.vocabulary import Vocabulary
from specdec.training.train import check_vocabulary

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")
tokenizers = pytest.importorskip("tokenizers")

CONFIG = TINY["v1.1"]
BYT5 = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125, "pad_token": "<pad>"}
PIECES, ROWS = 54, 170
T5 = dataclasses.replace(CONFIG, vocab_size=ROWS)


def save(directory, config, vocabulary=None, seed=0):
    save_huggingface(directory, config, jax.device_get(random_params(config, seed)), vocabulary)


def test_only_byt5_is_known_by_its_config_alone(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "t5"})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})
    assert find_vocabulary(tmp_path) is None


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


# SentencePiece models with ids of their own


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


def test_a_pair_whose_eos_is_two(madlad, tmp_path):
    config = dataclasses.replace(CONFIG, vocab_size=56, pad_id=1, eos_id=2)
    for role, seed in (("target", 0), ("draft", 1)):
        save(tmp_path / role, config, madlad / "spiece.model", seed)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (1, 2, 56)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    assert pair.target.model.eos_ids == (2,)


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


# Others


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
    if name != "vocab.json":
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
        assert again("Grüße 🙂").input_ids == theirs("Grüße 🙂").input_ids


@pytest.fixture(scope="module")
def saved(spiece, tmp_path_factory):
    """What transformers 5 writes: no spiece.model."""
    directory = tmp_path_factory.mktemp("saved")
    transformers.T5Tokenizer.from_pretrained(spiece.parent).save_pretrained(directory)
    return directory / "tokenizer.json"


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.json"])
def test_a_vocabulary_of_another_model_is_refused(spiece, saved, tmp_path, name):
    source = {"spiece.model": spiece, "tokenizer.json": saved}[name]
    with pytest.raises(ValueError, match=r"pieces, but the model's embedding only 40 rows"):
        open_tokenizer(source, 40)


def test_a_pair_with_tokenizer_json_alone(saved, tmp_path):
    """Text in and out, and the file goes with the checkpoint."""
    for name, seed in (("target", 0), ("draft", 1)):
        params = jax.device_get(random_params(T5, seed))
        save_huggingface(tmp_path / name, T5, params, saved)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    assert pair.vocabulary.encode("<extra_id_0>") == [PIECES + 99]


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


def test_a_pair_with_its_files_continues_texts(tmp_path):
    """A string is the prompt; an empty one is generation from nothing."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, 300, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(tmp_path))
    config = dataclasses.replace(TINY_GPT["gpt"], vocab_size=300, eos_id=0, start_id=0, pad_id=0)
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(tmp_path / role, config, jax.device_get(random_params(config, seed)))
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(tmp_path / name, tmp_path / role / name)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    assert pair.vocabulary is not None
    out = pair.generate(["The quick", ""], max_decode_len=8, method="autoregressive")
    for text, tokens in zip(out.texts, out.tokens, strict=True):
        kept = [t for t in tokens.tolist() if t != config.eos_id]
        assert text == pair.vocabulary.decode(kept)


# What is imported

CODE = """
import sys, warnings
import specdec
from specdec.checkpoints import load_huggingface, save_t5x
def told(where):
    found = {name.split('.')[0] for name in sys.modules} & {'torch', 'transformers'}
    assert not found, (where, found)
told('import')
for name in ('quickstart', 'quickstart_lm'):
    words = specdec.load_pair(name).vocabulary
    assert words.decode(words.encode('the house', add_eos=True)) == 'the house'
    told(name)
source = specdec.checkpoints.loading.bundled('quickstart') / 'target'
save_t5x(sys.argv[1], *load_huggingface(source), 1)
import shutil
import subprocess
import sys
shutil.copy(source / 'spiece.model', sys.argv[1])
pair = specdec.load_pair(target=sys.argv[1], draft=specdec.Copying())
assert pair.vocabulary is not None and pair.vocabulary.pieces()
told('a T5X checkpoint')
"""


def test_only_hugging_face_directories_need_transformers(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path / "t5x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
