"""T5s that people have: tiny ones with the public config.json of each, against transformers."""

import json

import numpy as np
import pytest
from log_probs import assert_same_log_probs, read_by_transformers

import specdec
from specdec.checkpoints import load_huggingface, save_huggingface
from tests.checkpoints.test_huggingface import assert_same_network, ragged_inputs, random_model

# What the public config.json files have, but for sizes and what only names files and versions.
COMMON = {
    "dropout_rate": 0.1, "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "output_past": True, "use_cache": True,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "num_layers": 1,
}  # fmt: skip
T5_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
GATED_GELU = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}
GATED_SILU = {"feed_forward_proj": "gated-silu", "dense_act_fn": "silu", "is_gated_act": True}
UNTIED = {"tie_word_embeddings": False}
# name: (model type, fields, whether the head is a matrix of its own)
FAMILIES = {
    "madlad400": (
        "t5",
        GATED_GELU | UNTIED | {
            "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
            "n_positions": 512, "task_specific_params": {},
        },
        True,
    ),
    "ul2": ("t5", GATED_SILU | T5_IDS | UNTIED, True),
    "flan_ul2": ("t5", GATED_SILU | T5_IDS | UNTIED | {"n_positions": 512}, True),
    "mt5": ("mt5", GATED_GELU | T5_IDS | UNTIED | {"tokenizer_class": "T5Tokenizer"}, True),
    "aya101": ("mt5", GATED_GELU | T5_IDS | UNTIED | {"classifier_dropout": 0.0}, True),
    "byt5": (
        "t5",
        GATED_GELU | T5_IDS | UNTIED | {
            "vocab_size": 384, "num_layers": 12, "num_decoder_layers": 4,
            "tokenizer_class": "ByT5Tokenizer", "gradient_checkpointing": False,
        },
        True,
    ),
    "codet5p": (
        "t5",
        {
            "feed_forward_proj": "relu", "dense_act_fn": "relu", "is_gated_act": False,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
            "n_positions": 512, "gradient_checkpointing": False,
        },
        False,
    ),
    "umt5": (
        "umt5",
        GATED_GELU | T5_IDS | UNTIED | {
            "scalable_attention": True, "tokenizer_class": "T5Tokenizer", "num_layers": 2,
        },
        True,
    ),
}  # fmt: skip
NEW_TOKENS = 24


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, torch, tmp_path_factory):
    """transformers' model, ragged inputs, its greedy outputs, and a target and a draft it saved.

    EOS takes the place of a token that the model emits. The draft is the target with noise.
    """
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    transformers.logging.disable_progress_bar()
    model_type, fields, separate = FAMILIES[request.param]
    model = random_model(torch, transformers, model_type, COMMON | fields, separate, seed=3)
    directory = tmp_path_factory.mktemp(request.param)

    def save(name):
        """With config.json as public ones have it: transformers 5 changes and adds fields."""
        model.save_pretrained(directory / name)
        path = directory / name / "config.json"
        raw = json.loads(path.read_text()) | fields
        absent = ["scale_decoder_outputs", *(["model_type"] if model_type == "umt5" else [])]
        path.write_text(json.dumps({name: raw[name] for name in raw if name not in absent}))

    save("target")
    config = load_huggingface(directory / "target")[0]
    inputs = ragged_inputs(config, (24, 5, 13, 40), seed=2)

    def generate(**options):
        return model.generate(
            torch.tensor(inputs), do_sample=False, max_new_tokens=NEW_TOKENS,
            attention_mask=torch.tensor(inputs != model.config.pad_token_id), **options,
        )[:, 1:].numpy()  # fmt: skip

    row = generate(eos_token_id=None)[0].tolist()
    end = next(t for i, t in enumerate(row) if i > 4 and t not in row[:i])
    with torch.no_grad():
        swapped = [model.config.eos_token_id, end]
        model.lm_head.weight[swapped] = model.lm_head.weight[swapped[::-1]]
        save("target")
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        for weight in model.parameters():
            weight.add_(0.1 * weight.std() * torch.randn(weight.shape))
        save("draft")
        model.load_state_dict(weights)
    return model, inputs, generate(), directory


def test_logits(torch, family):
    model, _, _, directory = family
    assert_same_network(torch, model, *load_huggingface(directory / "target"))


def test_log_probs(family):
    """Those of the model that decodes: sampling follows them, while greedy tokens hide a factor."""
    model, _, _, directory = family
    again = type(model).from_pretrained(directory / "target").eval()  # As its files say.
    assert_same_log_probs(again, directory / "target")


@pytest.mark.parametrize(
    ("dtype", "max_shard_bytes"), [("float32", 10**9), ("float16", 10**9), ("bfloat16", 20_000)]
)
def test_log_probs_of_what_is_saved(family, tmp_path, dtype, max_shard_bytes):
    """In the same directory for both; and against the model it was saved from, if all bits are."""
    model, _, _, directory = family
    config, params = load_huggingface(directory / "target")
    out = tmp_path / "again"
    save_huggingface(out, config, params, dtype=dtype, max_shard_bytes=max_shard_bytes)
    assert (len(list(out.glob("model-*"))) > 1) == (max_shard_bytes == 20_000)
    theirs = read_by_transformers(out)
    assert_same_log_probs(theirs, out)
    if dtype == "float32":
        assert_same_log_probs(theirs, directory / "target")
        assert_same_log_probs(model, out)


@pytest.mark.slow
def test_greedy_tokens_plain_and_speculative(family):
    """Rows of several lengths in one batch."""
    model, inputs, expected, directory = family
    pair = specdec.load_pair(target=directory / "target", draft=directory / "draft")
    rows = [row[row != model.config.pad_token_id] for row in inputs]
    options = {"max_decode_len": NEW_TOKENS, "batch_size": len(rows)}
    plain = pair.generate(rows, method="autoregressive", **options)
    fast = pair.generate(rows, gamma=3, **options)
    for ours, same, theirs in zip(plain.tokens, fast.tokens, expected, strict=True):
        assert ours.tolist() == same.tolist() == theirs[: len(ours)].tolist()
        assert (theirs[len(ours) :] == model.config.pad_token_id).all()
    lengths = set(map(len, plain.tokens))
    assert len(lengths) > 1, "every row ended at once"
    assert any(row[-1] == model.config.eos_token_id for row in plain.tokens)
    stats = fast.stats
    assert 0 < int(np.sum(stats.accepted)) < int(np.sum(stats.proposed))


def test_what_is_saved_opens_in_transformers_with_the_same_logits(torch, family, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, inputs, expected, directory = family
    config, params = load_huggingface(directory / "target")
    save_huggingface(tmp_path / "again", config, params)
    again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "again", output_loading_info=True
    )
    assert not any(info.values()), info
    assert_same_network(torch, again.eval(), config, params)
    found = again.generate(
        torch.tensor(inputs), do_sample=False, max_new_tokens=NEW_TOKENS,
        attention_mask=torch.tensor(inputs != model.config.pad_token_id),
    )  # fmt: skip
    np.testing.assert_array_equal(found[:, 1:].numpy(), expected)
