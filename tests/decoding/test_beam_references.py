"""Beam search against transformers and T5X: the same n-best lists, and scores within 1e-4."""

import dataclasses
import importlib
import importlib.util
import itertools
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.checkpoints import load_huggingface, save_huggingface
from specdec.checkpoints.loading import load_model, resolve
from specdec.data.text import read_pairs
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.beam_rules import BeamConfig
from specdec.models.transformer.network import Transformer

# What they import warns of much that is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTHS = (1, 2, 4, 8)
STOPPING = list(itertools.product((False, True, "never"), (0.0, 0.6, 1.0, 2.0)))
TOLERANCE, LIMIT = 1e-4, 12
SEVERAL_ENDS = dataclasses.replace(TINY["v1.1"], more_eos_ids=(7,))
CASES = {"v1.1": (TINY["v1.1"], 3), "v1.0": (TINY["v1.0"], 1), "several ends": (SEVERAL_ENDS, 3)}


class Reference:
    """transformers, on a checkpoint that we read too."""

    def __init__(self, torch, path):
        transformers = pytest.importorskip("transformers", reason="compares with transformers")
        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        self._torch, self.loaded = torch, load_model(str(path), "float32")
        model = transformers.T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
        # transformers gives the decoder's cache as many layers as the encoder has.
        model.config.num_layers = model.config.num_decoder_layers
        self._model = model.eval()

    def check(self, config, batch, limit):
        """Fails unless both give the same lists; the number of rows with near ties told apart."""
        ours = BeamDecoder(self.loaded, config, limit).decode(batch)
        inputs, counts = np.asarray(batch.prompt.inputs, np.int64), batch.prompt.input_lengths
        mask = np.arange(inputs.shape[1]) < np.asarray(counts)[:, None]
        given = self._model.generate(
            self._torch.tensor(inputs), attention_mask=self._torch.tensor(mask.astype(np.int64)),
            num_beams=config.num_beams, num_return_sequences=config.num_beams,
            length_penalty=config.length_penalty, early_stopping=config.early_stopping,
            max_new_tokens=limit, do_sample=False, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        shape = (len(inputs), config.num_beams, -1)
        theirs, near = given.sequences[:, 1:].numpy().reshape(shape), 0
        eos_ids = self.loaded.model.eos_ids
        if config.num_beams > 1:  # Greedy search has none.
            scores = given.sequences_scores.numpy().reshape(shape[:2])
            real = batch.row_ids >= 0
            np.testing.assert_allclose(ours.scores[real], scores[real], atol=TOLERANCE, rtol=0)
        for row in np.flatnonzero(batch.row_ids >= 0):
            found = [_until_end(tokens, eos_ids) for tokens in theirs[row].tolist()]
            mine = [
                tokens[:count]
                for tokens, count in zip(
                    ours.tokens[row].tolist(), ours.num_tokens[row], strict=True
                )
            ]
            if mine == found:
                continue
            at = [index for index in range(config.num_beams) if mine[index] != found[index]]
            gaps = np.diff(ours.scores[row][[at[0], at[-1]]])
            assert np.abs(gaps).max() < TOLERANCE, (config, row, mine, found)
            near += 1
        return near


def _until_end(tokens, eos_ids):
    """(transformers fills up with EOS where padding is 0.)"""
    ends = [index for index, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.fixture(scope="module")
def tiny(request, torch, tmp_path_factory):
    config, seed = CASES[request.param]
    path = tmp_path_factory.mktemp("tiny")
    save_huggingface(path, config, jax.device_get(random_params(config, seed)))
    return Reference(torch, path)


def batch_of(model, rows, seed):
    inputs = np.asarray(ragged_inputs(rows, 8, 19, seed=seed))
    return Batch(prompt_of(model, inputs), np.arange(rows))


# In the plain run; the others are slow.
PLAIN = [("v1.1", 4), ("v1.0", 2), ("v1.0", 8), ("several ends", 2)]


@pytest.mark.parametrize(
    ("tiny", "width"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each not in PLAIN))
        for each in itertools.product(CASES, WIDTHS)
    ],
    indirect=["tiny"],
    scope="module",
)
def test_transformers(tiny, width):
    """All forms of early_stopping with all penalties, on different rows each."""
    for seed, (early, penalty) in enumerate(STOPPING):
        if width == 1 and early == "never":
            continue  # transformers has no beams there; ours may go on after EOS.
        if width == 8 and len(tiny.loaded.model.eos_ids) > 1:
            return  # 24 candidates of 19 tokens: transformers then counts ended beams as live.
        config = BeamConfig(width, "huggingface", length_penalty=penalty, early_stopping=early)
        assert tiny.check(config, batch_of(tiny.loaded.model, 8, seed), LIMIT) == 0


@pytest.fixture(scope="module")
def bundled(torch):
    return Reference(torch, Path(resolve("quickstart", "target")))


@pytest.fixture(scope="module")
def pair():
    import specdec

    return specdec.load_pair("quickstart")


def check_sentences(bundled, pair, texts, widths, batch_size):
    """Sentences with another stopping rule each; how many rows were told apart by rounding."""
    ids, near = pair.token_ids(texts, max_input_len=128), 0
    for width in widths:
        stopping = [each for each in STOPPING if width > 1 or each[0] != "never"]
        batches = make_batches(ids, batch_size, bundled.loaded.model)
        for number, batch in enumerate(batches):
            early, penalty = stopping[number % len(stopping)]
            config = BeamConfig(width, "huggingface", length_penalty=penalty, early_stopping=early)
            near += bundled.check(config, batch, 32)
    return near


@pytest.mark.slow
def test_transformers_on_the_bundled_target(bundled, pair):
    texts = ["The house is old, but I like it.", "I would like a cup of tea, please."]
    assert check_sentences(bundled, pair, texts, (4,), 1) == 0


@pytest.mark.slow
def test_transformers_on_300_sentences(bundled, pair, data_dir):
    """At each width, the same lists; the stopping forms are spread over the batches."""
    pairs = read_pairs(data_dir / "ende_tatoeba" / "test.tsv")
    texts = [source for source, _ in pairs[:1800:6]]
    assert len(texts) == 300
    assert check_sentences(bundled, pair, texts, WIDTHS, 5) == 0


@pytest.fixture(scope="module")
def t5x_decoding(request):
    """T5X's decoding.py, of a checkout or installed; it needs nothing else of T5X."""
    path = request.config.getoption("--t5x_path")
    if path is None:
        if importlib.util.find_spec("t5x") is None:
            pytest.skip("T5X is not installed; --t5x_path=DIR names a checkout of it")
        return importlib.import_module("t5x.decoding")
    root = Path(path).absolute() / "t5x"
    spec = importlib.util.spec_from_file_location("t5x_decoding", root / "decoding.py")
    assert spec is not None
    assert spec.loader is not None
    # The package's own __init__ imports much more; an empty one stands in for it meanwhile.
    package = types.ModuleType("t5x")
    package.__path__ = [str(root)]
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "t5x", package)
        spec.loader.exec_module(module)
    return module


def t5x_lists(decoding, config, params, inputs, beams, limit):
    """T5X's beams, best first, of the teacher-forced network: no cache of ours."""
    network, count = Transformer(config), beams.num_beams
    encoded = network.apply({"params": params}, inputs, method=network.encode)
    encoded, wide = (jnp.repeat(array, count, axis=0) for array in (encoded, inputs))

    def tokens_to_logits(state):
        logits = network.apply(
            {"params": params}, encoded, wide, state.sequences, method=network.decode
        )
        return jax.lax.dynamic_index_in_dim(logits, state.cur_index, 1, keepdims=False), {}

    tokens, scores = decoding.beam_search(
        jnp.zeros((len(inputs), limit), jnp.int32), {}, tokens_to_logits, config.eos_id,
        num_decodes=count, alpha=beams.alpha, max_decode_len=limit,
    )  # fmt: skip
    return np.asarray(tokens)[:, ::-1], np.asarray(scores)[:, ::-1]


def check_t5x(decoding, loaded, config, params, batch, beams, limit):
    """Fails unless all that T5X fills its places with is the same."""
    ours = BeamDecoder(loaded, beams, limit).decode(batch)
    tokens, scores = t5x_lists(decoding, config, params, batch.prompt.inputs, beams, limit)
    there = scores > -1e6
    np.testing.assert_array_equal(there, ours.num_tokens > 0)
    np.testing.assert_allclose(ours.scores[there], scores[there], atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(ours.tokens[there][:, :limit], tokens[there])
    return there


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ["v1.1", "v1.0"])
def test_t5x(t5x_decoding, tmp_path, case, width):
    config, seed = CASES[case]
    params = random_params(config, seed)
    save_huggingface(tmp_path, config, jax.device_get(params))
    loaded, filled = load_model(str(tmp_path), "float32"), []
    for number, alpha in enumerate((0.6, 0.0, 1.5)):
        batch = batch_of(loaded.model, 8, number)
        beams = BeamConfig(width, alpha=alpha)
        there = check_t5x(t5x_decoding, loaded, config, params, batch, beams, LIMIT)
        filled.append(there.mean())
    assert max(filled) > 0.5


@pytest.mark.parametrize("width", [4])
def test_t5x_on_the_bundled_target(t5x_decoding, bundled_t5x, width):
    loaded, config, params, batch = bundled_t5x
    there = check_t5x(t5x_decoding, loaded, config, params, batch, BeamConfig(width), 24)
    assert there.all()


@pytest.fixture(scope="module")
def bundled_t5x(pair):
    config, params = load_huggingface(resolve("quickstart", "target"))
    params = jax.tree.map(jnp.asarray, params)
    texts = ["The house is old, but I like it.", "I would like a cup of tea, please.",
             "He is tired.", "She said that she would come tomorrow."]  # fmt: skip
    ids = pair.token_ids(texts, max_input_len=128)
    (batch,) = make_batches(ids, 4, pair.target.model)
    return pair.target, config, params, batch
