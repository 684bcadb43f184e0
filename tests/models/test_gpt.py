"""A decoder alone: prompts are ragged, prefilled, checked and copied from."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY_GPT, changed, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.core.compilation import decode_jit
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer

PROMPTS = [[5, 9, 3, 7], [], [4], list(range(2, 18))]


@decode_jit(static_argnames="model")
def _prefill(model, params, tokens):
    prompt = model.prompt(np.zeros(tokens.shape), np.full(len(tokens), tokens.shape[1]))
    return model.start(params, dataclasses.replace(prompt, prefix=tokens), 4).cache


def test_a_prefill_adds_each_layer_up_once():
    """Else each layer's program would have the sums of all before it."""
    sizes = []
    for layers in (2, 4, 6):
        config = changed(TINY_GPT["gpt"], num_layers=layers)
        model = TransformerModel(config, "out_in")
        given = model, model.pack(random_params(config, 0)), jnp.ones((1, 36), jnp.int32)
        text = _prefill.jitted(*given).lower(*given).compile().as_text()
        sizes.append(text.count(" add("))
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


def test_a_prompt_is_prefilled_in_one_call_without_logits(monkeypatch):
    calls = []
    extend = TransformerModel._extend

    def noted(self, params, encoded, cache, x, *rest):
        calls.append(x.shape[1])
        return extend(self, params, encoded, cache, x, *rest)

    monkeypatch.setattr(TransformerModel, "_extend", noted)
    monkeypatch.setattr(TransformerModel, "_logits", lambda *args: calls.append("logits"))
    model = TransformerModel(TINY_GPT["gpt"], "out_in")
    params = model.pack(random_params(TINY_GPT["gpt"], 0))
    empty = model.prompt(np.zeros((1, 0), np.int32), np.array([0]))
    model.start(params, empty, 4)
    assert calls == []
    model.start(params, model.prompt(np.full((2, 16), 3), np.array([16, 5])), 4)
    assert calls == [15]  # A prompt's last token is the first that is fed to generate.


def padded(rows):
    tokens = np.full((len(rows), max(map(len, rows))), 13, np.int32)
    for row, given in zip(tokens, rows, strict=True):
        row[: len(given)] = given
    return tokens, np.array(list(map(len, rows)))


def test_ragged_prompts_in_a_batch_are_rows_alone():
    """Among them none at all, which begins with the start token."""
    config = TINY_GPT["gpt"]
    params = random_params(config, 0)
    model, network = TransformerModel(config), Transformer(config)
    packed, (tokens, lengths) = model.pack(params), padded(PROMPTS)
    start = model.start(packed, model.prompt(tokens, lengths), 4)
    hidden, _ = model.extend(packed, start.encoded, start.cache, start.last_token[:, None])
    found = model.logits(packed, hidden)[:, 0]
    for row, given in zip(found, PROMPTS, strict=True):
        alone = jnp.array([given or [config.start_id]])
        expected = network.apply({"params": params}, alone)[0, -1]
        np.testing.assert_allclose(row, expected, rtol=4e-5, atol=4e-5)


def test_copying_is_from_the_prompt(tmp_path):
    """What followed the prompt's last tokens in it is guessed, accepted and emitted.

    Layers add nothing and positions are alike, so the next token depends on the newest alone.
    """
    config = TINY_GPT["gpt_untied"]
    kept = re.compile("token_embedder|decoder_norm|logits_dense")
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * bool(kept.search(jax.tree_util.keystr(path))),
        random_params(config, 0),
    )
    save_huggingface(tmp_path, config, jax.device_get(params))
    pair = specdec.load_pair(target=tmp_path, draft=specdec.Copying())
    circle = [12, 17, 3, 6, 14, 13, 5, 18]
    prompts = [circle + circle[:3], circle[:2], [], circle[3:] + circle[:5]]
    out = pair.generate(
        prompts, gamma=4, trace=True, max_decode_len=10, batch_size=4,
        sampling=specdec.SamplingConfig(0.0),
    )  # fmt: skip
    first = [row[0] for row in out.traces]
    assert first[0].accepted == prompts[0][3:7]
    assert first[3].accepted == prompts[3][2:6]
    assert out.tokens[0].tolist() == (circle + circle)[3:13]
    assert out.tokens[3].tolist() == (circle + circle)[5:15]
    for row in (1, 2):  # Where nothing is there twice nothing is guessed.
        assert first[row].accepted + first[row].rejected == []
    assert out.tokens[1].tolist() == (circle + circle)[2:12]


def test_a_draft_of_fewer_positions_is_warned_of(tmp_path):
    config = TINY_GPT["gpt"]
    shorter = changed(config, max_positions=config.max_positions // 2)
    for name, each in (("target", config), ("draft", shorter)):
        save_huggingface(tmp_path / name, each, jax.device_get(random_params(each, 0)))
    with pytest.warns(UserWarning, match="positions and the target .* guesses are bad"):
        specdec.load_pair(target=tmp_path / "target", draft=tmp_path / "draft")
