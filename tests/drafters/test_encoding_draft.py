"""Drafts that start from their target's encoding of a text, not from the text alone."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import CASES, LOSSLESS, distances_of
from tiny import TINY, changed, logits_along, prompt_of, ragged_inputs, random_params

import specdec
from specdec.checkpoints import CheckpointError, open_huggingface, save_huggingface
from specdec.decoding import loop
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.measure.alpha import replay
from specdec.models.t5.config import T5Config
from specdec.models.toy import ToyModel
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer
from specdec.runs.convert import convert
from specdec.types import SamplingConfig

TARGET = TINY["v1.1"]
DRAFT = changed(
    TARGET, d_model=8, num_encoder_layers=1, num_decoder_layers=1, encoding_width=TARGET.d_model
)
SAMPLING = {"greedy": SamplingConfig(0.0), "temperature 1": SamplingConfig(1.0)}
GAMMA, LIMIT = 3, 24


@pytest.fixture(scope="module")
def params():
    return random_params(TARGET, 0)


def decoder_alone(params):
    """The target's own decoder as a draft: its encoder passes the target's encoding on.

    Beside an encoding times 1e5 the embedded tokens are nothing, and RMSNorm undoes the factor. It
    leaves alone what a norm of scale 1 has made, so the target's last one gets that scale.
    """
    config = changed(TARGET, num_encoder_layers=0, encoding_width=TARGET.d_model)
    norm = {"scale": jnp.ones(TARGET.d_model)}
    target = {**params, "encoder": {**params["encoder"], "encoder_norm": norm}}
    projection = {"kernel": 1e5 * jnp.eye(TARGET.d_model)}
    draft = {**params, "encoder": {"input_projection": projection, "encoder_norm": norm}}
    return config, target, draft


def speculating(config, params, target_params, sampling, gamma=GAMMA):
    """An engine and its parameters; plain decoding without a draft's config."""
    target, traced = TransformerModel(TARGET), sampling.traced()
    known = EngineParams(target.pack(target_params), traced)
    if config is None:
        return Engine(target), known
    draft = TransformerModel(config)
    drawn = DraftParams(draft.pack(params), traced)
    return Engine(target, ModelDrafter(draft, gamma)), dataclasses.replace(known, drafter=drawn)


def decode(config, params, target_params, sampling, inputs):
    static, known = speculating(config, params, target_params, sampling)
    return loop.decode(
        static, known, prompt_of(static.target, inputs), jnp.arange(len(inputs)), LIMIT, 0,
        output_bucket=LIMIT,
    )  # fmt: skip


def test_the_packed_draft_is_the_network(params):
    inputs = ragged_inputs(3, 9, 19)
    tokens = jax.random.randint(jax.random.key(2), (3, 7), 0, 19)
    target, model = TransformerModel(TARGET, "out_in"), TransformerModel(DRAFT, "out_in")
    weights = random_params(DRAFT, 1)
    prompt = prompt_of(target, inputs)
    start = jax.jit(target.start, static_argnums=2)
    encoded = start(target.pack(params), prompt, 1).encoded
    encoding = Transformer(TARGET).apply({"params": params}, inputs, method="encode")
    truth = Transformer(DRAFT).apply({"params": weights}, inputs, tokens, encoding)
    logits = logits_along(model, model.pack(weights), prompt, tokens, encoded)
    np.testing.assert_allclose(logits, truth, rtol=1e-4, atol=1e-4)


def test_the_targets_own_decoder_guesses_everything(params):
    """Rows of different texts and lengths: another row's encoding would be rejected soon."""
    config, target, draft = decoder_alone(params)
    stats = decode(config, draft, target, SAMPLING["temperature 1"], ragged_inputs(4, 9, 19)).stats
    assert stats.examined.min() >= GAMMA
    np.testing.assert_array_equal(stats.accepted, stats.examined)
    np.testing.assert_allclose(stats.acceptance_prob_sum / stats.examined, 1, atol=1e-4)


def test_alpha_along_a_text_is_that_of_the_decode(params):
    config, target, draft = decoder_alone(params)
    static, known = speculating(config, draft, target, SAMPLING["temperature 1"], gamma=1)
    inputs = ragged_inputs(2, 9, 19)
    tokens = jax.random.randint(jax.random.key(2), (2, 6), 2, 19)
    found = replay(
        static, known, prompt_of(static.target, inputs), jnp.arange(2), LIMIT, 0, tokens,
        jnp.array([6, 4]),
    )  # fmt: skip
    np.testing.assert_allclose(found.prob[0], 1, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class FollowingToy(ToyModel):
    """Looks up what its target's hash of the inputs leads to."""

    def start(self, params, prompt, max_len, given=None):
        assert given is not None
        begin = super().start(params, prompt, max_len)
        return dataclasses.replace(begin, encoded=given + jnp.sum(prompt.inputs, axis=1))


@pytest.mark.parametrize("name", SAMPLING)
def test_lossless(name):
    case = CASES[name]
    target, draft = (jnp.asarray(case.table(seed)) for seed in case.tables)
    drawn = DraftParams(draft, case.sampling.traced())
    off = distances_of(ModelDrafter(FollowingToy(3), 2), drawn, case, target, limit=3)
    assert max(off) < LOSSLESS


@pytest.mark.parametrize(("form", "layers"), [("t5x", 0), ("orbax", 1), ("huggingface", 0)])
def test_checkpoints_of_every_format(form, layers, tmp_path):
    config = changed(DRAFT, num_encoder_layers=layers, relative_attention_max_distance=128)
    save_huggingface(tmp_path / "draft", config, random_params(config, 0))
    found, _ = open_huggingface(tmp_path / "draft")
    assert (found.encoding_width, found.num_encoder_layers) == (TARGET.d_model, layers)
    assert convert(str(tmp_path / "draft"), str(tmp_path / "out"), form) <= 1e-5


def test_transformers_runs_it_when_the_projection_is_added(tmp_path):
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    weights = random_params(DRAFT, 1)
    save_huggingface(tmp_path / "draft", DRAFT, weights)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "draft").eval()
    inputs = np.full((2, 5), 3)
    tokens = np.random.default_rng(0).integers(2, 19, (2, 4))
    encoding = np.random.default_rng(1).normal(size=(2, 5, TARGET.d_model)).astype(np.float32)
    embedded = np.asarray(weights["token_embedder"]["embedding"])[inputs]
    embedded += encoding @ np.asarray(weights["encoder"]["input_projection"]["kernel"])
    with torch.no_grad():
        logits = theirs(
            inputs_embeds=torch.tensor(embedded), decoder_input_ids=torch.tensor(tokens)
        ).logits.numpy()
    ours = Transformer(DRAFT).apply({"params": weights}, inputs, tokens, encoding)
    np.testing.assert_allclose(ours, logits, atol=1e-4)


@pytest.fixture
def saved(tmp_path, params):
    save_huggingface(tmp_path / "target", TARGET, params)
    save_huggingface(tmp_path / "draft", DRAFT, random_params(DRAFT, 1))
    return tmp_path / "target", tmp_path / "draft"


def test_a_pair_of_directories(saved):
    target, draft = saved
    pair = specdec.load_pair(target=target, draft=draft)
    rows = [[3, 4, 1], [5, 6, 7, 8, 1]]
    out = {
        method: pair.generate(rows, method=method, gamma=2, max_decode_len=8, batch_size=2).tokens
        for method in ("speculative", "autoregressive")
    }
    for a, b in zip(*out.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_no_target(saved):
    with pytest.raises(ValueError, match="it can be a draft, not a target"):
        specdec.load_pair(target=saved[1], draft=saved[1])


def test_another_targets_width_is_refused(saved, tmp_path):
    other = changed(TARGET, d_model=12)
    save_huggingface(tmp_path / "other", other, random_params(other, 0))
    with pytest.raises(ValueError, match=r"encoding of width 16, but that of .* has 12"):
        specdec.load_pair(target=tmp_path / "other", draft=saved[1])


@pytest.mark.parametrize("width", [0, "wide"])
def test_a_width_that_is_none_is_refused(saved, width):
    path = saved[1] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"encoding_width": width}))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_huggingface(saved[1])


def test_a_model_that_reads_tokens_has_layers():
    with pytest.raises(ValueError, match=r"num_layers must be in 1\.\..*, got 0"):
        T5Config(19, 8, 0, 1, 2, 4, 16)
