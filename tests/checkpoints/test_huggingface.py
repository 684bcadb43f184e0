"""Hugging Face checkpoints: the same numbers as transformers, both ways."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from safetensors.numpy import load_file, save_file
from slow import slow

import specdec
from specdec.checkpoints import (
    CheckpointError,
    load_huggingface,
    open_huggingface,
    save_huggingface,
)
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import Transformer, init_params

TOLERANCE = 1e-4
SMALL = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# name: (model type, config.json's differences from SMALL, whether lm_head is a separate matrix)
CASES = {
    "v1.0": ("t5", {}, False),
    "v1.1": ("t5", V1_1, True),
    "mt5": ("mt5", {"tie_word_embeddings": False}, True),
    "mt5_tied": ("mt5", {}, False),
    "umt5": ("umt5", {"tie_word_embeddings": False}, True),
    "umt5_tied": ("umt5", {}, False),
    "unequal_depths": ("t5", {**V1_1, "num_layers": 1, "num_decoder_layers": 3}, True),
    "heads_wider_than_model": ("t5", {**V1_1, "num_heads": 3, "d_kv": 16}, True),
    "heads_narrower_than_model": ("t5", {"num_heads": 2, "d_kv": 8}, False),
    "few_buckets": (
        "t5",
        {
            **V1_1,
            "relative_attention_num_buckets": 12,
            "relative_attention_max_distance": 40,
        },
        True,
    ),
    "epsilon": ("t5", {"layer_norm_epsilon": 0.3}, False),
    "padded_vocabulary": ("t5", {**V1_1, "vocab_size": 128}, True),
    "gated_gelu_tied": ("t5", {"feed_forward_proj": "gated-gelu"}, False),
    "gated_silu": ("t5", {**V1_1, "feed_forward_proj": "gated-silu"}, True),
    "gelu_new": ("t5", {"feed_forward_proj": "gelu_new"}, False),
    "unscaled_tied": ("t5", V1_1, False),
    "scaled_untied": ("t5", {}, True),
    "special_tokens": (
        "t5",
        {**V1_1, "pad_token_id": 2, "eos_token_id": 7, "decoder_start_token_id": 5},
        True,
    ),
}


@pytest.fixture(scope="module")
def transformers(torch):
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    transformers.logging.disable_progress_bar()
    return transformers


def random_model(torch, transformers, model_type, overrides, separate_head, seed=0):
    """A model whose every weight matters: logits of order 1 to 10, norms and biases not trivial."""
    prefix = model_type.upper()
    config = getattr(transformers, f"{prefix}Config")(**{**SMALL, **overrides})
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config).eval()
    if separate_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layer_norm" in name:
                weight.uniform_(0.5, 1.5, generator=generator)
            elif weight is model.lm_head.weight and separate_head:
                scaled = getattr(config, "scale_decoder_outputs", False)  # mT5 has no such field.
                weight.normal_(std=3 if scaled else 3 * config.d_model**-0.5, generator=generator)
            elif weight is model.shared.weight or "relative_attention_bias" in name:
                weight.normal_(std=1.0, generator=generator)
            elif name.endswith((".q.weight", ".k.weight")):
                weight.normal_(std=(config.d_model * config.d_kv**0.5) ** -0.5, generator=generator)
            elif name.endswith((".o.weight", ".wo.weight")):
                # The layers outweigh the embedding, or else every token would predict itself.
                weight.normal_(std=3 * weight.shape[1] ** -0.5, generator=generator)
            else:
                weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
    return model


def ragged_inputs(config, lengths, seed=0):
    """Random tokens [B, S], right-padded; none is a pad before the end."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(8, config.vocab_size, (len(lengths), max(lengths)))
    return np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], tokens, config.pad_id)


def assert_same_network(torch, model, config, params, lengths=(150, 9, 77), decoder_length=140):
    inputs = ragged_inputs(config, lengths)
    real = inputs != config.pad_id
    rng = np.random.default_rng(1)
    decoder_inputs = rng.integers(8, config.vocab_size, (len(lengths), decoder_length))
    decoder_inputs[:, 0] = config.decoder_start_id

    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(real),
            decoder_input_ids=torch.tensor(decoder_inputs),
        )
    # Not jitted: the cases share most shapes, so that op by op they share most compilations.
    inputs, decoder_inputs = jnp.asarray(inputs), jnp.asarray(decoder_inputs)
    network = Transformer(config).bind({"params": params})
    encoded = network.encode(inputs)
    logits = network.decode(encoded, inputs, decoder_inputs)
    expected_encoded = theirs.encoder_last_hidden_state.numpy()
    np.testing.assert_allclose(
        np.asarray(encoded)[real], expected_encoded[real], rtol=0, atol=TOLERANCE
    )
    np.testing.assert_allclose(logits, theirs.logits.numpy(), rtol=0, atol=TOLERANCE)
    assert 0.5 < np.std(logits) < 20


def greedy_decode(config, params, inputs, num_tokens):
    """Argmax decoding by teacher forcing on the tokens so far; [B, num_tokens + 1]."""
    network = Transformer(config)

    @jax.jit
    def next_tokens(params, tokens, i):
        logits = network.apply({"params": params}, inputs, tokens)
        return jnp.argmax(logits[:, i], axis=-1)

    tokens = np.full((len(inputs), num_tokens + 1), config.pad_id)
    tokens[:, 0] = config.decoder_start_id
    finished = np.zeros(len(inputs), bool)
    for i in range(num_tokens):
        tokens[:, i + 1] = np.where(finished, config.pad_id, next_tokens(params, tokens, i))
        finished |= tokens[:, i + 1] == config.eos_id
        if finished.all():
            return tokens[:, : i + 2]
    return tokens


# Others have what they have, together with something else.
ALIKE = ("mt5_tied", "umt5_tied", "gated_gelu_tied")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in ALIKE)) for case in CASES]
)
def test_encoder_and_logits_match_transformers(tmp_path, torch, transformers, case):
    model = random_model(torch, transformers, *CASES[case])
    model.save_pretrained(tmp_path)
    config, params = load_huggingface(tmp_path)

    wanted = jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))
    got = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    assert got == wanted
    assert_same_network(torch, model, config, params)
    # Read again by both: what a file says counts, and not what the model was made with.
    assert_same_log_probs(type(model).from_pretrained(tmp_path).eval(), tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        "v1.1", "umt5", "special_tokens",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("v1.0", "mt5")),
    ],
)  # fmt: skip
def test_greedy_decodes_match_generate(tmp_path, torch, transformers, case):
    model = random_model(torch, transformers, *CASES[case], seed=3)
    model.save_pretrained(tmp_path)
    inputs = ragged_inputs(load_huggingface(tmp_path)[0], (24, 5, 13), seed=2)
    generate = functools.partial(
        model.generate,
        torch.tensor(inputs),
        attention_mask=torch.tensor(inputs != model.config.pad_token_id),
        max_new_tokens=32,
        do_sample=False,
    )
    # The end token becomes one that the first row emits, but not at once: so that rows end apart.
    row = generate(eos_token_id=None)[0, 1:].tolist()
    end = next(token for i, token in enumerate(row) if i > 4 and token not in row[:i])
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(tmp_path)

    config, params = load_huggingface(tmp_path)
    expected = generate().numpy()
    tokens = greedy_decode(config, params, inputs, num_tokens=32)
    np.testing.assert_array_equal(tokens, expected)
    assert_same_log_probs(tmp_path, tmp_path)
    ends = [(row == config.eos_id).argmax() for row in expected[:, 1:]]
    assert len(set(ends)) > 1, "every row ended at once: choose another seed"


def test_any_of_several_end_tokens_ends_a_row(tmp_path, torch, transformers):
    model = random_model(torch, transformers, *CASES["v1.1"], seed=3)
    model.save_pretrained(tmp_path)
    inputs = ragged_inputs(load_huggingface(tmp_path)[0], (24, 5, 13), seed=2)
    generate = functools.partial(
        model.generate, torch.tensor(inputs), do_sample=False, max_new_tokens=24,
        attention_mask=torch.tensor(inputs != model.config.pad_token_id),
    )  # fmt: skip
    rows = generate(eos_token_id=None)[:, 1:].tolist()
    ends = [rows[0][9], rows[1][5]]
    model.config.eos_token_id = model.generation_config.eos_token_id = ends
    model.save_pretrained(tmp_path)
    pair = specdec.load_pair(target=tmp_path, draft=specdec.Copying())
    given = [row[row != pair.target.model.pad_id] for row in inputs]
    found = pair.generate(given, gamma=3, max_decode_len=24).tokens
    for ours, theirs in zip(found, generate().numpy()[:, 1:], strict=True):
        assert ours.tolist() == theirs[: len(ours)].tolist()
        assert not theirs[len(ours) :].any()  # Padding.
    assert {int(row[-1]) for row in found} >= set(ends)


def test_sharded_checkpoint_equals_the_single_file(tmp_path, torch, transformers):
    model = random_model(torch, transformers, *CASES["v1.1"])
    model.save_pretrained(tmp_path / "single")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2

    config, params = load_huggingface(tmp_path / "single")
    assert load_huggingface(tmp_path / "sharded")[0] == config
    jax.tree.map(np.testing.assert_array_equal, load_huggingface(tmp_path / "sharded")[1], params)


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_precision_weights_are_widened_exactly(tmp_path, torch, transformers, stored):
    model = random_model(torch, transformers, *CASES["v1.1"]).to(getattr(torch, stored))
    model.save_pretrained(tmp_path)

    config, params = load_huggingface(tmp_path)
    assert_same_network(torch, model.float(), config, params)
    kept = load_huggingface(tmp_path, dtype=stored)[1]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(kept)} == {stored}
    jax.tree.map(
        lambda narrow, wide: np.testing.assert_array_equal(narrow.astype(np.float32), wide),
        kept,
        params,
    )


@pytest.mark.parametrize("only", ["encoder.embed_tokens.weight", "lm_head.weight"])
def test_embedding_is_found_under_its_other_names(tmp_path, torch, transformers, only):
    model = random_model(torch, transformers, *CASES["v1.0"])
    model.save_pretrained(tmp_path)
    expected = load_huggingface(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights[only] = weights.pop("shared.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    config, params = load_huggingface(tmp_path)
    assert config == expected[0]
    jax.tree.map(np.testing.assert_array_equal, params, expected[1])


def test_old_checkpoints_with_duplicate_and_unused_weights(tmp_path, torch, transformers):
    """The original t5-small carries four copies of its embedding and one unused bias."""
    model = random_model(torch, transformers, *CASES["v1.0"])
    model.save_pretrained(tmp_path)
    expected = load_huggingface(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = weights["shared.weight"]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    weights[unused] = np.zeros((32, 4), np.float32)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    config, params = load_huggingface(tmp_path)
    assert config == expected[0]
    jax.tree.map(np.testing.assert_array_equal, params, expected[1])


def test_config_of_transformers_4_decides_scaling_by_tying(tmp_path, torch, transformers):
    """Before version 5, config.json had no scale_decoder_outputs and few of the defaults."""
    model = random_model(torch, transformers, *CASES["v1.1"])
    model.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    for name in ("scale_decoder_outputs", "num_decoder_layers", "relative_attention_max_distance",
                 "is_gated_act", "dense_act_fn", "layer_norm_epsilon"):  # fmt: skip
        del raw[name]
    (tmp_path / "config.json").write_text(json.dumps({**raw, "tie_word_embeddings": False}))
    (tmp_path / "generation_config.json").unlink()

    assert not transformers.T5Config.from_pretrained(tmp_path).scale_decoder_outputs
    assert_same_network(torch, model, *load_huggingface(tmp_path))


OURS = {
    "v1.1": T5Config(48, 16, 2, 3, 3, 8, 24),
    "v1.0": T5Config(48, 16, 2, 2, 2, 8, 24, activation="relu", gated=False, tied_logits=True),
    "special_tokens": T5Config(
        48, 16, 1, 1, 2, 4, 24, activation="silu", relative_attention_num_buckets=8,
        relative_attention_max_distance=20, layer_norm_epsilon=1e-3, dropout_rate=0.2,
        pad_id=3, eos_id=4, decoder_start_id=5,
    ),
    "umt5": T5Config(48, 16, 2, 2, 2, 8, 24, relative_bias_in_every_layer=True),
    "umt5_tied": T5Config(
        48, 16, 2, 2, 2, 8, 24, relative_bias_in_every_layer=True, tied_logits=True
    ),
}  # fmt: skip


@functools.cache
def our_params(name):
    return init_params(OURS[name], jax.random.key(0))


@pytest.mark.parametrize("max_shard_bytes", [10**9, 3000])
@pytest.mark.parametrize("name", OURS)
def test_transformers_opens_what_we_save(tmp_path, torch, transformers, name, max_shard_bytes):
    config, params = OURS[name], our_params(name)
    directory = tmp_path / "not" / "there yet"
    save_huggingface(directory, config, params, max_shard_bytes=max_shard_bytes)
    assert (directory / "model.safetensors").exists() == (max_shard_bytes == 10**9)
    if max_shard_bytes == 3000:
        sizes = [path.stat().st_size for path in directory.glob("model-*.safetensors")]
        assert len(sizes) > 3
        # The largest tensor is the embedding, 48 x 16 x 4 bytes; headers come on top.
        assert max(sizes) < 48 * 16 * 4 + 3000

    model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == config.eos_id
    assert_same_network(torch, model.eval(), config, params)
    assert_same_log_probs(model, directory, (9, 4))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "v1.1"), ("float16", "umt5_tied"), slow("float16", "v1.1"),
     slow("bfloat16", "umt5_tied"), slow("bfloat16", "umt5"), slow("float16", "umt5")],
)  # fmt: skip
def test_transformers_opens_16_bits_as_16_bits(tmp_path, torch, transformers, name, dtype):
    save_huggingface(tmp_path / "m", OURS[name], our_params(name), dtype=dtype)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m")
    assert model.dtype == getattr(torch, dtype)
    assert_same_network(torch, model.float().eval(), *load_huggingface(tmp_path / "m"))
    assert_same_log_probs(model, tmp_path / "m", (9, 4))


@pytest.mark.parametrize("max_shard_bytes", [10**9, 3000])
@pytest.mark.parametrize("name", OURS)
def test_round_trip_is_exact(tmp_path, name, max_shard_bytes):
    config, params = OURS[name], our_params(name)
    save_huggingface(tmp_path / "m", config, params, max_shard_bytes=max_shard_bytes)
    loaded_config, loaded = load_huggingface(tmp_path / "m")

    assert loaded_config == config
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_round_trip_in_half_precision_rounds_once(tmp_path, dtype):
    config, params = OURS["v1.1"], our_params("v1.1")
    save_huggingface(tmp_path / "m", config, params, dtype=dtype)
    loaded = load_huggingface(tmp_path / "m")[1]
    jax.tree.map(
        lambda got, given: np.testing.assert_array_equal(
            got, np.asarray(given).astype(jnp.dtype(dtype)).astype(np.float32)
        ),
        loaded,
        params,
    )


def test_parameters_are_read_when_used_and_their_file_is_not_kept_open(tmp_path):
    config = T5Config(
        vocab_size=96, d_model=32, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
        head_dim=8, d_ff=64,
    )  # fmt: skip
    save_huggingface(tmp_path / "model", config, init_params(config, jax.random.key(0)))
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    weights["decoder.final_layer_norm.weight"][0] = np.nan
    save_file(weights, path, metadata={"format": "pt"})

    opened, params = open_huggingface(tmp_path / "model")
    assert opened == config
    head = np.asarray(params["decoder"]["logits_dense"]["kernel"])
    np.testing.assert_array_equal(head, weights["lm_head.weight"].T)
    np.testing.assert_array_equal(jnp.asarray(params["decoder"]["logits_dense"]["kernel"]), head)
    with pytest.raises(CheckpointError, match=r"decoder.final_layer_norm.weight holds NaN"):
        np.asarray(params["decoder"]["decoder_norm"]["scale"])
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) not in maps.read_text()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read"):
        np.asarray(params["decoder"]["logits_dense"]["kernel"])
