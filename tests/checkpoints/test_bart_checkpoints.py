"""BART, mBART, M2M100, Marian and Pegasus: the same numbers as transformers, both ways."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from safetensors.numpy import load_file, save_file
from slow import slow
from tiny import logits_along

import specdec
from specdec.checkpoints import CheckpointError, bart_names, load_huggingface, save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.models.bart import network
from specdec.models.bart.model import BartModel

SMALL = {
    "vocab_size": 61, "d_model": 32, "max_position_embeddings": 80, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "eos_token_id": 2, "pad_token_id": 1,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
ODD = {
    "vocab_size": 53, "d_model": 18, "encoder_layers": 1, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29, "max_position_embeddings": 77,
}  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
LAST = {"pad_token_id": 52, "decoder_start_token_id": 52, "eos_token_id": 0}
# The model, what differs from SMALL, and what its generation_config.json says.
CASES = {
    "bart": ("BartForConditionalGeneration", {}, {"forced_bos_token_id": 0}),
    "bart_odd": (
        "BartForConditionalGeneration",
        {**ODD, **UNTIED, "scale_embedding": True, "activation_function": "gelu_new"},
        {"forced_eos_token_id": 2},
    ),
    "mbart": ("MBartForConditionalGeneration", {"scale_embedding": True}, {}),
    "mbart_odd": (
        "MBartForConditionalGeneration",
        {**ODD, "decoder_start_token_id": 44, "activation_function": "relu"}, {},
    ),
    "m2m_100": (
        "M2M100ForConditionalGeneration", {}, {"forced_bos_token_id": 41, "suppress_tokens": [1]},
    ),
    "m2m_100_odd": (
        "M2M100ForConditionalGeneration",
        {**ODD, "scale_embedding": False, "activation_function": "gelu", "pad_token_id": 4},
        {"suppress_tokens": [4]},
    ),
    "marian": (
        "MarianMTModel",
        {**ODD, **LAST, "scale_embedding": True, "activation_function": "swish"},
        {"bad_words_ids": [[52]]},
    ),
    "marian_apart": (
        "MarianMTModel",
        {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47,
            "pad_token_id": 46, "decoder_start_token_id": 46, "eos_token_id": 0,
        },
        {"bad_words_ids": [[46]]},
    ),
    "pegasus": (
        "PegasusForConditionalGeneration",
        {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1,
         "scale_embedding": True, "activation_function": "relu"},
        {"no_repeat_ngram_size": 3},
    ),
    "pegasus_odd": ("PegasusForConditionalGeneration", {**ODD, **UNTIED}, {}),
}  # fmt: skip
ENDS = (7, 11, 19, 20)  # They end an output, too, so that rows end apart.


def random_model(torch, name, seed=0):
    """transformers' own, of which every weight matters; its positions only where they are learned."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    architecture, changes, generation = CASES[name]
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**SMALL | changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    width = model.config.d_model
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "norm" in path and path.endswith("weight"):
                weight.uniform_(0.5, 1.5, generator=generator)
            elif path.endswith("bias"):
                weight.normal_(std=0.2, generator=generator)
            elif "embed_positions" in path:
                if "bart" in name:
                    weight.normal_(std=1.0, generator=generator)
            elif "embed_tokens" in path or "shared" in path or "lm_head" in path:
                weight.normal_(std=2.5 * width**-0.5, generator=generator)
            else:  # Layers outweigh the embedding, or else every token would predict itself.
                scale = 4 if path.endswith(("out_proj.weight", "fc2.weight")) else 2
                weight.normal_(std=scale * weight.shape[1] ** -0.5, generator=generator)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.5, generator=generator)
    ends = [model.config.eos_token_id, *ENDS]
    # Else many outputs would soon be one token alone.
    for field, value in {"eos_token_id": ends, "no_repeat_ngram_size": 2, **generation}.items():
        setattr(model.generation_config, field, value)
    return model


@pytest.fixture(scope="module")
def saved(torch, tmp_path_factory):
    """A function of a case: transformers' model and the directory it was saved in."""

    @functools.cache
    def saved(name):
        model, directory = random_model(torch, name), tmp_path_factory.mktemp(name)
        model.save_pretrained(directory)
        return model, directory

    return saved


def input_size(model):
    """Of the encoder's vocabulary."""
    return min(model.config.vocab_size, getattr(model.config, "decoder_vocab_size", 10**6))


def texts(model, count, seed=1, most=14):
    """Token ids of several lengths; none is a pad."""
    generator, config, found = np.random.default_rng(seed), model.config, []
    allowed = [i for i in range(input_size(model)) if i != config.pad_token_id]
    for _ in range(count):
        size = generator.integers(1, most)
        found.append([*generator.choice(allowed, size).tolist(), config.eos_token_id])
    return found


def padded(model, rows):
    """As arrays, with what is input."""
    lengths = np.array(list(map(len, rows)))
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.full(mask.shape, model.config.pad_token_id)
    tokens[mask] = [token for row in rows for token in row]
    return tokens, mask


def both_logits(torch, model, directory):
    """Along random outputs, of ragged rows: transformers', the network's and the packed model's."""
    config, params = load_huggingface(directory)
    inputs, mask = padded(model, texts(model, 3, most=50))
    generator = np.random.default_rng(2)
    outputs = generator.integers(0, config.vocab_size, (3, 60))
    outputs = np.where(outputs == config.pad_id, config.eos_id, outputs)
    outputs[:, 0] = config.decoder_start_id
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor(inputs), attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(outputs),
        ).logits.numpy()  # fmt: skip
    given = jnp.asarray(inputs), jnp.asarray(outputs)
    ours = network.Transformer(config).apply({"params": params}, *given)
    loaded = load_model(str(directory), "float32", generation_config="ignore")
    prompt = loaded.model.prompt(inputs, mask.sum(axis=1))
    packed = logits_along(loaded.model, loaded.params, prompt, given[1])
    return theirs, np.asarray(ours), np.asarray(packed)


def assert_same_logits(torch, model, directory):
    theirs, ours, packed = both_logits(torch, model, directory)
    assert 0.5 < np.std(theirs) < 20
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    np.testing.assert_allclose(packed, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_logits_of_transformers(torch, saved, name):
    """The network's, and those of the model that decodes, within 1e-4."""
    model, directory = saved(name)
    config, params = load_huggingface(directory)
    wanted = jax.eval_shape(functools.partial(network.init_params, config), jax.random.key(0))
    got = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    assert got == wanted
    assert_same_logits(torch, model, directory)


def rewritten(directory, target, change=lambda tensors: tensors, **fields):
    """A copy whose tensors and config.json were changed."""
    target.mkdir()
    for name in ("config.json", "generation_config.json"):
        (target / name).write_bytes((directory / name).read_bytes())
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    save_file(change(load_file(directory / "model.safetensors")), target / "model.safetensors")
    return target


@pytest.fixture(scope="module")
def pair_of(saved, tmp_path_factory):
    """A function of a case: a pair, whose draft is the target with other weights."""

    def noisy(tensors):
        generator = np.random.default_rng(0)
        return {
            name: np.asarray(a + 0.1 * np.std(a) * generator.normal(size=a.shape), np.float32)
            for name, a in tensors.items()
        }

    @functools.cache
    def pair_of(name):
        directory = saved(name)[1]
        draft = rewritten(directory, tmp_path_factory.mktemp("draft") / name, noisy)
        return specdec.load_pair(target=directory, draft=str(draft))

    return pair_of


LIMIT = 30
GREEDY = specdec.SamplingConfig(0.0)


@pytest.fixture(scope="module")
def continued(torch, saved):
    """(case, how many) -> texts of several lengths, and what transformers' own loop makes of them."""

    @functools.cache
    def continued(name, count):
        model, _ = saved(name)
        given = texts(model, count)
        inputs, mask = padded(model, given)
        with torch.no_grad():
            whole = model.generate(
                torch.tensor(inputs), attention_mask=torch.tensor(mask).long(), do_sample=False,
                max_new_tokens=LIMIT,
            )  # fmt: skip
        ends, rows = [model.config.eos_token_id, *ENDS], []
        for row in whole[:, 1:].tolist():
            end = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
            rows.append(row[: end + 1])
        assert len(set(map(tuple, rows))) > count // 3
        return given, rows

    return continued


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [16, pytest.param(160, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "way",
    [{"method": "autoregressive"}, {"gamma": 3}, {"tree": (2, 1)}],
    ids=["plain", "speculative", "tree"],
)
def test_greedy_tokens_of_transformers(pair_of, continued, name, count, way):
    """With the rules of the checkpoint, in batches of rows that end apart: all equal.

    The draft is another model: guesses are accepted and rejected.
    """
    given, expected = continued(name, count)
    out = pair_of(name).generate(given, batch_size=8, max_decode_len=LIMIT, sampling=GREEDY, **way)
    assert [row.tolist() for row in out.tokens] == expected
    if "method" not in way:
        assert 0 < out.stats.accepted < out.stats.examined
