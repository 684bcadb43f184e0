"""Llama, Qwen, Gemma and T5Gemma checkpoints: the same numbers as transformers, both ways.

Every family in two shapes: with queries that share keys and without, tied and untied, with windows
that are shorter than the texts.
"""

import copy
import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from slow import slow
from tiny import TINY_ROTARY, random_rotary_params

import specdec
from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.checkpoints.architectures import network

# What transformers imports warns of much that is its own to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
SMALL = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128, **TOKENS,
}  # fmt: skip
# Queries have keys of their own, and heads are not as wide together as the stream.
WHOLE = SMALL | {
    "vocab_size": 47, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 12,
}  # fmt: skip
WINDOW = {"sliding_window": 5}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0, "query_pre_attn_scalar": 16}
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
UNTIED = {"tie_word_embeddings": False}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def _ropes(full, **more):
    local = {"rope_type": "default", "rope_theta": 100.0}
    full = {"rope_type": "default", "rope_theta": full, **more}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": local}}


GEMMA_3 = WINDOW | {"query_pre_attn_scalar": 16, "sliding_window_pattern": 2}
SHAPES = {
    "llama": ("Llama", SMALL | {"rope_parameters": LLAMA3}),
    "llama_whole": ("Llama", WHOLE | {"tie_word_embeddings": True, "eos_token_id": [1, 7]}),
    "qwen2": ("Qwen2", SMALL | {"hidden_size": 32, "tie_word_embeddings": True}),
    "qwen2_whole": (
        "Qwen2",
        WHOLE | WINDOW | {"hidden_size": 24, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", SMALL),
    "qwen3_whole": ("Qwen3", WHOLE | {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2", SMALL | WINDOW | CAPS),
    "gemma2_whole": ("Gemma2", WHOLE | {"sliding_window": 8} | NO_CAPS | UNTIED),
    "gemma3": ("Gemma3", SMALL | GEMMA_3 | _ropes(1e4)),
    "gemma3_whole": (
        "Gemma3",
        WHOLE | GEMMA_3 | UNTIED | _ropes(1e3, rope_type="linear", factor=8.0)
        | {"final_logit_softcapping": 5.0},
    ),
    "t5gemma": (
        "T5Gemma",
        (SMALL | WINDOW | CAPS, SMALL | WINDOW | CAPS | {
            "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1
        }),
    ),
    "t5gemma_whole": (
        "T5Gemma", (WHOLE | {"sliding_window": 4} | NO_CAPS, WHOLE | WINDOW | NO_CAPS)
    ),
    "t5gemma2": ("T5Gemma2", (SMALL | GEMMA_3 | _ropes(1e4), SMALL | GEMMA_3 | _ropes(1e4))),
    "t5gemma2_whole": (
        "T5Gemma2",
        (WHOLE | GEMMA_3 | _ropes(1e3) | {"sliding_window": 4},
         WHOLE | GEMMA_3 | _ropes(1e3) | {"sliding_window": 6}),
    ),
}  # fmt: skip
UNTIED_WHOLE = ("t5gemma_whole",)
QUICK = ("llama", "gemma3_whole", "t5gemma", "t5gemma2")


def each_shape(quick=QUICK):
    return [name if name in quick else slow(name) for name in SHAPES]


def _made(transformers, kind, shape, tied):
    """transformers' own model of a shape."""
    if kind.startswith("T5Gemma"):
        encoder, decoder = map(copy.deepcopy, shape)
        more = {"vocab_size": encoder["vocab_size"], "tie_word_embeddings": tied, **TOKENS}
        if kind == "T5Gemma2":
            vision = {
                "model_type": "siglip_vision_model", "hidden_size": 4, "intermediate_size": 4,
                "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 4,
            }  # fmt: skip
            encoder = {
                "text_config": encoder, "vision_config": vision, "mm_tokens_per_image": 4
            }  # fmt: skip
        config = getattr(transformers, f"{kind}Config")(encoder=encoder, decoder=decoder, **more)
        model = getattr(transformers, f"{kind}ForConditionalGeneration")
    else:
        name = "Gemma3Text" if kind == "Gemma3" else kind
        config = getattr(transformers, f"{name}Config")(**copy.deepcopy(shape))
        model = getattr(transformers, f"{kind}ForCausalLM")
    return model._from_config(config, attn_implementation="eager").float().eval()


@pytest.fixture(scope="module")
def saved(torch, tmp_path_factory):
    """name -> transformers' own model, its directory, and that of a draft much like it."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()

    @functools.cache
    def saved(name):
        kind, shape = SHAPES[name]
        torch.manual_seed(0)
        model = _made(transformers, kind, shape, name not in UNTIED_WHOLE)
        generator, directories = torch.Generator().manual_seed(len(name)), []
        for role, scale in (("target", 1.0), ("draft", 0.1)):
            one = model if role == "target" else copy.deepcopy(model)
            with torch.no_grad():
                for path, weight in one.named_parameters():
                    # Logits spread by a few units, whatever the width.
                    wide = weight.ndim > 1 and "embed" not in path
                    stddev = scale * (weight.shape[-1] ** -0.5 if wide else 0.3)
                    weight.add_(torch.randn(weight.shape, generator=generator) * stddev)
                    if "Gemma" in kind and "post_" in path and role == "target":
                        weight.add_(4.0)  # Else a Gemma's token would predict itself.
            directories.append(tmp_path_factory.mktemp(f"{name}_{role}"))
            one.save_pretrained(directories[-1])
        return model, *directories

    return saved


@pytest.mark.parametrize("name", each_shape())
def test_logits_of_transformers(torch, saved, name):
    """The network's, and those of the model that decodes, within 1e-4."""
    model, directory, _ = saved(name)
    config, params = load_huggingface(directory)
    generator = np.random.default_rng(0)
    tokens, following = generator.integers(3, 45, (2, 3, 40))
    lengths = np.array([40, 3, 17])
    real = np.arange(40) < lengths[:, None]
    if config.encoder is None:
        with torch.no_grad():
            expected = model(torch.tensor(tokens)).logits.numpy()
        given = (tokens,)
    else:
        tokens = np.where(real, tokens, 0)
        with torch.no_grad():
            expected = model(
                input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real).long(),
                decoder_input_ids=torch.tensor(following),
            ).logits.numpy()  # fmt: skip
        given = (tokens, following)
    assert np.std(expected) > 0.7
    found = network(config).apply({"params": params}, *map(jnp.asarray, given))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert_same_log_probs(model, directory, (1, 7, 30))


LIMIT = 40


@pytest.fixture(scope="module")
def greedy(torch, saved):
    """name and how many -> texts of 1 to 14 tokens, and what transformers' own loop makes of them.

    Rows that end early are filled up; 2,000 tokens and more, or a few hundred.
    """

    @functools.cache
    def greedy(name, many):
        model, directory, _ = saved(name)
        ends = load_huggingface(directory)[0]
        ends = (ends.eos_id, *ends.more_eos_ids)
        generator, texts, rows = np.random.default_rng(1), [], []
        for size in itertools.cycle(range(1, 15)) if many else (1, 6, 14):
            ids = torch.tensor(generator.integers(3, 45, (6, size)))
            with torch.no_grad():
                whole = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False,
                    max_new_tokens=LIMIT,
                )  # fmt: skip
            start = 1 if model.config.is_encoder_decoder else size
            for text, row in zip(ids.tolist(), whole[:, start:].tolist(), strict=True):
                stops = [i + 1 for i, token in enumerate(row) if token in ends]
                texts.append(text)
                rows.append(row[: min(stops, default=len(row))])
            if many and size == 14 and sum(map(len, rows)) > 2000:
                break
        assert sum(map(len, rows)) > 200
        assert len(set(map(tuple, rows))) > len(rows) // 2
        assert np.mean([len(set(row)) for row in rows]) > 2
        order = generator.permutation(len(rows))  # Neighbours have other lengths.
        return [texts[i] for i in order], [rows[i] for i in order]

    return greedy


WAYS = {
    "plain": {"method": "autoregressive"},
    "model": {"gamma": 3},
    "tree": {"tree": (2, 1)},
    "best first": {"tree": specdec.Tree(nodes=5, depth=3, siblings=2)},
    "8 bits": {"gamma": 3},
    "copying": {"gamma": 3},
}


@pytest.mark.parametrize(
    ("name", "way", "many"),
    [
        ("gemma3_whole", "model", False), ("gemma3_whole", "tree", False),
        ("t5gemma", "model", False), ("t5gemma2", "tree", False), ("llama", "plain", False),
        *(slow(name, way, True) for name in SHAPES for way in ("plain", "model", "tree")),
        *(
            slow(name, way, False)
            for name in ("qwen2_whole", "gemma3", "t5gemma", "t5gemma2")
            for way in ("best first", "8 bits", "copying")
        ),
    ],
)  # fmt: skip
def test_greedy_tokens_of_transformers(saved, greedy, name, way, many):
    """In batches of texts that have other lengths, and end apart: all equal."""
    texts, expected = greedy(name, many)
    _, directory, near = saved(name)
    drafts = {"8 bits": specdec.Quantized(), "copying": specdec.Copying()}
    pair = specdec.load_pair(target=directory, draft=drafts.get(way, near))
    options = {"max_decode_len": LIMIT, "sampling": specdec.SamplingConfig(0.0), **WAYS[way]}
    out = pair.generate(texts, batch_size=6, **options)
    assert [row.tolist() for row in out.tokens] == expected
    if way != "plain":
        assert 0 < out.stats.accepted < out.stats.proposed


@pytest.mark.parametrize("name", [slow(name) if name != "t5gemma2" else name for name in SHAPES])
def test_beams_of_transformers(torch, saved, name):
    """Lists of four of texts of several lengths: tokens, order and scores; speculative ones too."""
    model, directory, near = saved(name)
    pair = specdec.load_pair(target=directory, draft=near)
    generator = np.random.default_rng(2)
    texts = [generator.integers(3, 45, size).tolist() for size in (1, 3, 9)]
    beam = specdec.BeamConfig(4, rule="huggingface")
    options = {"max_decode_len": 14, "beam": beam, "num_return": 4}
    out = pair.generate(texts, method="beam", batch_size=3, **options)
    fast = pair.generate(texts, method="speculative_beam", gamma=2, batch_size=3, **options)
    for text, found, again in zip(texts, out.beams, fast.beams, strict=True):
        ids = torch.tensor([text])
        with torch.no_grad():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=14,
                num_beams=4, num_return_sequences=4, return_dict_in_generate=True,
                output_scores=True,
            )  # fmt: skip
        start = 1 if model.config.is_encoder_decoder else len(text)
        rows = whole.sequences[:, start:].tolist()
        for ours, same, theirs in zip(found, again, rows, strict=True):
            assert ours.tokens.tolist() == theirs[: len(ours.tokens)]
            assert set(theirs[len(ours.tokens) :]) <= {0, 1}  # What it pads with.
            assert same.tokens.tolist() == ours.tokens.tolist()
        scores = [each.score for each in found]
        np.testing.assert_allclose(scores, whole.sequences_scores.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gemma3_whole", "bfloat16"), ("t5gemma2", "float32"),
        *(
            slow(name, dtype)
            for name in SHAPES
            for dtype in ("float32", "bfloat16")
            if (name, dtype) not in {("gemma3_whole", "bfloat16"), ("t5gemma2", "float32")}
        ),
    ],
)  # fmt: skip
def test_log_probs_of_what_is_saved(torch, saved, tmp_path, name, dtype):
    """In several files; transformers reads them."""
    model, directory, _ = saved(name)
    config, params = load_huggingface(directory)
    save_huggingface(tmp_path / "again", config, params, dtype=dtype, max_shard_bytes=4000)
    assert len(list((tmp_path / "again").glob("model-*"))) > 1
    assert load_huggingface(tmp_path / "again")[0] == config
    # Read in bfloat16 and then widened, the root of d_model would stay rounded.
    again = type(model).from_pretrained(
        tmp_path / "again", dtype=torch.float32, attn_implementation="eager"
    )
    assert_same_log_probs(again.eval(), tmp_path / "again", (1, 7, 30))
    if dtype == "float32":
        assert_same_log_probs(model, tmp_path / "again", (1, 7))


@pytest.mark.parametrize("variant", TINY_ROTARY)
def test_what_is_saved_is_read_back(tmp_path, variant):
    config = TINY_ROTARY[variant]
    params = jax.device_get(random_rotary_params(config, 0))
    save_huggingface(tmp_path / "saved", config, params)
    again, found = load_huggingface(tmp_path / "saved")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.parametrize(
    ("variant", "changes", "words"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("llama", {"attention_bias": True}, "attention_bias must be False, got True"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be False"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads must divide num_heads"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
         "rope_type 'yarn' is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "Missing required keys.*factor"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
         "type 'dynamic' is not supported"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "must be 1"),
        ("llama", {"hidden_size": None}, "hidden_size must be a whole number"),
        ("gemma2", {"use_bidirectional_attention": True}, "must be False, got True"),
        ("gemma2", {"layer_types": ["full_attention"]}, "num_hidden_layers. .2. must be equal"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "must be a list of"),
        ("llama", {"model_type": "mistral"}, "can be loaded are, .* llama .*, t5gemma2 "),
    ],
)  # fmt: skip
def test_configs_that_cannot_be_said(tmp_path, variant, changes, words):
    config = TINY_ROTARY[variant]
    save_huggingface(tmp_path / "it", config, jax.device_get(random_rotary_params(config, 0)))
    path = tmp_path / "it" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words):
        load_huggingface(tmp_path / "it")


def test_fields_of_older_versions_say_the_same(tmp_path):
    """A base and a scaling apart from each other, and a pattern instead of layers' types."""
    llama, gemma = TINY_ROTARY["llama"], TINY_ROTARY["gemma2"]
    for config in (llama, gemma):
        directory = tmp_path / config.activation
        save_huggingface(directory, config, jax.device_get(random_rotary_params(config, 0)))
        path = directory / "config.json"
        raw = json.loads(path.read_text())
        rope = raw.pop("rope_parameters")
        raw["rope_theta"] = rope.pop("rope_theta")
        if config is llama:
            raw["rope_scaling"] = rope
        else:
            del raw["layer_types"]
        path.write_text(json.dumps(raw))
        assert load_huggingface(directory)[0] == config


def test_settings_that_no_family_has(tmp_path):
    config = dataclasses.replace(TINY_ROTARY["llama"], norms_after=True)
    with pytest.raises(CheckpointError, match="No family of transformers has these settings"):
        save_huggingface(tmp_path / "it", config, jax.device_get(random_rotary_params(config, 0)))


def test_a_t5gemma_does_not_draft_for_a_llama(tmp_path):
    for variant in ("llama", "t5gemma2"):
        params = jax.device_get(random_rotary_params(TINY_ROTARY[variant], 0))
        save_huggingface(tmp_path / variant, TINY_ROTARY[variant], params)
    with pytest.raises(ValueError, match=r"is decoder-only, the draft .* encoder-decoder"):
        specdec.load_pair(target=tmp_path / "llama", draft=tmp_path / "t5gemma2")
