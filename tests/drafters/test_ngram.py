"""N-gram tables: counted, kept, looked up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from specdec.checkpoints import CheckpointError
from specdec.checkpoints.ngrams import load_ngrams, save_ngrams
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.ngram import Ngram, NgramDrafter
from specdec.drafters.ngram_tables import distribution, likeliest, of_order
from specdec.drafters.shape import Chain
from specdec.training.ngrams import DISCOUNT, MAX_SUCCESSORS, count_ngrams
from specdec.types import Prompt, SamplingConfig, Verdict

V, START = 30, 0


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    common = [[*rng.integers(2, V - 2, rng.integers(1, 12)).tolist(), 1] for _ in range(400)]
    return [[V - 1, V - 2, 1], *common]  # Two tokens that occur once.


def count(sequences, order, **options):
    return count_ngrams(sequences, V, order=order, start_id=START, **options)


def by_hand(sequences, context):
    """q(. | context) by definition."""
    if not context:
        return np.bincount(np.concatenate(sequences), minlength=V) / sum(map(len, sequences))
    shorter = by_hand(sequences, context[1:])
    seen = np.zeros(V)
    for sequence in sequences:
        padded = [START] * len(context) + sequence
        for i, token in enumerate(sequence):
            if padded[i : i + len(context)] == context:
                seen[token] += 1
    if seen.sum() < (2 if len(context) > 1 else 1):
        return shorter
    weights = np.zeros(V)
    for token in np.argsort(-seen, kind="stable")[:MAX_SUCCESSORS]:
        weights[token] = max(0, seen[token] - DISCOUNT) / seen.sum()
    return weights + (1 - weights.sum()) * shorter


@pytest.mark.parametrize("order", [1, 2, 4])
def test_distributions_are_the_definition(sequences, order):
    tables = count(sequences, order)
    contexts = [[START, START, START], [START, START, sequences[0][0]], [9, 9, 9]]
    contexts += [([START] * 3 + s)[i : i + 3] for s in sequences[:8] for i in range(len(s))]
    found = np.asarray(distribution(tables, jnp.asarray(contexts)))
    for context, q in zip(contexts, found, strict=True):
        np.testing.assert_allclose(q, by_hand(sequences, context[4 - order :]), atol=1e-6)
    best = np.asarray(likeliest(tables, jnp.asarray(contexts)))
    largest = found[np.arange(len(best)), best]
    np.testing.assert_allclose(largest, found.max(axis=1), atol=1e-6)


def drafting(tables, prefixes, gamma=1):
    """A greedy drafter, its parameters, and its state after prefixes of the decoder."""
    drafter = NgramDrafter(Topology.chain(gamma), tables.order)
    params = DraftParams(tables, SamplingConfig(0.0).traced())
    lengths = np.array([len(prefix) for prefix in prefixes])
    filled = np.array([prefix + [9] * (max(lengths) - len(prefix)) for prefix in prefixes])
    nothing = np.zeros((len(prefixes), 0), np.int32)
    prompt = Prompt(nothing, np.zeros(len(prefixes), np.int32), filled, lengths)
    return drafter, params, drafter.init(params, prompt, 8, None)


def test_a_start_is_part_of_the_context(sequences):
    always = [[7, *s] for s in sequences]
    drafter, params, state = drafting(count(always, 2), [[START]])
    assert drafter.propose(params, state, None, ())[0].tokens.tolist() == [[7]]


@pytest.mark.parametrize("order", [1, 3])
def test_a_prompt_of_the_decoder_is_the_context(sequences, order):
    """Its last tokens; before a shorter one stands its first. Then what is emitted."""
    tables = count(sequences, order)
    prefixes = [sequences[0][:1], [5, *sequences[1][:2]], [3, 4, 5, *sequences[2][:3]]]
    drafter, params, state = drafting(tables, prefixes)
    for emitted in ([], [6], [7, 2]):
        tokens = np.array([emitted + [9] * (2 - len(emitted))] * 3)
        none = np.zeros(3, np.int32)
        verdict = Verdict(
            jnp.asarray(tokens), jnp.full(3, len(emitted)), none, np.zeros_like(tokens),
            np.zeros((3, 1), np.float32), none,
        )  # fmt: skip
        state = drafter.observe(state, verdict, jnp.zeros((*verdict.tokens.shape, 1)))
        prefixes = [prefix + emitted for prefix in prefixes]
        contexts = jnp.asarray([([p[0]] * 3 + p)[-3:] for p in prefixes])
        guesses = drafter.propose(params, state, None, ())[0].tokens[:, 0]
        np.testing.assert_array_equal(guesses, likeliest(tables, contexts))
        np.testing.assert_array_equal(state, contexts[:, 4 - order :])


def test_tables_come_back_as_they_were_written(tmp_path, sequences):
    (tmp_path / "spiece.model").write_bytes(b"some vocabulary")
    tables = count(sequences, 3)
    save_ngrams(tmp_path / "n.safetensors", tables, tmp_path / "spiece.model")
    again, vocabulary = load_ngrams(tmp_path / "n.safetensors")
    assert len(vocabulary) == 16
    contexts = jnp.asarray([([START] * 2 + s)[i : i + 2] for s in sequences[:50] for i in (0, 1)])
    np.testing.assert_array_equal(distribution(again, contexts), distribution(tables, contexts))
    np.testing.assert_array_equal(likeliest(again, contexts), likeliest(tables, contexts))
    shorter = of_order(again, 2)
    np.testing.assert_array_equal(
        distribution(shorter, contexts), distribution(count(sequences, 2), contexts)
    )


def test_a_large_vocabulary_is_sparse():
    """32,128 tokens, as T5's: the arrays hold what was seen, not V x V."""
    rng = np.random.default_rng(0)
    sequences = 2 * [rng.integers(0, 32_128, 20).tolist() for _ in range(200)]
    tables = count_ngrams(sequences, 32_128, order=3, start_id=0)
    level = tables.levels[1]
    assert level.contexts.size + level.successors.size < 30 * 200 * 20
    q = distribution(tables, jnp.asarray([sequences[0][:2]]))
    assert int(jnp.argmax(q)) == sequences[0][2]
    assert float(q.sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("sequences", "options", "message"),
    [
        ([[]], {}, "not a single token"),
        ([[2, V]], {}, rf"Token {V} is outside the vocabulary \[0, {V}\)"),
        ([[2]], {"order": 0}, "order must be at least 1, got 0"),
    ],
)
def test_bad_streams_and_settings(sequences, options, message):
    options = {"order": 2} | options
    with pytest.raises(ValueError, match=message):
        count(sequences, **options)


def test_bad_files(tmp_path, sequences):
    with pytest.raises(CheckpointError, match="No n-gram tables at"):
        load_ngrams(tmp_path)
    (tmp_path / "ngrams.safetensors").write_bytes(b"rubbish" * 20)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_ngrams(tmp_path)
    save_file({"x": np.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="holds no n-gram tables"):
        load_ngrams(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="of order 2; they have no order 3"):
        of_order(count(sequences, 2), 3)


def halved(name):
    return lambda arrays, metadata: arrays.update({name: arrays[name] // 2})


@pytest.mark.parametrize(
    "change",
    [
        halved("2.weights"),
        halved("1.counts"),
        lambda arrays, metadata: arrays.pop("2.best"),
        lambda arrays, metadata: arrays.update({"3.weights": arrays["2.weights"]}),
        lambda arrays, metadata: metadata.update(order="2"),
        lambda arrays, metadata: metadata.pop("vocabulary"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, sequences, change):
    path = tmp_path / "ngrams.safetensors"
    save_ngrams(path, count(sequences, 3), None)
    with safe_open(path, "numpy") as file:
        arrays, metadata = load_file(path), file.metadata()
    change(arrays, metadata)
    save_file(arrays, path, metadata)
    with pytest.raises(CheckpointError, match=r"ngrams.safetensors is damaged: its checksum"):
        load_ngrams(path)


def test_a_file_without_a_checksum_is_an_older_one(tmp_path, sequences):
    path, tables = tmp_path / "ngrams.safetensors", count(sequences, 3)
    save_ngrams(path, tables, None)
    with safe_open(path, "numpy") as file:
        arrays, metadata = load_file(path), file.metadata()
    del metadata["checksum"]
    save_file(arrays, path, metadata)
    jax.tree.map(np.testing.assert_array_equal, load_ngrams(path)[0], tables)
    save_file(arrays | {"2.weights": arrays["2.weights"] * np.nan}, path, metadata)
    with pytest.raises(CheckpointError, match=r"is damaged: 2.weights must be at least 0"):
        load_ngrams(path)
    save_file({name: arrays[name] for name in arrays if name != "2.best"}, path, metadata)
    with pytest.raises(CheckpointError, match=r"is damaged: it lacks '2.best'"):
        load_ngrams(path)


class TheseTables:
    """Opens a spec on tables that are here already."""

    def __init__(self, tables):
        self.ngrams = lambda path: tables


def test_other_temperatures_are_refused(sequences):
    opened = Ngram("here").open(TheseTables(count(sequences, 2)))
    for config in (SamplingConfig(0.5), SamplingConfig(1.0, 3), SamplingConfig(1.0, 0, 0.9)):
        with pytest.raises(ValueError, match="temperature 0 or 1 without top-k"):
            opened.params(config)
    for config in (SamplingConfig(0.0), SamplingConfig(1.0)):
        assert opened.params(config).sampling.greedy == config.greedy
    assert opened.make(Chain(3), 2) == NgramDrafter(Topology.chain(3), 2)
    with pytest.raises(ValueError, match="stop_below must be 0"):
        opened.make(Chain(3, 0.5), 2)


def test_shorter_contexts_if_asked(sequences):
    opened = Ngram("here", 1).open(TheseTables(count(sequences, 3)))
    assert opened.make(Chain(1), 2).order == opened.weights.order == 1


def test_weights_leave_something_for_back_off(sequences):
    for level in count(sequences, 3).levels:
        begin, number = np.asarray(level.begin), np.asarray(level.count)
        weights = np.asarray(level.weights)
        sums = [weights[b : b + n].sum() for b, n in zip(begin, number, strict=True)]
        assert 0 < max(sums) < 1
        assert level.width <= MAX_SUCCESSORS
