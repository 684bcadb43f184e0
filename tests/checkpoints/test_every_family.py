"""Every family: transformers' numbers and tokens, and files that both read and write."""

import dataclasses
import functools

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, WHISPERS
from log_probs import as_theirs, assert_same_log_probs
from safetensors.numpy import load_file
from slow import slow
from tiny import logits_along, sounds

import specdec
from specdec.checkpoints import load_huggingface, save_huggingface
from specdec.checkpoints.architectures import init_params, network, parameter_shapes
from specdec.checkpoints.families import MODEL_TYPES
from specdec.models import attention
from specdec.models.products import few_tokens
from specdec.models.transformer import model as steps
from specdec.models.transformer import parts, views
from specdec.models.transformer.arithmetic import angles, turned, windows
from specdec.models.transformer.config import Stack
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.parts import Parts

# What transformers imports warns of much that is its own to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


def network_inputs(config, length=40):
    """Ragged texts or sounds, outputs, and what of texts is real; a decoder has outputs alone."""
    generator, size = np.random.default_rng(0), min(config.vocab_size, 45)
    tokens, outputs = generator.integers(5, size, (2, 3, length))
    if config.reads_prefix:
        return (outputs,), None
    if config.features is not None:
        return (sounds(3, config.input_shape), outputs), None
    real = np.arange(length) < np.array([length, 3, 17])[:, None]
    return (np.where(real, tokens, config.pad_id), outputs), real


def expected_logits(torch, model, given, real):
    text, *outputs = given
    read = {"decoder_input_ids": torch.tensor(outputs[0])} if outputs else {}
    with torch.no_grad():
        return model(**as_theirs(text, real), **read).logits.numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs(torch, made, name):
    """The network's logits, and log-probabilities of the model that decodes, within 1e-4."""
    model, directory = made(name)
    config, params = load_huggingface(directory)
    given, real = network_inputs(config)
    expected = expected_logits(torch, model, given, real)
    assert 0.5 < np.std(expected) < 20
    found = jax.jit(network(config).apply)({"params": params}, *map(jnp.asarray, given))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert_same_log_probs(model, directory, (1, 7, 40))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written(torch, made, tmp_path, name):
    """In several files, which we and transformers read: all bits are those that were read."""
    model, directory = made(name)
    config, params = load_huggingface(directory)
    shapes = {path: leaf.shape for path, leaf in flat(params).items()}
    assert shapes == parameter_shapes(config)
    like = jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))
    assert jax.tree.structure(like) == jax.tree.structure(params)
    save_huggingface(tmp_path / "again", config, params, max_shard_bytes=8000)
    assert len(list((tmp_path / "again").glob("model-*"))) > 1
    again, found = load_huggingface(tmp_path / "again")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, found, params)
    given = network_inputs(config)
    expected = expected_logits(torch, model, *given)
    theirs = expected_logits(torch, families.read(model, tmp_path / "again"), *given)
    np.testing.assert_allclose(theirs, expected, rtol=0, atol=2e-5)

    save_huggingface(tmp_path / "half", config, params, dtype="bfloat16")
    assert {a.dtype.name for a in load_file(tmp_path / "half/model.safetensors").values()} == {
        "bfloat16"
    }
    halves = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, load_huggingface(tmp_path / "half")[1], halves)


def test_every_model_type_has_a_row(torch):
    import transformers

    kinds = {getattr(transformers, family.kind) for family in FAMILIES.values()}
    assert set(MODEL_TYPES) == {kind.config_class.model_type for kind in kinds}


def flat(params):
    return {
        "/".join(part.key for part in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


LIMIT = 20
GREEDY = {"max_decode_len": LIMIT, "sampling": specdec.SamplingConfig(0.0), "batch_size": 6}
PLAIN, CHAIN, TREE = {"method": "autoregressive"}, {"gamma": 3}, {"tree": (2, 1)}
WAYS = {"plain": PLAIN, "chain": CHAIN, "tree": TREE}
# transformers' cache has as many layers as a T5's encoder.
LOOPED = [name for name in FAMILIES if name != "t5_odd"]
# Of each architecture one, and each rule that a generation_config.json asks for.
QUICK = [
    ("madlad400", "chain"), ("bart", "tree"), ("m2m_100", "chain"), ("marian", "plain"),
    ("whisper", "chain"), ("gpt2_untied", "chain"), ("gemma3_whole", "tree"), ("t5gemma2", "chain"),
]  # fmt: skip


@pytest.fixture(scope="module")
def pair_of(made, rewritten, tmp_path_factory):
    """A function of a row: a pair, whose draft is the target with noise."""

    @functools.cache
    def pair_of(name):
        directory = made(name)[1]

        def noisy(tensors):
            generator = np.random.default_rng(0)
            return {
                path: np.asarray(a + 0.1 * np.std(a) * generator.normal(size=a.shape), np.float32)
                for path, a in tensors.items()
            }

        draft = rewritten(directory, tmp_path_factory.mktemp("draft") / "it", noisy)
        return specdec.load_pair(target=directory, draft=draft)

    return pair_of


def texts_of(model, sizes):
    """Ids of texts for a model, none of them its pad; an encoder's end with EOS. Or sounds."""
    if model.config.model_type == "whisper":
        shape = 2 * model.config.max_source_positions, model.config.num_mel_bins
        return list(sounds(len(sizes), shape))
    generator, encoder = np.random.default_rng(1), model.config.is_encoder_decoder
    ends = [model.generation_config.eos_token_id[0]] if encoder else []
    return [[*generator.integers(21, 45, size).tolist(), *ends] for size in sizes]


def theirs_of(torch, model, texts, **options):
    """What transformers' own loop makes of each text alone, without what stands before it."""
    from transformers import GenerationMixin

    found = []
    for text in texts:
        with torch.no_grad():
            whole = GenerationMixin.generate(  # Whisper's own one is of whole recordings.
                model, **as_theirs(np.array([text])), do_sample=False, max_new_tokens=LIMIT,
                return_dict_in_generate=True, output_scores=True, **options,
            )  # fmt: skip
        start = 1 if model.config.is_encoder_decoder else len(text)
        found.append((whole.sequences[:, start:].tolist(), whole))
    return found


@pytest.mark.parametrize(
    ("name", "way"), [*QUICK, *(slow(name, way) for name in LOOPED for way in WAYS)]
)
def test_greedy_tokens(torch, made, pair_of, name, way):
    """In a batch of rows that have other lengths and end apart, by the checkpoint's own rules."""
    model, _ = made(name)
    texts = texts_of(model, (1, 6, 14, 3, 9, 5))
    expected = [rows[0] for rows, _ in theirs_of(torch, model, texts)]
    out = pair_of(name).generate(texts, **GREEDY, **WAYS[way])
    assert [row.tolist() for row in out.tokens] == expected
    assert len(set(map(tuple, expected))) > 3
    if way != "plain":
        assert 0 < out.stats.accepted < out.stats.proposed


@pytest.mark.parametrize(
    "name", [name if name in ("marian", "t5gemma2") else slow(name) for name in FAMILIES]
)
def test_beams(torch, made, pair_of, name):
    """Lists of texts of several lengths: tokens, order and scores; speculative ones too."""
    model, pair, count = made(name)[0], pair_of(name), 5 if name in WHISPERS else 4
    texts = texts_of(model, (1, 3, 9))
    options = {
        "max_decode_len": LIMIT, "beam": specdec.BeamConfig(count, rule="huggingface"),
        "num_return": count,
    }  # fmt: skip
    out = pair.generate(texts, method="beam", batch_size=3, **options)
    fast = pair.generate(texts, method="speculative_beam", gamma=2, batch_size=3, **options)
    expected = theirs_of(torch, model, texts, num_beams=count, num_return_sequences=count)
    for found, again, (rows, whole) in zip(out.beams, fast.beams, expected, strict=True):
        for ours, same, theirs in zip(found, again, rows, strict=True):
            assert ours.tokens.tolist() == theirs[: len(ours.tokens)]
            assert set(theirs[len(ours.tokens) :]) <= {model.config.pad_token_id, 1}
            assert same.tokens.tolist() == ours.tokens.tolist()
        scores = [each.score for each in found]
        np.testing.assert_allclose(scores, whole.sequences_scores.numpy(), rtol=1e-4, atol=1e-4)


# What is broken, and the rows in which log-probabilities must show it.


def _one_more(window, positions, entries):
    behind = positions[..., :, None] - entries[..., None, :]
    return (behind <= window[0] + 1) & (-behind <= window[1])


def _capped_behind_the_mask(patch):
    parts = few_tokens.softmax_parts
    patch.setattr(attention, "_capped", lambda scores, softcap: scores)
    patch.setattr(few_tokens, "softmax_parts", lambda x: parts(3.0 * jnp.tanh(x / 3.0)))


def _turned_encoder(patch):
    attended = TransformerModel.attended

    def broken(self, params, output, mask):
        found, stack = attended(self, params, output, mask), self.config.decoder
        by = angles(stack.rope_of(False), stack.head_dim, jnp.arange(found.output.shape[1])[None])
        keys = jax.tree.map(lambda key: turned(key.swapaxes(-2, -3), by), found.keys)
        return dataclasses.replace(found, keys=jax.tree.map(lambda k: k.swapaxes(-2, -3), keys))

    patch.setattr(TransformerModel, "attended", broken)


def _off_by_one(patch):
    right = Parts.with_positions
    patch.setattr(
        Parts, "with_positions", lambda self, packed, x, at: right(self, packed, x, at + 1)
    )


def _next_frames(patch):
    """The second convolution, one frame late."""

    def broken(x, stride):
        return windows(x[:, stride - 1 :], stride)

    patch.setattr(steps, "windows", broken)


def _adds_to_the_sum(patch):
    """Though norms are after each part."""
    patch.setattr(Parts, "_before", lambda self, norm: norm)
    patch.setattr(Parts, "entering", lambda self, x, norm, part=1: x)


def _no_bias(patch):
    right = Parts.logits
    patch.setattr(Parts, "logits", lambda self, *given: right(self, *given[:-1], None))


def _set(owner, name, value):
    return lambda patch: patch.setattr(owner, name, value)


MUTANTS = {
    "no root of the width": (
        _set(parts, "embedding_scale", lambda width, dtype: 1),
        ("gemma2", "mbart", "t5gemma", "t5gemma2"),
    ),
    "the next position": (_off_by_one, ("bart", "m2m_100", "whisper")),
    "the next frames": (_next_frames, ("whisper", "whisper_odd")),
    "frames rectified": (_set(steps, "ACTIVATIONS", {"gelu_exact": jax.nn.relu}), ("whisper",)),
    "no bias of the logits": (_no_bias, ("bart",)),
    "added to the sum": (_adds_to_the_sum, ("bart",)),
    "queries not divided": (_set(Stack, "query_scale", 1.0), ("m2m_100",)),
    "window off by one": (
        _set(views, "within", _one_more), ("gemma2", "mistral", "t5gemma", "t5gemma2")
    ),
    "softcap behind the mask": (_capped_behind_the_mask, ("gemma2", "t5gemma")),
    "no softcap of scores": (
        _set(attention, "_capped", lambda scores, softcap: scores), ("gemma2", "t5gemma")
    ),
    "second base everywhere": (
        _set(Stack, "rope_of", lambda self, sliding: self.positions.sliding_rope), ("t5gemma2",)
    ),
    "an encoder's key turned": (_turned_encoder, ("t5gemma2", "t5gemma")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (mutant, name) if name == names[0] else slow(mutant, name)
        for mutant, (_, names) in MUTANTS.items()
        for name in names
    ],
)
def test_what_is_broken_differs(made, monkeypatch, mutant, name):
    MUTANTS[mutant][0](monkeypatch)
    logits_along.clear_cache()  # Of the whole model's program.
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_log_probs(*made(name), (1, 7, 40))
    logits_along.clear_cache()
