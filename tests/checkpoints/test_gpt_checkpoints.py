"""GPT-2 checkpoints: the same numbers as transformers, both ways."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from safetensors.numpy import load_file, save_file
from tiny import TINY_GPT, logits_along, random_gpt_params

import specdec
from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.models.gpt.network import Transformer

# As GPT-2, with heads of 64; as DistilGPT2, with fewer layers; and with sizes that nothing divides.
SHAPES = {
    "gpt2": {"n_embd": 128, "n_layer": 3, "n_head": 2, "n_positions": 96, "vocab_size": 120},
    "distil": {"n_embd": 192, "n_layer": 2, "n_head": 3, "n_positions": 80, "vocab_size": 96},
    "odd": {
        "n_embd": 27, "n_layer": 3, "n_head": 3, "n_positions": 80, "vocab_size": 53,
        "n_inner": 41, "activation_function": "gelu", "layer_norm_epsilon": 1e-3,
    },
    "untied": {
        "n_embd": 16, "n_layer": 1, "n_head": 1, "n_positions": 80, "vocab_size": 48,
        "activation_function": "relu", "tie_word_embeddings": False,
    },
}  # fmt: skip
TOKENS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 1}


@pytest.fixture(scope="module")
def saved(torch, tmp_path_factory):
    """transformers' own models and the directories it saved them in."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    found = {}
    for name, shape in SHAPES.items():
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **TOKENS)).eval()
        generator = torch.Generator().manual_seed(len(found))
        stddev = 1.5 / shape["n_embd"] ** 0.5  # Logits spread by a few units, whatever the width.
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * stddev)
        directory = tmp_path_factory.mktemp(name)
        model.save_pretrained(directory)
        found[name] = (model, directory)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "distil")) for name in SHAPES]
)
def test_logits_of_transformers(torch, saved, name):
    """The network's, and those of the model that decodes, within 1e-4."""
    model, directory = saved[name]
    config, params = load_huggingface(directory)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (3, 70))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    assert np.std(expected) > 1
    found = Transformer(config).apply({"params": params}, jnp.asarray(tokens))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    loaded = load_model(str(directory), "float32")
    lengths = np.array([1, 7, 30])
    prompt = loaded.model.prompt(tokens[:, :30], lengths)
    following = np.stack([row[at - 1 : at + 39] for row, at in zip(tokens, lengths, strict=True)])
    found = logits_along(loaded.model, loaded.params, prompt, jnp.asarray(following))
    for ours, theirs, at in zip(found, expected, lengths, strict=True):
        np.testing.assert_allclose(ours, theirs[at - 1 : at + 39], rtol=0, atol=1e-4)
    assert_same_log_probs(directory, directory, (1, 7, 30))


LIMIT = 60


@pytest.fixture(scope="module")
def continued(torch, saved):
    """name -> prompts of 1 to 14 tokens, and what transformers' own loop makes of each."""

    @functools.cache
    def continued(name):
        model, _ = saved[name]
        generator, found = np.random.default_rng(1), []
        for size in range(1, 15):
            prompts = torch.tensor(generator.integers(3, model.config.vocab_size, (6, size)))
            with torch.no_grad():
                whole = model.generate(
                    prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                    max_new_tokens=LIMIT,
                )  # fmt: skip
            found += [(row[:size], row[size:]) for row in whole.tolist()]
        # Rows that end early are filled up with EOS.
        ends = [row.index(1) + 1 if 1 in row else len(row) for _, row in found]
        rows = [row[:end] for (_, row), end in zip(found, ends, strict=True)]
        assert sum(map(len, rows)) > 2000
        order = generator.permutation(len(rows))  # Neighbours have other lengths.
        return [found[i][0] for i in order], [rows[i] for i in order]

    return continued


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name != "untied" else []) for name in SHAPES],
)
@pytest.mark.parametrize(
    "draft", ["none", "copying", pytest.param("model", marks=pytest.mark.slow)]
)
def test_greedy_tokens_of_transformers(saved, continued, name, draft):
    """Over 2,000 tokens of each, in batches of prompts that have other lengths: all equal."""
    prompts, expected = continued(name)
    directory = saved[name][1]
    pair = specdec.load_pair(
        target=directory, draft=str(directory) if draft == "model" else specdec.Copying()
    )
    way = {"method": "autoregressive"} if draft == "none" else {"gamma": 3}
    options = {"max_decode_len": LIMIT, "sampling": specdec.SamplingConfig(0.0), **way}
    out = pair.generate(prompts, batch_size=14, **options)
    assert [row.tolist() for row in out.tokens] == expected
    if draft != "none":
        assert out.stats.accepted > 200
    for row in (0, 7):
        alone = pair.generate([prompts[row]], batch_size=1, **options)
        assert alone.tokens[0].tolist() == expected[row]


@pytest.mark.parametrize(
    ("name", "width", "early"),
    [("gpt2", 3, False), ("odd", 4, True)],
)
@pytest.mark.slow
def test_beams_of_transformers(torch, saved, name, width, early):
    """n-best lists of prompts of several lengths, one by one: tokens, order and scores."""
    model, directory = saved[name]
    pair = specdec.load_pair(target=directory, draft=str(directory))
    generator = np.random.default_rng(2)
    vocab_size = pair.target.model.vocab_size
    prompts = [generator.integers(3, vocab_size, size).tolist() for size in (1, 2, 5, 9, 14)]
    beam = specdec.BeamConfig(width, "huggingface", early_stopping=early)
    options = {"max_decode_len": 20, "beam": beam, "num_return": width}
    out = pair.generate(prompts, method="beam", batch_size=5, **options)
    fast = pair.generate(prompts, method="speculative_beam", gamma=2, **options)
    for prompt, found, again in zip(prompts, out.beams, fast.beams, strict=True):
        with torch.no_grad():
            whole = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(),
                do_sample=False, max_new_tokens=20, num_beams=width, early_stopping=early,
                num_return_sequences=width, return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        rows = whole.sequences[:, len(prompt) :].tolist()
        for ours, same, theirs in zip(found, again, rows, strict=True):
            assert ours.tokens.tolist() == theirs[: len(ours.tokens)]
            assert set(theirs[len(ours.tokens) :]) <= {1}  # It pads with EOS.
            assert same.tokens.tolist() == ours.tokens.tolist()
        scores = [each.score for each in found]
        np.testing.assert_allclose(scores, whole.sequences_scores.numpy(), rtol=1e-4, atol=1e-4)


def rewritten(directory, target, change):
    """A copy whose tensors were changed."""
    target.mkdir()
    for name in ("config.json", "generation_config.json"):
        (target / name).write_bytes((directory / name).read_bytes())
    save_file(change(load_file(directory / "model.safetensors")), target / "model.safetensors")
    return target


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_and_without_prefix_and_masks_of_old_versions(saved, tmp_path, prefix):
    directory = saved["gpt2"][1]

    def change(tensors):
        names = {name: name.removeprefix("transformer.") for name in tensors}
        found = {prefix + names[name]: array for name, array in tensors.items()}
        mask = np.tril(np.ones((1, 1, 96, 96), np.float32))
        return found | {
            f"{prefix}h.0.attn.bias": mask,
            f"{prefix}h.0.attn.masked_bias": mask[0, 0, 0],
        }

    found = load_huggingface(rewritten(directory, tmp_path / "copy", change))[1]
    jax.tree.map(np.testing.assert_array_equal, found, load_huggingface(directory)[1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["odd", "untied"])
def test_log_probs_of_what_is_saved(saved, tmp_path, name, dtype):
    model, directory = saved[name]
    config, params = load_huggingface(directory)
    save_huggingface(tmp_path / "again", config, params, dtype=dtype, max_shard_bytes=4000)
    assert len(list((tmp_path / "again").glob("model-*"))) > 1
    assert_same_log_probs(tmp_path / "again", tmp_path / "again", (1, 7, 30))
    if dtype == "float32":
        assert_same_log_probs(tmp_path / "again", directory, (1, 7))
        assert_same_log_probs(model, tmp_path / "again", (1, 7))


def test_a_head_that_is_not_the_embedding_though_the_config_ties_them(saved, tmp_path):
    """transformers keeps both then."""
    directory = rewritten(saved["untied"][1], tmp_path / "tied", lambda tensors: tensors)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    assert_same_log_probs(directory, directory, (3, 9))


@pytest.mark.parametrize("variant", ["gpt", pytest.param("gpt_untied", marks=pytest.mark.slow)])
def test_what_is_saved_is_read_back_and_opens_in_transformers(torch, tmp_path, variant):
    transformers = pytest.importorskip("transformers")
    config = TINY_GPT[variant]
    params = jax.device_get(random_gpt_params(config, 0))
    save_huggingface(tmp_path / "saved", config, params, max_shard_bytes=4000)
    assert len(list((tmp_path / "saved").glob("model-*"))) > 1
    again, found = load_huggingface(tmp_path / "saved")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, found, params)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved").eval()
    tokens = np.random.default_rng(0).integers(0, 19, (2, 30))
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    ours = Transformer(config).apply({"params": params}, jnp.asarray(tokens))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation_function": "swish"}, "activation_function 'swish' is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention must be False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "must be False, got True"),
        ({"n_head": 3}, "n_head must divide d_model"),
        ({"n_embd": None}, "n_embd must be a whole number"),
        ({"model_type": "bert"}, "can be loaded are, .* gpt2 .DistilGPT2., "),
        ({"model_type": "gpt_neox"}, "model_type is 'gpt_neox'[.] .* are, by model_type: bart "),
    ],
)
def test_configs_that_are_no_gpt2(tmp_path, changes, words):
    config = TINY_GPT["gpt"]
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_gpt_params(config, 0)))
    path = tmp_path / "gpt" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words):
        load_huggingface(tmp_path / "gpt")


def test_a_size_that_is_missing_and_a_tensor_that_is(tmp_path):
    config = TINY_GPT["gpt"]
    params = jax.device_get(random_gpt_params(config, 0))
    save_huggingface(tmp_path / "gpt", config, params)
    path = tmp_path / "gpt" / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({name: raw[name] for name in raw if name != "n_layer"}))
    # The class has 12 then.
    with pytest.raises(CheckpointError, match=r"is missing parameter h\..* check that config"):
        load_huggingface(tmp_path / "gpt")
    path.write_text(json.dumps(raw | {"n_layer": 3}))
    with pytest.raises(CheckpointError, match=r"is missing parameter h\.2\."):
        load_huggingface(tmp_path / "gpt")
