"""Drafts that say a part of the vocabulary; tests/test_oracle.py shows that they are lossless."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from slow import slow
from tiny import EVERY, TINY, logits_along, prompt_of, ragged_inputs, random_params

import specdec
from specdec.checkpoints import CheckpointError, save_huggingface
from specdec.checkpoints.architectures import decode_model
from specdec.checkpoints.draft_vocabulary import (
    FILE_NAME,
    load_draft_vocabulary,
    save_draft_vocabulary,
)
from specdec.checkpoints.formats import open_checkpoint
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.loading import load_model
from specdec.core.standardize import spread
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.config import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig
from specdec.types import PointMass

SAID = [1, 4, 5, 11, 17, 18]
SIZES = {"max_decode_len": 16, "max_input_len": 16}


def logits_of(model, params):
    inputs = ragged_inputs(2, 7, 19)
    tokens = jax.random.randint(jax.random.key(1), (2, 3), 0, 19)
    return logits_along(model, params, prompt_of(model, inputs), tokens)


@pytest.mark.parametrize(
    ("variant", "layout"),
    [
        ("v1.0", "out_in"), ("gpt_untied", "in_out"), ("bart", "out_in"),
    ],
)  # fmt: skip
def test_logits_are_those_of_the_tokens_that_are_said(variant, layout):
    config = EVERY[variant]
    model, params = decode_model(config, layout), random_params(config, 0)
    whole = logits_of(model, model.pack(params))
    narrowed = model.restricted(model.pack(params), params, SAID, None)
    for packed in (model.pack(params, SAID), narrowed):
        few = logits_of(model, packed)
        assert few.shape == (2, 3, len(SAID))
        np.testing.assert_allclose(few, whole[..., np.array(SAID)], rtol=1e-5, atol=3e-5)


def test_a_distribution_is_spread_over_the_vocabulary():
    said = jnp.array([3, 1])
    np.testing.assert_array_equal(
        spread(jnp.array([[[0.25, 0.75]]]), said, 4), [[[0, 0.75, 0, 0.25]]]
    )
    assert spread(PointMass(jnp.array([[0, 1]])), said, 4).tokens.tolist() == [[3, 1]]


def test_only_a_draft_reads_the_file(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, random_params(config, 0))
    save_draft_vocabulary(tmp_path, reversed(SAID))
    assert load_model(str(tmp_path), "float32").params.output_tokens is None
    draft = load_model(str(tmp_path), "float32", as_draft=True)
    assert draft.params.output_tokens.tolist() == SAID


@pytest.mark.parametrize(
    "text",
    ["{}", '{"tokens": []}', '{"tokens": [2, 1]}', '{"tokens": [1, 19]}', '{"tokens": [-1, 2]}',
     '{"tokens": [1, 1]}', '{"tokens": ["1"]}', '{"tokens": 3}', '{"tokens": [true, 2]}',
     '{"tokens": [false]}', '{"tokens": [1.0, 2]}', '{"tokens": [[1]]}'],
)  # fmt: skip
def test_bad_tokens_are_one_clear_error(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CheckpointError, match="ids below the vocabulary's size, 19") as caught:
        load_draft_vocabulary(tmp_path, 19)
    assert "\n" not in str(caught.value)


def test_guesses_are_of_the_draft_vocabulary_and_outputs_are_not(tmp_path):
    """The target says other tokens too."""
    config = EVERY["gpt"]
    for name, seed in (("target", 4), ("draft", 1)):
        save_huggingface(tmp_path / name, config, random_params(config, seed))
    save_draft_vocabulary(tmp_path / "draft", SAID)
    draft = str(tmp_path / "draft")
    pair = specdec.load_pair(
        target=str(tmp_path / "target"), draft=specdec.Hierarchical(draft, specdec.Copying())
    )
    texts = [[*range(2, 2 + n), 1] for n in (3, 5, 6)]
    out = pair.generate(texts, gamma=3, trace=True, sampling=specdec.SamplingConfig(1.0), **SIZES)
    guesses = {
        token for row in out.traces for block in row for token in block.accepted + block.rejected
    }
    assert guesses <= set(SAID)
    assert not {int(token) for row in out.tokens for token in row} <= set(SAID)


def test_beams_of_a_draft_that_generates_few_tokens(tmp_path):
    """By default no more of them than it has tokens; beams that it cannot make are refused."""
    config = EVERY["v1.1"]
    for name, seed in (("target", 4), ("draft", 1)):
        save_huggingface(tmp_path / name, config, random_params(config, seed))
    save_draft_vocabulary(tmp_path / "draft", SAID[:4])
    pair = specdec.load_pair(target=str(tmp_path / "target"), draft=str(tmp_path / "draft"))
    texts, settings = [[2, 3, 4, 1]], {"max_decode_len": 6, "max_input_len": 16}

    def beams(num_beams, method="speculative_beam", **options):
        beam = specdec.BeamConfig(num_beams)
        found = pair.generate(texts, method=method, beam=beam, **settings, **options)
        return [row.tolist() for row in found.tokens]

    assert pair.searcher(method="speculative_beam", beam=specdec.BeamConfig(4)).draft_beams == 4
    assert beams(4, gamma=1) == beams(4, "beam")
    for wrong in ({"num_beams": 5}, {"num_beams": 2, "draft_beams": 6}):
        with pytest.raises(
            ValueError, match=r"generates 4 different tokens.*draft_vocabulary.json"
        ):
            beams(**wrong, gamma=1)


@pytest.mark.parametrize("kind", ["medusa", *map(slow, ("eagle", "look-ahead"))])
@pytest.mark.parametrize("stored", [{}, {"weights": "int8"}], ids=["float32", "int8"])
def test_so_are_guesses_of_heads(tmp_path, kind, stored):
    """Random heads guess these tokens alone; their target's own logits stay whole."""
    config = EVERY["v1.1"]
    save_huggingface(tmp_path / "target", config, random_params(config, 4))
    width = config.d_model
    shape = {
        "medusa": HeadsConfig("medusa", 3, width), "look-ahead": LookAheadConfig(3, width),
        "eagle": EagleConfig(width, 12, 2, 6, 20, reads_encoding=True),
    }[kind]  # fmt: skip
    _, target = open_checkpoint(str(tmp_path / "target"), None)
    save_heads(tmp_path / "heads", shape, init_params(shape, jax.random.key(0)), target, SAID)
    draft = specdec.Heads(str(tmp_path / "heads"))
    pair = specdec.load_pair(target=str(tmp_path / "target"), draft=draft, **stored)
    assert pair.target.params.output_tokens is None
    texts = [[*range(2, 2 + n), 1] for n in (3, 5, 6)]
    settings = SIZES | {"sampling": specdec.SamplingConfig(0.0)}
    out = pair.generate(texts, gamma=3, trace=True, **settings)
    blocks = [block for row in out.traces for block in row]
    guesses = {token for block in blocks for token in block.accepted + block.rejected}
    assert guesses
    assert guesses <= set(SAID)
    assert not {int(token) for row in out.tokens for token in row} <= set(SAID)
    plain = pair.generate(texts, method="autoregressive", **settings)
    assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]


def test_logits_too_large_for_16_bits_keep_32(tmp_path):
    config = EVERY["v1.1"]
    save_huggingface(tmp_path / "target", config, random_params(config, 4))
    loaded, narrow = load_model(str(tmp_path / "target"), "float32"), "float16"
    _, params = open_checkpoint(str(tmp_path / "target"), None)
    table = "decoder/logits_dense/kernel"
    flat = {name: np.asarray(a, np.float32) for name, a in flatten_dict(params, sep="/").items()}
    for scale, dtype in ((1, jnp.float16), (1e7, jnp.float32)):
        scaled = unflatten_dict(flat | {table: flat[table] * scale}, sep="/")
        found = loaded.model.restricted(loaded.params, scaled, SAID, narrow).logits
        assert found.dtype == dtype
        assert jnp.isfinite(found).all()
