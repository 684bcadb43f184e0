"""The bundled pair on real text: what it ships as, and that speculation changes nothing."""

import importlib.resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import logits_along, prompt_of

import specdec
from specdec.checkpoints import load_huggingface, open_checkpoint
from specdec.checkpoints.loading import load_packed
from specdec.data.text import read_pairs
from specdec.decoding.batches import commonest, make_batches
from specdec.models.transformer.network import Transformer

BUNDLED = Path(str(importlib.resources.files("specdec"))) / "bundled" / "quickstart"
GAMMA, BATCH, MAX_LEN = 3, 16, 64
TOKENS = 5_000


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart")


def test_size_and_files():
    files = [path for model in ("target", "draft") for path in (BUNDLED / model).iterdir()]
    assert sum(path.stat().st_size for path in files) <= 48e6
    small = BUNDLED / "draft_small"
    assert sum(path.stat().st_size for path in small.iterdir()) <= 2e6
    for model in ("target", "draft", "draft_small"):
        names = {path.name for path in (BUNDLED / model).iterdir()}
        assert {"config.json", "model.safetensors", "spiece.model"} <= names


def test_model_card_names_data_and_licence():
    card = (BUNDLED / "README.md").read_text()
    for word in ("CC BY 2.0", "tatoeba.org", "manythings.org", "seed", "BLEU"):
        assert word in card


def test_translates(pair):
    out = pair.generate(["Good morning.", "I would like a cup of tea."], gamma=GAMMA)
    plain = pair.generate(["Good morning.", "I would like a cup of tea."], method="autoregressive")
    assert out.texts == plain.texts
    assert all(text for text in out.texts)
    assert out.stats.block_efficiency > 1
    assert all(tokens[-1] == 1 for tokens in out.tokens)


def top_two_gap(pair, prompt, prefix):
    """The gap between the two largest logits after ``prefix``, all of it scored at once."""
    model, packed = pair.target.model, pair.target.params
    tokens = jnp.asarray([[model.config.start_id, *prefix]])
    logits = logits_along(model, packed, prompt, tokens)
    second, first = np.sort(np.asarray(logits[0, -1]))[-2:]
    return float(first - second)


def test_greedy_over_real_text(pair, data_dir):
    """At least 5,000 tokens of the test and validation splits, sentences joined by fours.

    Against the width-matched reference, whose calls have the same shapes: not one difference.
    Against the plain reference, arithmetic may differ in the last bits: every differing row must
    have its two best logits within 1e-3 of each other where it first differs.
    """
    pairs = [
        pair
        for split in ("test", "validation")
        for pair in read_pairs(data_dir / "ende_tatoeba" / f"{split}.tsv")
    ]
    sources = [source for source, _ in pairs[:3400:2]]
    texts = [" ".join(sources[i : i + 4]) for i in range(0, len(sources), 4)]
    ids = pair.token_ids(texts, max_input_len=256)
    common = dict(gamma=GAMMA, sampling=specdec.SamplingConfig(0.0), max_decode_len=MAX_LEN, seed=0)
    speculative = pair.decoder(method="speculative", **common)
    reference = pair.decoder(method="autoregressive", **common)
    width_matched = pair.decoder(method="autoregressive", width=GAMMA + 1, **common)
    count = 0
    # Those of one bucket: each needs three programs.
    for batch in commonest(list(make_batches(ids, BATCH, pair.target.model))):
        fast, matched, plain = (
            decoder.decode(batch) for decoder in (speculative, width_matched, reference)
        )
        np.testing.assert_array_equal(fast.tokens, matched.tokens)
        for row in np.flatnonzero(np.any(fast.tokens != plain.tokens, axis=1)):
            at = int(np.argmax(fast.tokens[row] != plain.tokens[row]))
            gap = top_two_gap(pair, batch.row(row), plain.tokens[row, :at].tolist())
            assert gap < 1e-3, (row, at, gap)
        count += int(fast.num_tokens.sum())
    assert count >= TOKENS


def test_16_bits_in_memory_change_no_token(pair, data_dir):
    """Beside the same weights widened at load.

    In batches of up to 32 tokens a call; in larger ones sums are rounded in another order.
    """
    sources = [source for source, _ in read_pairs(data_dir / "ende_tatoeba" / "test.tsv")]
    texts = [text for text in sources if 24 <= len(text) <= 40][:120]  # Of one bucket.
    assert pair.target.params.layers.wi.dtype == jnp.float16
    widened = load_packed(*open_checkpoint(BUNDLED / "target"), "widened")
    wide = specdec.Pair(widened, pair.draft, pair.vocabulary)
    options = dict(
        gamma=GAMMA, sampling=specdec.SamplingConfig(1.0), max_decode_len=MAX_LEN,
        batch_size=32 // (GAMMA + 1),
    )  # fmt: skip
    expected, found = (both.generate(texts, **options).tokens for both in (wide, pair))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert sum(map(len, found)) > 800


def test_the_network_and_the_packed_decoder_agree_on_real_weights(pair):
    config, params = load_huggingface(BUNDLED / "target")
    inputs = jnp.asarray(pair.token_ids(["The house is old."], max_input_len=32)[0])[None]
    tokens = jnp.asarray([[0, 5, 9, 100, 7]])
    truth = Transformer(config).apply({"params": params}, inputs, tokens)
    model, packed = pair.target.model, pair.target.params
    logits = logits_along(model, packed, prompt_of(model, inputs), tokens)
    np.testing.assert_allclose(logits, truth, rtol=1e-3, atol=1e-3)
