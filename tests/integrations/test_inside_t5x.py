"""Inside T5X, against T5X itself: a checkout that ``--t5x_path`` names, or an installed one."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from flax.core import unfreeze
from scipy import stats
from tiny import TINY, changed, ragged_inputs, random_params

import specdec
from specdec.checkpoints import load_huggingface, save_huggingface, save_t5x
from specdec.checkpoints.loading import resolve

# T5X and what it imports warn of much that is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]
# T5X's position biases have one shape.
BIASES = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
CONFIGS = {name: changed(config, **BIASES) for name, config in TINY.items()}
V, LIMIT = 19, 12
COUNTS = ("target_calls", "proposed", "examined", "accepted", "emitted", "dropped")


def module_of(t5x, config, **changes):
    network = t5x.examples.t5.network
    activations = (config.decoder.activation, *["linear"] * config.decoder.gated)
    fields = {
        "vocab_size": config.vocab_size, "dtype": config.dtype, "emb_dim": config.d_model,
        "num_heads": config.num_heads, "num_encoder_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers, "head_dim": config.head_dim,
        "mlp_dim": config.d_ff, "mlp_activations": activations, "dropout_rate": 0.0,
        "logits_via_embedding": config.tied_logits,
    }  # fmt: skip
    return network.Transformer(network.T5Config(**(fields | changes)))


def passing_through(size, eos_id=1):
    import seqio

    vocabulary = seqio.PassThroughVocabulary(size, eos_id)
    return {"input_vocabulary": vocabulary, "output_vocabulary": vocabulary}


def plain_model(t5x, config, **decoding):
    """T5X's own model; its scores those of the logits themselves."""
    sample = t5x.decoding.temperature_sample

    def decode(**arguments):
        return sample(**arguments, rescale_log_probs=False, **decoding)

    return t5x.models.EncoderDecoderModel(
        module_of(t5x, config), **passing_through(config.vocab_size), optimizer_def=None,
        decode_fn=decode,
    )  # fmt: skip


def speculative_model(module, **arguments):
    integration = importlib.import_module("specdec.integrations.t5x")
    names = [each.name for each in dataclasses.fields(specdec.Decoding)]
    options = {name: arguments.pop(name) for name in names if name in arguments}
    method = "speculative_beam" if "beam" in options else "speculative"
    decoding = specdec.Decoding(**{"method": method, "gamma": 3} | options)
    arguments = passing_through(V) | {"draft": specdec.Copying()} | arguments
    return integration.SpeculativeEncoderDecoderModel(
        module, optimizer_def=None, decoding=decoding, **arguments
    )


def lengths_of(tokens):
    """Tokens up to EOS, which is 1, or the limit."""
    ends = np.asarray(tokens) == 1
    return np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, tokens.shape[1])


def batch_of(inputs, limit=LIMIT):
    blank = jnp.zeros((inputs.shape[0], limit), jnp.int32)
    return {
        "encoder_input_tokens": inputs, "decoder_input_tokens": blank,
        "decoder_target_tokens": blank, "decoder_loss_weights": blank.astype(jnp.float32),
    }  # fmt: skip


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Drafts for the tiny targets, each of another kind."""
    root = tmp_path_factory.mktemp("drafts")
    config = CONFIGS["v1.0"]
    params = jax.device_get(random_params(config, 1))
    save_huggingface(root / "huggingface", config, params)
    save_t5x(root / "t5x", config, params, step=7)
    with (root / "t5x" / "spiece.model").open("wb") as file:  # Of another target.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["one two three", "two three four"] * 10), model_writer=file,
            vocab_size=V, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
    return {
        "huggingface": str(root / "huggingface"), "t5x": str(root / "t5x"),
        "copying": specdec.Copying(), "random": specdec.Random(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def greedy(t5x):
    """T5X's own greedy decode of a target: its parameters, the batch, tokens and scores."""

    @functools.cache
    def decode(name):
        params = random_params(CONFIGS[name], 3)  # Rows end at many different lengths.
        batch = batch_of(ragged_inputs(24, 8, V))
        plain = plain_model(t5x, CONFIGS[name], topk=1)
        return params, batch, *jax.jit(plain.predict_batch_with_aux)(params, batch)

    return decode


@pytest.mark.parametrize(
    ("name", "draft"),
    [("v1.0", "t5x"), *(("v1.1", draft) for draft in ("huggingface", "t5x", "copying", "random"))],
)
def test_greedy_tokens_scores_and_counts(t5x, greedy, drafts, name, draft):
    config = CONFIGS[name]
    params, batch, expected, theirs = greedy(name)
    model = speculative_model(module_of(t5x, config), draft=drafts[draft])
    tokens, aux = jax.jit(model.predict_batch_with_aux)(params, batch)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(aux["scores"], theirs["scores"], rtol=1e-4, atol=1e-4)
    lengths = lengths_of(tokens)
    assert len(set(lengths)) > 3
    np.testing.assert_array_equal(aux["emitted"], lengths)
    assert np.all(np.asarray(aux["target_calls"]) + aux["accepted"] >= lengths)
    assert np.all(aux["target_calls"] <= lengths)
    assert aux["accepted_histogram"].shape == (24, 4)


@pytest.mark.parametrize(
    ("draft", "tree"),
    [
        ("huggingface", (2, 1, 1)), ("huggingface", specdec.Tree(nodes=6, depth=3, siblings=2)),
        ("copying", (2, 1, 1)),
    ],
    ids=["branching", "best first", "copying"],
)  # fmt: skip
def test_trees(t5x, greedy, drafts, draft, tree):
    """Greedily T5X's own tokens; the counts are those of trees."""
    params, batch, expected, _ = greedy("v1.1")
    module = module_of(t5x, CONFIGS["v1.1"])
    model = speculative_model(module, draft=drafts[draft], gamma=None, tree=tree)
    tokens, aux = jax.jit(model.predict_batch_with_aux)(params, batch)
    np.testing.assert_array_equal(tokens, expected)
    assert aux["accepted_histogram"].shape == (24, 4)
    assert aux["accepted_by_rank"].shape == (24, 2)
    np.testing.assert_array_equal(aux["accepted_by_rank"].sum(axis=1), aux["accepted"])
    if draft != "copying":  # Which finds nothing here and there.
        np.testing.assert_array_equal(aux["proposed"], aux["target_calls"] * 6)


@functools.cache
def t5x_beams(t5x, width, alpha):
    """T5X's own beam search: its tokens and scores, all hypotheses of all rows, the best last."""
    search = functools.partial(t5x.decoding.beam_search, alpha=alpha)
    plain = t5x.models.EncoderDecoderModel(
        module_of(t5x, CONFIGS["v1.1"]), **passing_through(V), optimizer_def=None, decode_fn=search
    )
    params, batch = random_params(CONFIGS["v1.1"], 3), batch_of(ragged_inputs(24, 8, V))
    every = {"return_all_decodes": True, "num_decodes": width}
    found = jax.jit(functools.partial(plain.predict_batch_with_aux, **every))(params, batch)
    return params, batch, found


@pytest.mark.parametrize(
    ("width", "alpha", "guessing"),
    [
        (1, 0.6, {}), (4, 0.6, {}), (4, 0.0, {}),
        (4, 0.6, {"draft": "huggingface", "gamma": 2, "draft_beams": 16}),
        (2, 1.0, {"draft": "huggingface", "gamma": 1}),
    ],
    ids=["one", "plain", "no penalty", "speculative", "default draft beams"],
)  # fmt: skip
def test_beams(t5x, drafts, width, alpha, guessing):
    """Tokens, scores and the order of T5X's own ``decode_fn``."""
    params, batch, (tokens, theirs) = t5x_beams(t5x, width, alpha)
    assert len(set(lengths_of(tokens[:, -1]))) > 2
    guessing = {"draft": None, "gamma": None} | guessing
    guessing["draft"] = guessing["draft"] and drafts[guessing["draft"]]
    model = speculative_model(
        module_of(t5x, CONFIGS["v1.1"]), beam=specdec.BeamConfig(width, alpha=alpha), **guessing
    )
    every = functools.partial(model.predict_batch_with_aux, return_all_decodes=True)
    found, aux = jax.jit(every)(params, batch)
    np.testing.assert_array_equal(found, tokens)
    np.testing.assert_allclose(aux["scores"], theirs["scores"], rtol=1e-4, atol=1e-4)
    best, of_best = jax.jit(model.predict_batch_with_aux)(params, batch)
    np.testing.assert_array_equal(best, tokens[:, -1])
    np.testing.assert_array_equal(of_best["scores"], aux["scores"][:, -1])
    np.testing.assert_array_equal(of_best["emitted"], lengths_of(best))
    if guessing["gamma"] is None:
        assert np.all(of_best["proposed"] == 0)
    else:
        assert np.sum(of_best["accepted"]) > 5


@pytest.mark.parametrize("beam", [None, specdec.BeamConfig(2)])
def test_rules(t5x, greedy, drafts, beam):
    """Whatever the draft, the same tokens."""
    params, batch, free, _ = greedy("v1.1")
    rules = (specdec.NoRepeatNgram(1), specdec.MinNewTokens(5), specdec.Suppressed([4]))
    made = [{"draft": drafts["huggingface"], "gamma": 2}, {"draft": drafts["copying"]}]
    if beam:
        made = [made[0] | {"beam": beam}, {"draft": None, "gamma": None, "beam": beam}]
    found = []
    for each in made:
        model = speculative_model(module_of(t5x, CONFIGS["v1.1"]), rules=rules, **each)
        found.append(np.asarray(jax.jit(model.predict_batch)(params, batch)))
    np.testing.assert_array_equal(*found)
    for row, before, length in zip(found[0], free, lengths_of(found[0]), strict=True):
        assert length >= 5
        assert len({*row[:length]}) == length
        assert 4 not in row[:length]
        assert row.tolist() != np.asarray(before).tolist()


def test_parameters_restored_in_fewer_bits_than_they_are_computed_with(t5x, drafts):
    """As infer.gin restores them: bfloat16, whatever the network's dtype."""
    config = CONFIGS["v1.1"]
    params = jax.tree.map(lambda a: a.astype(jnp.bfloat16), random_params(config, 3))
    batch = batch_of(ragged_inputs(200, 8, V))
    plain, model = plain_model(t5x, config, topk=1), speculative_model(module_of(t5x, config))
    # Else XLA on CPU may leave out a rounding, and with it the mistake that is looked for.
    exactly = functools.partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
    expected, tokens = (exactly(m.predict_batch)(params, batch) for m in (plain, model))
    np.testing.assert_array_equal(tokens, expected)


def test_sampling_follows_the_targets_law_and_the_key(t5x, drafts):
    """First two tokens of one input, 8,192 times; a chi-square at a false-alarm rate of 1e-6."""
    config = CONFIGS["v1.1"]
    params = random_params(config, 3)
    rows = 8192
    inputs = jnp.tile(ragged_inputs(1, 8, V), (rows, 1))
    sampling = specdec.SamplingConfig(temperature=1.5, top_k=6)
    model = speculative_model(
        module_of(t5x, config), draft=drafts["t5x"], sampling=sampling, gamma=2
    )
    decode = jax.jit(model.predict_batch)
    keys = [jax.random.PRNGKey(seed) for seed in (5, 5, 6)]
    tokens, again, other = (np.asarray(decode(params, batch_of(inputs, 3), key)) for key in keys)
    np.testing.assert_array_equal(tokens, again)
    assert np.mean(tokens != other) > 0.2

    module = module_of(t5x, config)
    first = np.zeros((V, 1), np.int32)
    decoder_inputs = np.concatenate([first, np.arange(V)[:, None]], axis=1)
    logits = module.apply(
        {"params": params}, inputs[:V], decoder_inputs, jnp.ones_like(decoder_inputs),
        enable_dropout=False,
    )  # fmt: skip
    kept = np.sort(logits, axis=-1)[..., -6:-5]
    probs = np.asarray(jax.nn.softmax(np.where(logits >= kept, logits / 1.5, -np.inf), axis=-1))
    distribution = probs[0, 0, :, None] * probs[:, 1]
    distribution[1] = 0  # A row that ends at once says nothing more: padding.
    distribution[1, 0] = probs[0, 0, 1]
    counts = np.zeros((V, V))
    np.add.at(counts, (tokens[:, 0], tokens[:, 1]), 1)
    assert counts[distribution == 0].sum() == 0
    expected = distribution.ravel() / distribution.sum(dtype=np.float64) * rows
    often = expected >= 5
    observed = [*counts.ravel()[often], counts.ravel()[~often].sum()]
    expected = [*expected[often], expected[~often].sum()]
    assert len(observed) > 15
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_what_cannot_be_decoded(t5x, drafts):
    import seqio

    config = CONFIGS["v1.1"]
    module = module_of(t5x, config)
    other = t5x.examples.t5.network.Decoder(module.config, None)
    bundled = seqio.SentencePieceVocabulary(resolve("quickstart", "target") + "/spiece.model")
    beam = specdec.BeamConfig(2)
    sentence_pieces = {"input_vocabulary": bundled, "output_vocabulary": bundled}
    for target, changes, message in (
        (other, {}, r"must be a t5x\.examples\.t5\.network\.Transformer, got .*Decoder"),
        (module_of(t5x, config, vocab_size=20), {"draft": drafts["t5x"]}, "vocab_size is 20"),
        (module, passing_through(V, eos_id=2) | {"draft": drafts["t5x"]}, "eos_id is 2"),
        (module, sentence_pieces | {"draft": drafts["t5x"]}, "different vocabularies"),
        (module, {"gamma": "auto"}, 'a gamma or tree that is not "auto"'),
        (module, {"draft": None}, "or neither for plain beams; got draft = None"),
        (module, {"method": "beam", "gamma": None}, "plain beams; got draft = Copying"),
        (module, {"stop": ["a"]}, "stop is of generate, not of T5X's runs: leave out"),
        (
            module,
            {"num_samples": 2, "sampling": specdec.SamplingConfig(1.0)},
            "num_samples is of generate",
        ),
        (module, {"rules": (specdec.Forbidden(["a"]),)}, "no vocabulary; give token ids"),
        (module, {"beam": beam}, "need a draft with a distribution over tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            speculative_model(target, **changes)
    params, batch = random_params(config, 3), batch_of(ragged_inputs(2, 8, V), limit=3)
    with pytest.raises(ValueError, match="outputs have 3 tokens"):
        speculative_model(module).predict_batch(params, batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_written_here_opens_in_t5x(t5x, tmp_path, dtype):
    config = CONFIGS["v1.1"]
    params = jax.device_get(random_params(config, 3))
    save_t5x(tmp_path, config, params, step=7, dtype=dtype)
    shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, LIMIT)}
    partitioner = t5x.partitioning.PjitPartitioner(num_partitions=1)
    initializer = t5x.utils.TrainStateInitializer(
        optimizer_def=None, init_fn=plain_model(t5x, config).get_initial_variables,
        input_shapes=shapes, partitioner=partitioner,
    )  # fmt: skip
    restored = t5x.checkpoints.Checkpointer(
        initializer.global_train_state_shape, partitioner, str(tmp_path)
    ).restore(step=7)
    assert restored.step == 7
    expected = jax.tree.map(lambda a: np.asarray(a, jnp.dtype(dtype)), params)
    jax.tree.map(np.testing.assert_array_equal, unfreeze(restored.params), expected)


# The bundled target as a T5X model, decoded greedily.
TARGET = """
from __gin__ import dynamic_registration

import seqio
from t5x import decoding
from t5x import models
from t5x.examples.t5 import network

include "t5x/examples/t5/t5_1_1/base.gin"

seqio.SentencePieceVocabulary.sentencepiece_model_file = "{vocabulary}"
network.T5Config:
  vocab_size = {config.vocab_size}
  dtype = "float32"
  emb_dim = {config.d_model}
  num_heads = {config.num_heads}
  num_encoder_layers = {config.num_encoder_layers}
  num_decoder_layers = {config.num_decoder_layers}
  head_dim = {config.head_dim}
  mlp_dim = {config.d_ff}
  logits_via_embedding = {config.tied_logits}
models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample
decoding.temperature_sample.topk = 1
decoding.temperature_sample.rescale_log_probs = False
DROPOUT_RATE = 0.0
"""


@pytest.fixture(scope="module")
def infer(t5x_path, tmp_path_factory):
    """Runs ``t5x/infer.py`` on the bundled target as a T5X checkpoint; gives the output's lines."""
    root = tmp_path_factory.mktemp("infer")
    config, params = load_huggingface(resolve("quickstart", "target"))
    save_t5x(root, config, params, step=1)
    vocabulary = resolve("quickstart", "target") + "/spiece.model"
    (root / "target.gin").write_text(TARGET.format(config=config, vocabulary=vocabulary))
    spec = importlib.util.find_spec("t5x")
    package = Path(t5x_path) / "t5x" if t5x_path else Path(spec.submodule_search_locations[0])

    def run(name, *arguments, devices=1, **bindings):
        bindings = {
            "MIXTURE_OR_TASK_NAME": "five_sentences", "MIXTURE_OR_TASK_MODULE": "t5x_task",
            "TASK_FEATURE_LENGTHS": {"inputs": 24, "targets": 24},
            "CHECKPOINT_PATH": str(root / "checkpoint_1"), "INFER_OUTPUT_DIR": str(root / name),
            "infer.mode": "predict_with_aux", "utils.DatasetConfig.batch_size": 2,
            "utils.RestoreCheckpointConfig.dtype": "float32",
        } | bindings  # fmt: skip
        command = [
            sys.executable, str(package / "infer.py"), f"--gin_file={root / 'target.gin'}",
            *arguments, "--gin_file=t5x/configs/runs/infer.gin",
            *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
        ]  # fmt: skip
        paths = [t5x_path or "", str(ROOT), str(Path(__file__).parent), *sys.path[1:]]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, check=False,
            env=os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        output = root / name / f"five_sentences-{bindings['infer.mode']}.jsonl-00000-of-00001"
        return [json.loads(line) for line in output.read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def plain_lines(infer):
    return infer("plain")


T5X_BEAMS = """
from __gin__ import dynamic_registration

from t5x import decoding
from t5x import models

models.EncoderDecoderModel:
  decode_fn = @decoding.beam_search
  default_decoder_params = @models.DecoderParams()
models.DecoderParams.num_decodes = 4
"""
SPECULATIVE = ("--gin_file=configs/t5x/speculative.gin", '--gin.DRAFT="quickstart"')


@pytest.mark.slow
def test_t5xs_own_runs_decode_speculatively(infer, plain_lines):
    found = infer("speculative", *SPECULATIVE)
    assert len(found) == 5
    for line, expected in zip(found, plain_lines, strict=True):
        assert line["inputs"] == expected["inputs"]
        assert line["prediction"] == expected["prediction"]
        counts = line["aux"]
        assert counts["scores"] == pytest.approx(expected["aux"]["scores"], abs=1e-3)
        assert set(COUNTS) < set(counts)
        assert counts["target_calls"] + counts["accepted"] >= counts["emitted"]
    assert sum(line["aux"]["accepted"] for line in found) > 10


@pytest.mark.slow
def test_t5xs_own_runs_search_by_beams(infer, tmp_path):
    """Plain and speculative beams instead of T5X's, with its own files and metrics."""
    (tmp_path / "beams.gin").write_text(T5X_BEAMS)
    theirs = infer("beams", f"--gin_file={tmp_path / 'beams.gin'}")
    ours = (*SPECULATIVE, "--gin_file=configs/t5x/beams.gin")
    for name, given in (
        ("plain_beams", ("--gin.DRAFT=None", "--gin.GAMMA=None")),
        ("speculative_beams", ("--gin.GAMMA=2",)),
    ):
        found = infer(name, *ours, *given)
        for line, expected in zip(found, theirs, strict=True):
            assert line["prediction"] == expected["prediction"]
            assert line["aux"]["scores"] == pytest.approx(expected["aux"]["scores"], abs=1e-3)
