"""The bundled decoder-only pair: what it ships as, and that speculation changes nothing."""

import importlib.resources
from pathlib import Path

import numpy as np
import pytest

import specdec
from specdec.data.tasks import bundled_examples

BUNDLED = Path(str(importlib.resources.files("specdec"))) / "bundled" / "quickstart_lm"


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart_lm")


def test_size_and_files():
    files = [path for path in BUNDLED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 14e6
    for model in ("target", "draft"):
        names = {path.name for path in (BUNDLED / model).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    card = (BUNDLED / "README.md").read_text(encoding="utf-8")
    for word in ("public domain", "Dickens", "seed", "lm_target.gin", "lm_draft.gin"):
        assert word in card


@pytest.mark.parametrize("count", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_openings_are_continued_as_by_plain_decoding(pair, count):
    texts = [example.input for example in bundled_examples("quickstart_lm").examples][:count]
    options = {"max_decode_len": 48, "batch_size": min(8, count)}
    out = pair.generate(texts, gamma=3, **options)
    plain = pair.generate(texts, method="autoregressive", **options)
    assert len(texts) == count
    for ours, theirs in zip(out.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if count == 24:  # A few texts say little of it.
        assert out.stats.alpha > 0.4
    assert all(text and text == text.lower() for text in out.texts)


@pytest.mark.slow
def test_passages_from_nothing_differ_and_end(pair):
    sampling = specdec.SamplingConfig(1.0)
    out = pair.generate([""] * 8, gamma=3, sampling=sampling, max_decode_len=128, batch_size=8)
    assert len(set(out.texts)) == 8
    assert sum(tokens[-1] == pair.vocabulary.eos_id for tokens in out.tokens) >= 6
    bigram = specdec.load_pair(target="quickstart_lm", draft=specdec.Ngram("quickstart_lm"))
    guessed = bigram.generate([""] * 8, gamma=1, sampling=sampling, max_decode_len=128)
    assert 0.05 < guessed.stats.alpha < out.stats.alpha
