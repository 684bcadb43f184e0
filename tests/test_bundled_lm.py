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


def test_openings_are_continued_as_by_plain_decoding(pair):
    texts = [example.input for example in bundled_examples("quickstart_lm").examples][:2]
    options = {"max_decode_len": 48, "batch_size": 2}
    out = pair.generate(texts, gamma=3, **options)
    plain = pair.generate(texts, method="autoregressive", **options)
    for ours, theirs in zip(out.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(text and text == text.lower() for text in out.texts)
