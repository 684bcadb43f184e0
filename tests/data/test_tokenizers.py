"""spiece.model and tokenizer.json give the ids of transformers, sentinels among them."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_vocabularies import train_pieces
from specdec.data.fast_tokenizer import FastTokenizer, open_tokenizer
from tiny import random_t5_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.models.t5.config import T5Config

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")

LINES = [
    "The quick brown fox jumps over the lazy dog and sees a cat.", "Who sees the dog?",
    "Thank you for inviting me to your party last week.",
] * 30  # fmt: skip
PIECES, ROWS = 44, 160
TEXTS = [
    "The <extra_id_0> sees", "The<extra_id_0>sees", "<extra_id_1> The </s> dog", "a <pad> b",
    "  The  dog ", "<extra_id_100> x", "The <extra_id_0><extra_id_1> sees <extra_id_99>", "</s>",
    "The dog</s>", "a\tb\nc", "<unk> a", "Grüße ½ ﬁ", "", " ",
]  # fmt: skip
CONFIG = T5Config(
    vocab_size=ROWS, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
    head_dim=8, d_ff=16,
)  # fmt: skip


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """A vocabulary like T5's, without pieces for bytes."""
    directory = tmp_path_factory.mktemp("spiece")
    return train_pieces(directory, LINES, PIECES)


@pytest.fixture(scope="module")
def theirs(spiece):
    return transformers.T5Tokenizer.from_pretrained(str(spiece.parent))


@pytest.fixture(scope="module")
def saved(theirs, tmp_path_factory):
    """What transformers 5 writes: no spiece.model."""
    directory = tmp_path_factory.mktemp("saved")
    theirs.save_pretrained(directory)
    assert not (directory / "spiece.model").exists()
    return directory / "tokenizer.json"


@pytest.mark.parametrize("text", TEXTS)
def test_the_ids_of_transformers(spiece, saved, theirs, text):
    expected = theirs(text, add_special_tokens=False).input_ids
    for ours in (FastTokenizer(spiece, ROWS), FastTokenizer(saved, ROWS)):
        assert ours.encode(text) == expected
        assert ours.encode(text, add_eos=True) == [*expected, ours.eos_id]


@pytest.mark.parametrize("text", ["The<extra_id_0> sees<extra_id_12>", "<extra_id_99>", "The"])
def test_sentinels_come_back(spiece, saved, text):
    for ours in (FastTokenizer(spiece, ROWS), FastTokenizer(saved, ROWS)):
        assert ours.decode([0, *ours.encode(text, add_eos=True)]) == text


def test_sentinels_are_at_the_end_of_what_is_used(spiece, tmp_path):
    whole, fewer = FastTokenizer(spiece, ROWS), FastTokenizer(spiece, PIECES + 7)
    assert (len(whole), len(fewer), len(FastTokenizer(spiece))) == (
        PIECES + 100,
        PIECES + 7,
        PIECES,
    )
    assert whole.encode("<extra_id_0>") == [PIECES + 99]
    assert fewer.encode("<extra_id_6>") == [PIECES]
    assert len(fewer.encode("<extra_id_7>")) > 1
    (tmp_path / "spiece.model").write_bytes(spiece.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 3}))
    assert len(FastTokenizer(tmp_path / "spiece.model", ROWS)) == PIECES + 3


def test_ids_past_the_end_have_no_text(spiece, saved):
    for ours in (FastTokenizer(spiece, ROWS), FastTokenizer(saved, ROWS)):
        assert ours.decode([*ours.encode("dog"), ROWS - 1, 10**6]) == "dog"


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.json"])
def test_a_vocabulary_of_another_model_is_refused(spiece, saved, tmp_path, name):
    source = {"spiece.model": spiece, "tokenizer.json": saved}[name]
    with pytest.raises(ValueError, match=r"pieces, but the model's embedding only 40 rows"):
        open_tokenizer(source, 40)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE"}}'])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer.json (cannot be read as|is not)"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_a_pair_with_tokenizer_json_alone(saved, tmp_path):
    """Text in and out, and the file goes with the checkpoint."""
    for name, seed in (("target", 0), ("draft", 1)):
        params = jax.device_get(random_t5_params(CONFIG, seed))
        save_huggingface(tmp_path / name, CONFIG, params, saved)
    pair = specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
    out = pair.generate(["The <extra_id_0> sees"], method="autoregressive", max_decode_len=8)
    assert out.texts == [pair.vocabulary.decode(out.tokens[0])]
    assert pair.vocabulary.encode("<extra_id_0>") == [PIECES + 99]


@pytest.mark.parametrize(
    ("target_rows", "draft_rows"),
    [(ROWS, ROWS - 8), pytest.param(ROWS - 8, ROWS, marks=pytest.mark.slow)],
)
def test_padding_of_the_embedding_may_differ(spiece, tmp_path, target_rows, draft_rows):
    """The draft guesses the common tokens: greedily the target's own output comes out."""
    for name, rows, seed in (("target", target_rows, 0), ("draft", draft_rows, 0)):
        config = dataclasses.replace(CONFIG, vocab_size=rows)
        save_huggingface(tmp_path / name, config, random_t5_params(config, seed), spiece)
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
        config = dataclasses.replace(CONFIG, vocab_size=rows)
        save_huggingface(tmp_path / name, config, random_t5_params(config, 0))
    with pytest.raises(ValueError, match=r"put the same spiece\.model beside both"):
        specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
