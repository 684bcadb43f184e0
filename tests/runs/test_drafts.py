"""Drafts from disk: tables of n-grams, copies in few bits, drafts of drafts; what does not fit."""

import numpy as np
import pytest

import specdec
from specdec.models.products.quantized import num_bytes
from specdec.text.vocabulary import Vocabulary
from specdec.training.ngrams import build
from specdec.training.train import TextFiles
from specdec.types import SamplingConfig
from tests.runs.conftest import TEXTS


@pytest.fixture(scope="module")
def ngrams(tiny):
    """Tables of the tiny pair's own outputs."""
    pair = specdec.load_pair(target=tiny.target, draft=specdec.Random())
    outputs = pair.generate(TEXTS, method="autoregressive", max_decode_len=12, batch_size=4).texts
    lines = [f"{a}\t{b or 'x'}" for a, b in zip(TEXTS, outputs, strict=True)]
    (tiny.root / "train.tsv").write_text("\n".join(lines) + "\n")
    build(
        tiny.root / "ngrams", files=TextFiles(str(tiny.root)), vocabulary_path=str(tiny.target),
        vocab_size=pair.target.model.vocab_size, order=3,
    )  # fmt: skip
    return str(tiny.root / "ngrams")


def test_a_hierarchical_draft_guesses_as_its_model_does(tiny, ngrams):
    """Greedily, the same guesses and so the same counts."""
    options = dict(gamma=3, max_decode_len=12, batch_size=4)
    draft = str(tiny.draft)
    drafts = (
        draft, specdec.Hierarchical(draft, specdec.Copying(), 2),
        specdec.Hierarchical(draft, specdec.Ngram(ngrams, 2), 1),
    )  # fmt: skip
    model, *over = (
        specdec.load_pair(target=tiny.target, draft=each).generate(TEXTS, **options).stats
        for each in drafts
    )
    assert over == [model, model]
    assert model.accepted > 0


def test_int8_weights_are_another_model_and_lossless_with_respect_to_it(tiny):
    full = specdec.load_pair(target=tiny.target, draft=tiny.draft)
    few = specdec.load_pair(target=tiny.target, draft=tiny.draft, weights="int8")
    assert few.name.endswith(", int8 weights")
    plain, fast = (
        few.generate(TEXTS, gamma=3, method=method, max_decode_len=12)
        for method in ("autoregressive", "speculative")
    )
    for a, b in zip(plain.tokens, fast.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    full_read, few_read = (
        num_bytes(pair.target.model.step_params(pair.target.params)) for pair in (full, few)
    )
    assert full_read > 2.5 * few_read
    own = specdec.load_pair(target=tiny.target, draft=specdec.Quantized(4), weights="int8")
    again = own.generate(TEXTS, gamma=3, max_decode_len=12)
    for a, b in zip(plain.tokens, again.tokens, strict=True):
        np.testing.assert_array_equal(a, b)


def test_quantized_drafts_that_do_not_fit(tiny):
    with pytest.raises(ValueError, match="Groups of 64 do not divide a kernel of 16 in-features"):
        specdec.load_pair(target=tiny.target, draft=specdec.Quantized(4, 64))
    with pytest.raises(ValueError, match="have 8 bits already"):
        specdec.load_pair(target=tiny.target, draft=specdec.Quantized(), weights="int8")
    with pytest.raises(ValueError, match="weights must be 'int8' or None"):
        specdec.load_pair(target=tiny.target, draft=tiny.draft, weights="int4")


def test_tables_of_another_vocabulary_are_refused(tiny, ngrams, tmp_path):
    other = specdec.Ngram("quickstart")
    with pytest.raises(ValueError, match=r"tables of quickstart are of another vocabulary \(4096"):
        specdec.load_pair(target=tiny.target, draft=other)
    # The same size, another file.
    vocabulary = (tiny.root / "spiece.model").read_bytes()
    (tmp_path / "spiece.model").write_bytes(vocabulary + b"\x00")
    build(
        tmp_path, files=TextFiles(str(tiny.root)), vocabulary_path=str(tiny.target),
        vocab_size=320, order=2,
    )  # fmt: skip
    from specdec.checkpoints.ngrams import load_ngrams, save_ngrams

    save_ngrams(tmp_path / "n", load_ngrams(tmp_path)[0], tmp_path / "spiece.model")
    with pytest.raises(ValueError, match="another vocabulary"):
        specdec.load_pair(target=tiny.target, draft=specdec.Ngram(str(tmp_path / "n")))
    assert Vocabulary(tiny.target)


def test_tables_have_a_temperature_of_their_own(tiny, ngrams):
    pair = specdec.load_pair(target=tiny.target, draft=specdec.Ngram(ngrams))
    with pytest.raises(ValueError, match="set the draft's own temperature"):
        pair.generate(TEXTS, gamma=2, sampling=SamplingConfig(1.0, top_k=3))
