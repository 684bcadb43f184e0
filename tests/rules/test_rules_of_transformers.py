"""Rules for logits against transformers: the same tokens, greedy and by beams, 2,000 a case.

Random T5s and GPT-2s: their outputs are long, and repeat themselves.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.core.standardize import standardize
from specdec.decoding.batches import make_batches
from specdec.decoding.build import build
from specdec.decoding.options import Decoding

# What transformers imports warns of much that is its own to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

LIMIT, ROWS, TOKENS = 40, 60, 2_000
SIZE = 19
# How EOS's logit is scaled: it is seldom the best token, and outputs are long; or as it is.
RARE, USUAL = 0.3, 1.0
# Some at a time, with what transformers calls them. Behind a prompt its first token is not forced.
RULES = {
    "several": (
        (specdec.RepetitionPenalty(1.3), specdec.NoRepeatNgram(2), specdec.MinNewTokens(36)),
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 36},
    ),
    "tokens": (
        (specdec.Suppressed([3, 4, 11]), specdec.ForcedLast(5)),
        {"suppress_tokens": [3, 4, 11], "forced_eos_token_id": 5},
    ),
    "first tokens": (
        (specdec.ForcedFirst(7), specdec.MinLength(36)),
        {"forced_bos_token_id": 7, "min_length": 36},
    ),
    "sequences": (
        (
            specdec.Forbidden([[4], [7, 7], [5, 6, 8], [9, 10]]),
            specdec.Suppressed([*range(9)], at=0),
        ),
        {
            "bad_words_ids": [[4], [7, 7], [5, 6, 8], [9, 10]],
            "begin_suppress_tokens": [*range(9)],
        },
    ),
}


def t5(directory, rare):
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    config, params = TINY["v1.1"], jax.tree.map(np.array, random_params(TINY["v1.1"], 3))
    params["decoder"]["logits_dense"]["kernel"][:, 1] *= rare
    save_huggingface(directory, config, params)
    model = transformers.T5ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    # transformers gives the decoder's cache as many layers as the encoder has.
    model.config.num_layers = model.config.num_decoder_layers
    return model.eval()


def gpt(directory, rare):
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    config = transformers.GPT2Config(
        vocab_size=SIZE, n_positions=128, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=1, initializer_range=0.9,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config).float().eval()
    model.transformer.wte.weight.data[1] *= rare
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Of each kind transformers' model, and the same as it is loaded here."""

    @functools.cache
    def made(kind, rare):
        directory = tmp_path_factory.mktemp(kind)
        model = {"t5": t5, "gpt": gpt}[kind](directory, rare)
        return model, load_model(str(directory), "float32")

    return made


def texts():
    """Of few lengths, so that transformers decodes many at a time without filler."""
    generator = np.random.default_rng(0)
    return [np.array([*generator.integers(2, SIZE, 3 + 7 * (i % 2)), 1]) for i in range(ROWS)]


def theirs(model, ids, options):
    """Tokens of each row."""
    import torch

    found = {}
    for size in {len(each) for each in ids}:
        rows = [row for row, each in enumerate(ids) if len(each) == size]
        out = model.generate(
            torch.tensor(np.stack([ids[row] for row in rows])), max_new_tokens=LIMIT,
            do_sample=False, pad_token_id=0, **options,
        ).tolist()  # fmt: skip
        for row, tokens in zip(rows, out, strict=True):
            new = tokens[1 if model.config.is_encoder_decoder else size :]
            found[row] = new[: new.index(1) + 1] if 1 in new else new
    return [found[row] for row in range(len(ids))]


def ours(loaded, ids, decoding):
    """Tokens of each row."""
    decoder, found = build(loaded, None, decoding), {}
    for batch, result in decoder.decode_all(make_batches(ids, 12, loaded.model)):
        for row, index in zip(batch.row_ids, range(12), strict=True):
            if row >= 0:
                best = (index, 0) if decoding.searches else (index,)
                found[int(row)] = result.tokens[best][: result.num_tokens[best]].tolist()
    return [found[row] for row in range(len(ids))]


@pytest.mark.parametrize(
    ("kind", "name", "beams"),
    [
        ("gpt", "several", 1), ("t5", "several", 3), ("t5", "tokens", 1), ("gpt", "tokens", 3),
        ("t5", "first tokens", 1), ("t5", "sequences", 1), ("gpt", "sequences", 3),
    ],
)  # fmt: skip
def test_the_same_tokens(models, kind, name, beams):
    model, loaded = models(kind, USUAL if name in ("several", "first tokens") else RARE)
    rules, options = RULES[name]
    decoding = Decoding(method="autoregressive", rules=rules, max_decode_len=LIMIT, batch_size=12)
    if beams > 1:
        beam = specdec.BeamConfig(beams, rule="huggingface")
        decoding = dataclasses.replace(decoding, method="beam", beam=beam)
        options = options | {"num_beams": beams}
    ids = texts()
    if kind == "gpt":
        ids = [each[:-1] for each in ids]
    found = ours(loaded, ids, decoding)
    without = ours(loaded, ids, dataclasses.replace(decoding, rules=()))
    assert found != without, "the rule changes nothing"
    assert found == theirs(model, ids, options)
    assert sum(map(len, found)) >= TOKENS


@pytest.mark.parametrize(
    "sampling",
    [
        specdec.SamplingConfig(0.7, min_p=0.05), specdec.SamplingConfig(1.2, 30, 0.9, 0.02, 0.8),
    ],
)  # fmt: skip
def test_the_same_distribution_is_sampled(sampling):
    """After transformers' own warpers, in the order in which its generate applies them."""
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = np.random.default_rng(0).normal(0, 3, (200, 1, 64)).astype(np.float32)
    theirs = warpers.TemperatureLogitsWarper(sampling.temperature)(None, torch.tensor(logits[:, 0]))
    if sampling.top_k:
        theirs = warpers.TopKLogitsWarper(sampling.top_k)(None, theirs)
    if sampling.top_p < 1:
        theirs = warpers.TopPLogitsWarper(sampling.top_p)(None, theirs)
    if sampling.min_p:
        theirs = warpers.MinPLogitsWarper(sampling.min_p)(None, theirs)
    if sampling.typical_p < 1:
        theirs = warpers.TypicalLogitsWarper(sampling.typical_p)(None, theirs)
    expected = torch.softmax(theirs, -1).numpy()
    found = standardize(jax.numpy.asarray(logits), sampling.traced())[:, 0]
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.mean(expected == 0) > 0.2
