"""GPT-2: its packed decode path is the network, and prompts are ragged, prefilled and checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY_GPT, logits_along, random_gpt_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.models.gpt.model import GPTModel
from specdec.models.gpt.network import Transformer

PROMPTS = [[5, 9, 3, 7], [], [4], list(range(2, 18))]


@pytest.mark.parametrize("variant", TINY_GPT)
@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_packed_gpt_is_the_network(variant, layout):
    config = TINY_GPT[variant]
    params = random_gpt_params(config, 3)
    model = GPTModel(config, layout)
    tokens = jax.random.randint(jax.random.key(2), (3, 30), 0, 19)
    expected = Transformer(config).apply({"params": params}, tokens)
    prompt = model.prompt(np.asarray(tokens[:, :1]), np.ones(3))
    found = logits_along(model, model.pack(params), prompt, tokens)
    assert np.std(expected) > 1
    np.testing.assert_allclose(found, expected, rtol=4e-5, atol=4e-5)


def padded(rows):
    tokens = np.full((len(rows), max(map(len, rows))), 13, np.int32)
    for row, given in zip(tokens, rows, strict=True):
        row[: len(given)] = given
    return tokens, np.array(list(map(len, rows)))


def test_ragged_prompts_in_a_batch_are_rows_alone():
    """Among them none at all, which begins with the start token."""
    config = TINY_GPT["gpt"]
    params = random_gpt_params(config, 0)
    model, network = GPTModel(config), Transformer(config)
    packed, (tokens, lengths) = model.pack(params), padded(PROMPTS)
    start = model.start(packed, model.prompt(tokens, lengths), 4)
    hidden, _ = model.extend(packed, start.encoded, start.cache, start.last_token[:, None])
    found = model.logits(packed, hidden)[:, 0]
    for row, given in zip(found, PROMPTS, strict=True):
        alone = jnp.array([given or [config.start_id]])
        expected = network.apply({"params": params}, alone)[0, -1]
        np.testing.assert_allclose(row, expected, rtol=4e-5, atol=4e-5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpt")
    config = TINY_GPT["gpt"]
    for role, seed in (("target", 0), ("draft", 1)):
        params = jax.device_get(random_gpt_params(config, seed))
        save_huggingface(root / role, config, params)
    return specdec.load_pair(target=root / "target", draft=root / "draft")


def continued(pair, prompt, count):
    """Greedy, token by token, from the network."""
    config = TINY_GPT["gpt"]
    network, params, tokens = Transformer(config), random_gpt_params(config, 0), list(prompt)
    found = []
    for _ in range(count):
        logits = network.apply({"params": params}, jnp.array([tokens or [config.start_id]]))
        token = int(jnp.argmax(logits[0, -1]))
        tokens = [*(tokens or [config.start_id]), token]
        found.append(token)
        if token == config.eos_id:
            break
    return found


@pytest.mark.parametrize(
    "way",
    [
        {"method": "autoregressive"}, {"gamma": 3}, {"tree": (2, 1)},
        {"method": "beam", "beam": specdec.BeamConfig(1)},
        {"method": "speculative_beam", "gamma": 2, "beam": specdec.BeamConfig(1)},
    ],
    ids=lambda way: way.get("method", next(iter(way))),
)  # fmt: skip
@pytest.mark.parametrize("batch_size", [1, 4])
def test_greedy_decoding_continues_the_prompt(pair, way, batch_size):
    out = pair.generate(
        PROMPTS, max_decode_len=20, sampling=specdec.SamplingConfig(0.0), batch_size=batch_size,
        **way,
    )  # fmt: skip
    for prompt, found in zip(PROMPTS, out.tokens, strict=True):
        assert found.tolist() == continued(pair, prompt, 20)


@pytest.mark.parametrize(
    "draft", [specdec.Copying(), specdec.Random(), specdec.Quantized()], ids=str
)
def test_every_draft_continues_the_same(pair, draft, tmp_path):
    source = pair.target.source
    other = specdec.load_pair(target=source, draft=draft)
    options = {"gamma": 3, "max_decode_len": 20, "sampling": specdec.SamplingConfig(0.0)}
    found, expected = (each.generate(PROMPTS, **options).tokens for each in (other, pair))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_copying_matches_the_prompt(pair):
    """What follows the prompt's last tokens in it is guessed at once."""
    repeated = [5, 9, 3, 7, 11, 5, 9, 3]
    copying = specdec.load_pair(target=pair.target.source, draft=specdec.Copying())
    out = copying.generate([repeated], gamma=3, max_decode_len=4, trace=True)
    block = out.traces[0][0]
    assert (block.accepted + block.rejected)[0] == 7


def test_positions_beyond_the_limit(pair):
    with pytest.raises(ValueError, match=r"text 0 has 21 tokens; .* more than the model's 40 pos"):
        pair.generate([[5] * 21], max_decode_len=20)
    assert len(pair.generate([[5] * 20], max_decode_len=20).tokens) == 1


def test_a_gpt_and_a_t5_do_not_draft_for_each_other(pair, tmp_path):
    from tiny import TINY, random_t5_params

    save_huggingface(
        tmp_path / "t5", TINY["v1.1"], jax.device_get(random_t5_params(TINY["v1.1"], 0))
    )
    gpt, t5 = pair.target.source, str(tmp_path / "t5")
    with pytest.raises(
        ValueError, match=r"target .* is decoder-only, the draft .* encoder-decoder"
    ):
        specdec.load_pair(target=gpt, draft=t5)
    with pytest.raises(ValueError, match=r"is an encoder-decoder, the draft .* decoder-only"):
        specdec.load_pair(target=t5, draft=gpt)
