"""Every kind of draft through the public interface, on tiny models from disk."""

import numpy as np
import pytest

import specdec
from specdec.models.products.quantized import num_bytes
from specdec.text.vocabulary import Vocabulary
from specdec.training.ngrams import build
from specdec.training.train import TextFiles
from specdec.types import SamplingConfig
from tests.runs.conftest import TEXTS

GREEDY, SAMPLED = SamplingConfig(0.0), SamplingConfig(1.0)


@pytest.fixture(scope="module")
def ngrams(tiny):
    """Tables of the tiny pair's own outputs."""
    pair = specdec.load_pair(target=tiny.target, draft=specdec.Random())
    outputs = pair.generate(TEXTS, method="autoregressive", max_decode_len=12, batch_size=4).texts
    lines = [f"{a}\t{b or 'x'}" for a, b in zip(TEXTS, outputs, strict=True)]
    (tiny.root / "train.tsv").write_text("\n".join(lines) + "\n")
    build(
        tiny.root / "ngrams", files=TextFiles(str(tiny.root)), vocabulary_path=str(tiny.target),
        vocab_size=pair.target.model.vocab_size, order=3, min_count=1,
    )  # fmt: skip
    return str(tiny.root / "ngrams")


@pytest.fixture(scope="module")
def specs(tiny, ngrams):
    return {
        "model": str(tiny.draft),
        "unigram": specdec.Ngram(ngrams, 1),
        "trigram": specdec.Ngram(ngrams),
        "copying": specdec.Copying(),
        "random": specdec.Random(),
        "over copying": specdec.Hierarchical(str(tiny.draft), specdec.Copying(), 2),
        "over bigram": specdec.Hierarchical(str(tiny.draft), specdec.Ngram(ngrams, 2), 1),
        "int8": specdec.Quantized(),
        "int4": specdec.Quantized(4),
        "int8 of a draft": specdec.Quantized(of=str(tiny.draft)),
        "int8 over copying": specdec.Hierarchical(specdec.Quantized(), specdec.Copying(), 2),
    }


NAMES = (
    "model", "unigram", "trigram", "copying", "random", "over copying", "over bigram", "int8",
    "int4", "int8 of a draft", "int8 over copying",
)  # fmt: skip
# One or two of each kind; the others are their mixtures.
QUICK = ("model", "trigram", "copying", "over copying", "int8")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES],
)
def test_greedy_tokens_are_the_targets(tiny, specs, name):
    pair = specdec.load_pair(target=tiny.target, draft=specs[name])
    plain = pair.generate(TEXTS, method="autoregressive", max_decode_len=12, batch_size=4)
    verifier, draft_sampling = specdec.BlockVerifier(), SAMPLED
    if name in ("model", "trigram"):  # The others say the same at any temperature, or cost more.
        verifier, draft_sampling = specdec.TokenVerifier(), None
    fast = pair.generate(
        TEXTS, gamma=3, max_decode_len=12, batch_size=4, verifier=verifier,
        draft_sampling=draft_sampling,
    )  # fmt: skip
    for a, b in zip(plain.tokens, fast.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    assert fast.stats.target_calls <= plain.stats.target_calls


@pytest.mark.parametrize(
    "name",
    [
        "trigram",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("copying", "over bigram", "int8")),
    ],
)  # fmt: skip
def test_sampled_rows_do_not_depend_on_their_neighbours(tiny, specs, name):
    pair = specdec.load_pair(target=tiny.target, draft=specs[name])
    options = dict(gamma=3, max_decode_len=12, sampling=SAMPLED, seed=5)
    alone, together = (pair.generate(TEXTS, batch_size=n, **options) for n in (1, 4))
    for a, b in zip(alone.tokens, together.tokens, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_hierarchical_draft_guesses_as_its_model_does(tiny, specs):
    """Greedily, the same guesses and so the same counts."""
    options = dict(gamma=3, max_decode_len=12, batch_size=4)
    model, *over = (
        specdec.load_pair(target=tiny.target, draft=specs[name]).generate(TEXTS, **options).stats
        for name in ("model", "over copying", "over bigram")
    )
    assert over == [model, model]
    assert model.accepted > 0


@pytest.mark.slow
def test_the_targets_own_copy_agrees_with_it(tiny, specs):
    """Rounded to 8 bits nearly always; so this tells it from any other draft here."""
    rates = {
        name: specdec.load_pair(target=tiny.target, draft=specs[name])
        .generate(TEXTS, gamma=3, max_decode_len=12, sampling=SAMPLED)
        .stats.alpha
        for name in ("model", "int8", "int4", "int8 over copying")
    }
    assert rates["int8"] > 0.98
    assert rates["int8 over copying"] == pytest.approx(rates["int8"], abs=0.01)
    assert rates["model"] < rates["int4"] < rates["int8"]


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: specdec.Quantized(3), "bits must be 8 or 4, got 3"),
        (lambda: specdec.Quantized(8, 16), "8 bits have one scale an output and no groups"),
        (lambda: specdec.Quantized(4, 3), "group must be an even number of at least 2, got 3"),
        (
            lambda: specdec.Quantized(of=specdec.Ngram("quickstart")),
            "Quantized.of must be a path or a name",
        ),
    ],
)
def test_a_quantized_draft_that_is_not_offered(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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


def test_what_a_draft_cannot_do_is_refused(tiny, ngrams):
    pair = specdec.load_pair(target=tiny.target, draft=specdec.Ngram(ngrams))
    with pytest.raises(ValueError, match="stop_below must be 0"):
        pair.generate(TEXTS, gamma=2, stop_below=0.5)
    with pytest.raises(ValueError, match="set the draft's own temperature"):
        pair.generate(TEXTS, gamma=2, sampling=SamplingConfig(1.0, top_k=3))
    pair.generate(
        TEXTS[:1], gamma=2, sampling=SamplingConfig(1.0, top_k=3), draft_sampling=SAMPLED,
        max_decode_len=12,
    )  # fmt: skip


def test_lenience_changes_what_is_said(tiny):
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft)
    plain = pair.generate(TEXTS, method="autoregressive", max_decode_len=12, batch_size=4)
    exact, loose = (
        pair.generate(TEXTS, gamma=3, max_decode_len=12, verifier=specdec.LenientVerifier(x))
        for x in (1.0, 0.01)
    )
    same = [np.array_equal(a, b) for a, b in zip(plain.tokens, exact.tokens, strict=True)]
    assert all(same)
    assert any(not np.array_equal(a, b) for a, b in zip(plain.tokens, loose.tokens, strict=True))
    assert loose.stats.acceptance_rate > exact.stats.acceptance_rate
