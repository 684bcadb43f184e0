"""BART, mBART, M2M100, Marian and Pegasus: the same numbers as transformers, both ways."""

import copy
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from slow import slow
from tiny import logits_along

import specdec
from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.models.bart import network
from specdec.models.bart.model import BartModel
from specdec.models.packed import PackedModel

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
        {"bad_words_ids": [[52]], "renormalize_logits": True, "forced_eos_token_id": 0},
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
SEEDS = {"bart_odd": 3, "mbart_odd": 5, "marian_apart": 2}  # With others most outputs end soon.
ENDS = (7, 11, 19, 20)  # They end an output, too, so that rows end apart.


def random_model(torch, name):
    """transformers' own, of which every weight matters; sines are as they are."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    architecture, changes, generation = CASES[name]
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**SMALL | changes)).eval()
    generator = torch.Generator().manual_seed(SEEDS.get(name, 0))
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


def texts(model, count, seed=1, most=14):
    """Token ids of several lengths; none is a pad."""
    generator, config, found = np.random.default_rng(seed), model.config, []
    allowed = [i for i in range(config.vocab_size) if i != config.pad_token_id]
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


def all_logits(torch, model, directory, kind=BartModel):
    """Along random outputs, of ragged rows: transformers', the network's and a decode model's."""
    config, params = load_huggingface(directory)
    inputs, mask = padded(model, texts(model, 3, most=50))
    generator = np.random.default_rng(2)
    outputs = generator.integers(0, config.vocab_size, (3, 60))
    outputs = np.where(outputs == config.pad_id, config.eos_id, outputs)
    outputs[:, 0] = config.decoder_start_id
    with torch.no_grad():  # In float64: what differs is our rounding alone.
        theirs = copy.deepcopy(model).double()(
            input_ids=torch.tensor(inputs), attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(outputs),
        ).logits.numpy()  # fmt: skip
    given = jnp.asarray(inputs), jnp.asarray(outputs)
    ours = network.Transformer(config).apply({"params": params}, *given)
    loaded = load_model(str(directory), "float32", generation_config="ignore")
    decoder = kind(loaded.model.config, loaded.model.layout)
    prompt = decoder.prompt(inputs, mask.sum(axis=1))
    packed = logits_along(decoder, loaded.params, prompt, given[1])
    return theirs, np.asarray(ours), np.asarray(packed)


def assert_same_logits(torch, model, directory, kind=BartModel):
    theirs, ours, packed = all_logits(torch, model, directory, kind)
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


class NoRoot(BartModel):
    """Embedded tokens are not multiplied with sqrt(d)."""

    _embedded = PackedModel._embedded


class OffByOne(BartModel):
    """Each token has the position of the next."""

    def _with_positions(self, params, x, positions):
        return super()._with_positions(params, x, positions + 1)


class NoBias(BartModel):
    """Without final_logits_bias."""

    def _logits(self, params, x):
        return self._logits_of_normed(params, x)


class AddsToTheSum(BartModel):
    """Parts are added to what is not normalised, though norms are after each part."""

    def _before(self, norm):
        return norm

    def _added_to(self, x, norm):
        return x


class NoScale(BartModel):
    """Queries are not divided by sqrt(head_dim)."""

    _query_scale = 1.0


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("mbart", NoRoot), ("bart", OffByOne), ("bart", NoBias), ("bart", AddsToTheSum),
        ("m2m_100", OffByOne), slow("m2m_100", NoRoot), slow("marian", OffByOne),
        slow("marian", NoBias), slow("pegasus", NoBias), slow("m2m_100", NoScale),
    ],
)  # fmt: skip
def test_broken_models_are_caught(torch, saved, name, mutant):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_logits(torch, *saved(name), mutant)


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
    """A function of a case: texts of several lengths, and what transformers' loop makes of them."""

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
        assert sum(map(len, rows)) > 10 * count
        return given, rows

    return continued


PLAIN, SPECULATIVE, TREE = {"method": "autoregressive"}, {"gamma": 3}, {"tree": (2, 1)}
WAYS = {"plain": PLAIN, "speculative": SPECULATIVE, "tree": TREE}
QUICK = [
    ("bart", "tree"), ("mbart_odd", "speculative"), ("m2m_100", "speculative"),
    ("marian", "plain"), ("pegasus_odd", "speculative"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "way", "count"),
    [(*each, 32) for each in QUICK] + [slow(name, way, 200) for name in CASES for way in WAYS],
)
def test_greedy_tokens_of_transformers(pair_of, continued, name, way, count):
    """With the rules of the checkpoint, in batches of rows that end apart: all equal.

    The draft is another model: guesses are accepted and rejected.
    """
    given, expected = continued(name, count)
    out = pair_of(name).generate(
        given, batch_size=8, max_decode_len=LIMIT, sampling=GREEDY, **WAYS[way]
    )
    assert [row.tolist() for row in out.tokens] == expected
    if way != "plain":
        assert 0 < out.stats.accepted < out.stats.examined


@pytest.mark.parametrize(
    "name", [name if name == "marian" else slow(name) for name in CASES if "odd" not in name]
)
def test_beams_of_transformers(torch, saved, pair_of, name):
    """n-best lists of texts of several lengths: tokens, order and scores."""
    model, width = saved(name)[0], 4
    given = texts(model, 4, seed=5)
    beam = specdec.BeamConfig(width, rule="huggingface")
    options = {"max_decode_len": 16, "beam": beam, "num_return": width, "batch_size": 4}
    out = pair_of(name).generate(given, method="beam", **options)
    fast = pair_of(name).generate(given, method="speculative_beam", gamma=2, **options)
    for text, found, again in zip(given, out.beams, fast.beams, strict=True):
        with torch.no_grad():
            whole = model.generate(
                torch.tensor([text]), attention_mask=torch.ones(1, len(text)).long(),
                do_sample=False, max_new_tokens=16, num_beams=width, num_return_sequences=width,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        for ours, same, theirs in zip(found, again, whole.sequences[:, 1:].tolist(), strict=True):
            assert ours.tokens.tolist() == theirs[: len(ours.tokens)]
            assert set(theirs[len(ours.tokens) :]) <= {model.config.pad_token_id}
            assert same.tokens.tolist() == ours.tokens.tolist()
        scores = [each.score for each in found]
        np.testing.assert_allclose(scores, whole.sequences_scores.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bart_odd", slow("m2m_100"), slow("marian_apart")])
def test_shards_in_bfloat16(torch, saved, tmp_path, name):
    model = saved(name)[0]
    kind = type(model)
    narrow = kind.from_pretrained(saved(name)[1]).to(torch.bfloat16)
    narrow.save_pretrained(tmp_path, max_shard_size="12KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    # Read in bfloat16 and then widened, the sines would stay rounded.
    again = kind.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(torch, again.eval(), tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_is_read_back_and_opens_in_transformers(torch, saved, tmp_path, name):
    model, directory = saved(name)
    config, params = load_huggingface(directory)
    save_huggingface(tmp_path / "again", config, params, max_shard_bytes=20_000)
    assert len(list((tmp_path / "again").glob("model-*"))) > 1
    again, found = load_huggingface(tmp_path / "again")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, found, params)
    theirs = type(model).from_pretrained(tmp_path / "again").eval()
    for before, after in zip(model.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert before[0] == after[0]
        if "model.shared" not in before[0]:  # Which nothing reads where embeddings are apart.
            torch.testing.assert_close(before[1], after[1], rtol=0, atol=0)


def test_files_of_other_versions(saved, tmp_path):
    """Of a model without its head, with tables twice, sines and numbers of versions."""
    directory = saved("m2m_100")[1]

    def change(tensors):
        found = {name.removeprefix("model."): array for name, array in tensors.items()}
        twice = found["shared.weight"]
        return found | {
            "encoder.embed_tokens.weight": twice, "decoder.embed_tokens.weight": twice,
            "encoder.embed_positions.weights": np.zeros((1, 2), np.float32),
            "encoder.version": np.ones(1, np.float32),
        }  # fmt: skip

    old = rewritten(directory, tmp_path / "old", change)
    assert load_huggingface(old)[0] == load_huggingface(directory)[0]
    jax.tree.map(
        np.testing.assert_array_equal, load_huggingface(old)[1], load_huggingface(directory)[1]
    )


def test_sines_that_are_others(torch, saved, tmp_path):
    """A Marian's are those of its file, as in transformers; rounded ones are computed."""
    name = "model.{}.embed_positions.weight"
    model, directory = saved("marian")
    sines = model.model.encoder.embed_positions.weight.numpy()
    tables = {name.format(stack): sines for stack in ("encoder", "decoder")}
    other = {path: 0.5 * table for path, table in tables.items()}
    found = rewritten(directory, tmp_path / "other", lambda tensors: tensors | other)
    assert load_huggingface(found)[0].positions == "learned"
    theirs = type(model).from_pretrained(found).eval()
    assert torch.equal(theirs.model.decoder.embed_positions.weight, torch.tensor(0.5 * sines))
    assert_same_logits(torch, theirs, found)
    rounded = {path: table.astype("f2") for path, table in tables.items()}
    near = rewritten(directory, tmp_path / "near", lambda tensors: tensors | rounded)
    assert load_huggingface(near)[0] == load_huggingface(directory)[0]
    one = {name.format("encoder"): 0.5 * sines}

    def without(tensors):
        return {n: a for n, a in tensors.items() if n not in tables} | one

    with pytest.raises(CheckpointError, match=r"missing parameter model.decoder.embed_positions"):
        load_huggingface(rewritten(directory, tmp_path / "one", without))


def test_without_a_bias_of_the_logits_there_is_none(torch, saved, tmp_path):
    directory = rewritten(
        saved("bart")[1], tmp_path / "bart",
        lambda tensors: {n: a for n, a in tensors.items() if n != "final_logits_bias"},
    )  # fmt: skip
    assert not load_huggingface(directory)[0].logits_bias
    model = type(saved("bart")[0]).from_pretrained(directory).eval()
    assert_same_logits(torch, model, directory)


def test_a_head_that_is_not_the_embedding_though_the_config_ties_them(saved, tmp_path):
    """transformers keeps all that differ."""
    directory = saved("bart_odd")[1]
    tied = rewritten(directory, tmp_path / "tied", tie_word_embeddings=True)
    assert load_huggingface(tied)[0] == load_huggingface(directory)[0]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bart", {"activation_function": "tanh"}, "activation_function 'tanh' is not supported"),
        ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads must be .* 4, got 2"),
        ("bart", {"decoder_ffn_dim": 40}, "decoder_ffn_dim must be .* 48, got 40"),
        ("bart", {"normalize_before": True}, "normalize_before must be False"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding must be True"),
        ("bart", {"static_position_embeddings": True}, "static_position_embeddings must be False"),
        ("mbart", {"extra_pos_embeddings": 1}, "extra_pos_embeddings must be 2"),
        ("mbart", {"add_final_layer_norm": False}, "add_final_layer_norm must be True"),
        (
            "marian",
            {"static_position_embeddings": False},
            "static_position_embeddings must be True",
        ),
        ("marian", {"encoder_layers": None}, "encoder_layers must be a whole number"),
        ("pegasus", {"d_model": 31}, "attention_heads must divide d_model"),
        ("pegasus", {"scale_embedding": "yes"}, "scale_embedding must be true or false"),
        ("m2m_100", {"model_type": "nllb-moe"}, "can be loaded are, .* m2m_100 .NLLB-200"),
    ],
)
def test_configs_of_other_networks(saved, tmp_path, name, changes, words):
    with pytest.raises(CheckpointError, match=words):
        load_huggingface(rewritten(saved(name)[1], tmp_path / name, **changes))


def test_what_transformers_has_no_model_for(saved, tmp_path):
    config, params = load_huggingface(saved("marian")[1])
    odd = dataclasses.replace(config, positions="tensor2tensor")
    with pytest.raises(CheckpointError, match="transformers has no model of positions="):
        save_huggingface(tmp_path / "odd", odd, params)


def test_inputs_and_outputs_longer_than_the_positions(pair_of):
    pair = pair_of("bart")
    with pytest.raises(ValueError, match="text 0 has 81 tokens, more than the model's 80 pos"):
        pair.generate([[5] * 81], max_decode_len=8)
    with pytest.raises(ValueError, match=r"max_decode_len = 81 .* more than the model's 80 pos"):
        pair.generate([[5, 2]], max_decode_len=81)


def test_copying_from_another_vocabulary(saved):
    with pytest.raises(ValueError, match="texts have another vocabulary than its outputs"):
        specdec.load_pair(target=saved("marian_apart")[1], draft=specdec.Copying())
