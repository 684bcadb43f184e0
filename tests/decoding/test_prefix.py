"""Outputs that are made to begin with given tokens: every method and draft continues them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, TINY_GPT, changed, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.core.compilation import num_programs
from specdec.decoding.batches import make_batches
from specdec.models.base import forced
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer

CONFIG = changed(TINY["v1.0"], num_encoder_layers=1)
TEXTS = [[5, 9, 3, 7, 1], [4, 1], [12, 8, 8, 2, 6, 1], [9, 9, 4, 1]]
PREFIXES = [[7, 3], [], [11, 5, 2, 14, 6], list(range(2, 18))]
COUNT = 10
# Greedy: T5X's rule would keep a worse hypothesis that ended before.
ONE_BEAM = specdec.BeamConfig(1, "huggingface", early_stopping=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("prefix")
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(root / role, CONFIG, jax.device_get(random_params(CONFIG, seed)))
    return root


@pytest.fixture(scope="module")
def pair(root):
    return specdec.load_pair(target=root / "target", draft=root / "draft")


@pytest.fixture(scope="module")
def expected():
    """Greedy, token by token, from the network on each row alone."""
    params = random_params(CONFIG, 0)

    @jax.jit
    def logits(inputs, tokens):  # Of one shape each: the decoder is causal, padding is masked.
        return Transformer(CONFIG).apply({"params": params}, inputs, tokens)[0]

    def continued(text, prefix):
        inputs, tokens = np.zeros((1, 8), np.int32), np.zeros((1, 32), np.int32)
        inputs[0, : len(text)] = text
        given = [CONFIG.start_id, *prefix]
        tokens[0, : len(given)] = given
        for end in range(len(given), len(given) + COUNT):
            tokens[0, end] = np.argmax(logits(inputs, tokens)[end - 1])
            if tokens[0, end] == CONFIG.eos_id:
                break
        return tokens[0, len(given) : end + 1].tolist()

    return [continued(*row) for row in zip(TEXTS, PREFIXES, strict=True)]


def generated(pair, texts=TEXTS, prefix=PREFIXES, **options):
    out = pair.generate(texts, **{"max_decode_len": COUNT, "prefix": prefix} | options)
    return [row.tolist() for row in out.tokens]


@pytest.mark.parametrize(
    "way",
    [
        {"method": "autoregressive"}, {"gamma": 3}, {"tree": specdec.Tree(nodes=6, depth=3)},
        {"method": "speculative_beam", "gamma": 2, "beam": ONE_BEAM},
    ],
    ids=lambda way: "-".join(way),
)  # fmt: skip
def test_every_method_continues_the_prefix(pair, expected, way):
    assert generated(pair, batch_size=3, **way) == expected


def test_the_prefix_is_prefilled_in_one_call_without_logits(pair, monkeypatch):
    calls = []
    extend, logits = TransformerModel._extend, TransformerModel._logits

    def noted(self, params, encoded, cache, tokens, *rest):
        calls.append(tokens.shape[1])
        return extend(self, params, encoded, cache, tokens, *rest)

    monkeypatch.setattr(TransformerModel, "_extend", noted)
    monkeypatch.setattr(
        TransformerModel, "_logits", lambda *args: calls.append("logits") or logits(*args)
    )
    model, params = pair.target.model, pair.target.params
    texts = jnp.array([[5, 1]])
    plain = model.prompt(texts, jnp.array([2]))
    model.start(params, plain, 4)
    assert calls == []
    model.start(params, forced(plain, np.full((1, 16), 7), np.array([3])), 4)
    assert calls == [16]


def test_prefixes_of_a_bucket_share_their_program(pair):
    options = {"max_decode_len": COUNT, "method": "autoregressive"}
    generated(pair, TEXTS[:1], None, **options)
    before = num_programs()
    for length in (1, 2, 9, 16):
        generated(pair, TEXTS[:1], [5] * length, **options)
    assert num_programs() == before + 2
    generated(pair, TEXTS[:1], [5] * 17, **options)
    assert num_programs() == before + 3, "it starts in its own way, and the loop is the same"


@pytest.mark.parametrize("empty", ["", np.zeros(0, np.int32), [[]] * 4])
def test_no_prefix_is_as_before(pair, empty):
    """Then the decoder begins with the start token alone, as in batches that know no prefixes."""
    prefixes = pair.prefix_ids(empty, 4, max_input_len=16)
    ids = pair.token_ids(TEXTS, max_input_len=16)
    (plain,), (batch,) = (
        make_batches(ids, 4, pair.target.model, each) for each in (None, prefixes)
    )
    jax.tree.map(np.testing.assert_array_equal, batch.prompt, plain.prompt)
    assert batch.prompt.prefix.tolist() == [[0]] * 4
    assert generated(pair, prefix=empty, gamma=3) == generated(pair, prefix=None, gamma=3)


def test_one_prefix_for_all(pair):
    each = generated(pair, prefix=[[7, 3]] * 4, gamma=3)
    assert generated(pair, prefix=[7, 3], gamma=3) == each
    assert generated(pair, prefix=np.array([7, 3]), gamma=3) == each
    assert generated(pair, [], [7, 3]) == []


def test_copying_looks_for_the_prefix(root):
    copying = specdec.load_pair(target=root / "target", draft=specdec.Copying())
    out = copying.generate([[5, 9, 3, 7, 11, 1]], prefix=[9, 3], gamma=3, trace=True)
    block = out.traces[0][0]
    assert (block.accepted + block.rejected)[0] == 7


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ([[5], [6]], r"prefix has 2 entries for 4 texts: give one for each text, or"),
        ([5] * 513, r"prefix has 513 tokens, more than max_input_len = 512; shorten it"),
        ([[5], [6], [7] * 600, []], r"prefix 2 has 600 tokens, more than max_input_len = 512"),
        ([5, 19], r"prefix has a token outside the vocabulary \[0, 19\)"),
        ([5, 1], r"prefix contains token 1, which ends an output: leave EOS out"),
        ([0.5] * 4, r"prefix 0 must be a string or a list of token ids"),
        ("The", r"prefix is a string, but this pair has no vocabulary"),
        (5, r"prefix must be a string, token ids, or a list with one of these .*, got 5"),
    ],
    ids=range(8),
)  # fmt: skip
def test_one_clear_error(pair, prefix, message):
    with pytest.raises(ValueError, match=message):
        generated(pair, prefix=prefix)


def test_a_gpts_text_is_its_prefix(tmp_path):
    config = TINY_GPT["gpt"]
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_params(config, 0)))
    gpt = specdec.load_pair(target=tmp_path / "gpt", draft=specdec.Copying())
    with pytest.raises(ValueError, match=r"decoder-only: its text itself is the prefix\. Leave"):
        generated(gpt, TEXTS, [5, 6])
    plain = {"method": "autoregressive"}
    assert generated(gpt, TEXTS, "", **plain) == generated(gpt, TEXTS, None, **plain)
