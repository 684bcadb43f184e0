"""What generate and load_pair make of arguments of every kind."""

import dataclasses
import inspect

import jax
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core.randomness import row_keys, seed_words
from specdec.decoding.options import Decoding
from specdec.drafters.random import Random
from specdec.load import load_pair
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier

TEXTS = [[5, 6, 7, 1], [8, 9, 1]]


@pytest.fixture(scope="module")
def pair():
    target = load_packed(TINY["v1.1"], random_params(TINY["v1.1"], 0), "random")
    return Pair(target, Random().open(type("Opening", (), {"target": target})()), None)


def generate(pair, texts=TEXTS, **options):
    if "tree" in options:
        options = {"gamma": None} | options
    return pair.generate(texts, **{"gamma": 2, "max_decode_len": 4, "batch_size": 2} | options)


def tokens(output):
    return [row.tolist() for row in output.tokens]


def test_numbers_of_numpy_and_any_iterable(pair):
    expected = tokens(generate(pair, sampling=SamplingConfig(0.5, 3, 0.75), seed=7))
    given = {
        "gamma": np.int64(2), "max_decode_len": np.int32(4), "batch_size": np.uint8(2),
        "max_input_len": np.int16(512), "seed": np.int64(7), "stop_below": np.float32(0),
        "sampling": SamplingConfig(np.float32(0.5), np.int64(3), np.float64(0.75)),
    }  # fmt: skip
    assert tokens(generate(pair, iter(TEXTS), **given)) == expected
    assert tokens(generate(pair, (np.array(t, np.int64) for t in TEXTS), **given)) == expected
    assert tokens(generate(pair, tuple(map(tuple, TEXTS)), **given)) == expected


def test_seeds_of_64_bits(pair):
    seeds = (0, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(2**63) + 5, np.uint64(2**64 - 2))
    outputs = [
        tokens(generate(pair, sampling=SamplingConfig(5.0), max_decode_len=16, seed=seed))
        for seed in seeds
    ]
    assert all(a != b for i, a in enumerate(outputs) for b in outputs[:i])


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_a_small_seed_gives_the_keys_that_it_always_gave(seed):
    rows = np.arange(3)
    found = [jax.random.key_data(row_keys(given, rows)) for given in (seed, seed_words(seed))]
    key = jax.random.key(seed)
    expected = [jax.random.key_data(jax.random.fold_in(key, row)) for row in rows]
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"gamma": "2"}, 'gamma must be a whole number or "auto", got \'2\''),
        ({"max_decode_len": 2**31}, "max_decode_len must be at most 2147483647"),
        ({"gamma": 0}, r"gamma must be in \[1, max_decode_len - 1\] = \[1, 3\], got 0"),
        ({"max_input_len": None}, "max_input_len must be a whole number"),
        ({"seed": 2**64}, "seed must be in"),
        ({"stop_below": float("nan")}, r"stop_below must be in \[0, 1\]"),
        ({"sampling": 0.5}, r"sampling must be a SamplingConfig, such as .*, got 0.5"),
        ({"verifier": BlockVerifier}, "verifier must be an object such as"),
        ({"verifier": "block"}, "verifier must be an object such as"),
        ({"method": "greedy"}, "method must be"),
    ],
)  # fmt: skip
def test_one_clear_error(pair, option, message):
    with pytest.raises(ValueError, match=message):
        generate(pair, **option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_new_tokens": 20}, r"no keyword max_new_tokens \(got 20\): pass max_decode_len=20"),
        ({"num_beams": 4}, r'no keyword num_beams .*: pass method="beam", beam=specdec.BeamConfig'),
        ({"num_return_sequences": 2}, "pass num_samples=2 and sampling=specdec.SamplingConfig"),
        ({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
         r"pass rules=\(specdec.RepetitionPenalty\(penalty=1.2\), specdec.NoRepeatNgram\("),
        ({"guidance_scale": 2.0}, "not supported: outputs differ from those of transformers'"),
        ({"gama": 3}, "no keyword gama .*: did you mean gamma?"),
        ({"xyzzy": 3}, r"no keyword xyzzy .*: help\(specdec.Decoding\) lists"),
    ],
)  # fmt: skip
def test_a_keyword_of_transformers_names_what_we_have(pair, option, message):
    with pytest.raises(TypeError, match=message):
        generate(pair, **option)


def test_help_lists_every_option_of_decoding():
    listed = inspect.getdoc(Pair.generate).partition("``decoding``: ")[2].partition(".")[0]
    assert listed.replace(",", "").split() == [field.name for field in dataclasses.fields(Decoding)]


@pytest.mark.parametrize(("length", "most", "expected"), [(3, 1024, 2), (64, 2, 2)])
def test_a_gamma_that_is_not_given_fits_output_and_draft(pair, length, most, expected):
    short = Pair(pair.target, dataclasses.replace(pair.draft, most_guesses=most), None)
    found = short.generate(TEXTS, max_decode_len=length, trace=True)
    blocks = [block for row in found.traces for block in row]
    assert max(len(block.accepted) + len(block.rejected) for block in blocks) == expected


@pytest.mark.parametrize("option", [{}, {"gamma": "auto"}, {"tree": "auto"}])
def test_one_token_leaves_nothing_to_guess(pair, option):
    """Then what is not asked for in numbers is plain decoding."""
    plain = tokens(pair.generate(TEXTS, method="autoregressive", max_decode_len=1))
    found = pair.generate(TEXTS, max_decode_len=1, **option)
    assert tokens(found) == plain
    assert found.stats.proposed == 0
    beams = {key: value for key, value in option.items() if key != "tree"}
    pair.generate(TEXTS, method="speculative_beam", max_decode_len=1, **beams)
    with pytest.raises(ValueError, match=r"gamma must be in \[1, max_decode_len - 1\] = \[1, 0\]"):
        pair.generate(TEXTS, gamma=1, max_decode_len=1)


def test_chains_are_bounded_as_trees_are(pair):
    with pytest.raises(ValueError, match="gamma must be at most 1024, got 3000: the target scores"):
        generate(pair, gamma=3000, max_decode_len=4000)


def test_width_is_of_plain_decoding(pair):
    engine = pair.decoder(
        method="speculative", gamma=2, sampling=SamplingConfig(), max_decode_len=8, seed=0
    ).engine
    with pytest.raises(ValueError, match="width is of plain decoding: leave it out, got 9"):
        dataclasses.replace(engine, width=9)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"tree": (2, 1), "gamma": 2}, r"Give gamma, .*, or tree .*, not both; got gamma = 2"),
        ({"tree": (2, 1), "method": "autoregressive"}, "Plain decoding has no guesses: tree must"),
        ({"tree": (2, 1), "stop_below": 0.5}, "A tree cannot stop early: stop_below must be 0"),
        ({"tree": ()}, r"branching must be a few whole numbers, such as \(3, 2, 1\), got \(\)"),
        ({"tree": (2.0, 1)}, "each of branching must be a whole number, got 2.0"),
        ({"tree": (20,)}, "has 20 guesses for one position; the vocabulary has 19 tokens"),
        ({"tree": (2, 1, 1, 1)}, "has 4 guesses in a row; .* max_decode_len = 4 .* room for 3"),
        ({"tree": (2, 1), "verifier": BlockVerifier()}, "BlockVerifier verifies chains only: give"),
    ],
)  # fmt: skip
def test_one_clear_error_for_a_tree(pair, option, message):
    with pytest.raises(ValueError, match=message):
        generate(pair, **option)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"A tree has one of branching, parents and nodes, such as .*; got none"),
        ({"branching": (2,), "nodes": 4}, "got branching and nodes"),
        ({"branching": (2,), "depth": 3}, "depth is of a tree with nodes; this one has branching"),
        ({"branching": (32, 32)}, "A tree has at most 1024 nodes, this one has 1056: tree 32-32"),
        ({"nodes": 1025, "depth": 300, "siblings": 4}, "at most 1024 nodes, this one has 1025"),
        ({"parents": (-1, 1)}, r"parents\[1\] is 1; a parent must be in \[-1, 1\)"),
        ({"parents": (-1, 0, -1)}, r"parents must be in the order of levels, got \(-1, 0, -1\)"),
        ({"nodes": 4}, "A tree with nodes needs its depth too"),
        ({"nodes": 9, "depth": 2, "siblings": 2}, "has 2 to 6 nodes to choose from, got nodes = 9"),
        ({"nodes": 4, "depth": 2, "independent": True}, "independent must be False"),
    ],
)  # fmt: skip
def test_shapes_that_are_none(fields, message):
    with pytest.raises(ValueError, match=message):
        specdec.Tree(**fields)


def test_a_tree_is_given_in_several_ways(pair):
    """NumPy's numbers and lists too; a tree of one branch is a chain."""
    sampling = SamplingConfig(0.5)
    expected = tokens(generate(pair, tree=specdec.Tree((2, 1)), sampling=sampling))
    for same in ((2, 1), [2, 1], np.array([2, 1]), specdec.Tree(np.array([2, 1], np.int16))):
        assert tokens(generate(pair, tree=same, sampling=sampling)) == expected
    one = generate(pair, tree=(1, 1), sampling=sampling, verifier=specdec.TokenVerifier())
    assert tokens(one) == tokens(generate(pair, gamma=2, sampling=sampling))


@pytest.mark.parametrize(
    ("draft", "tree", "message"),
    [
        (specdec.Copying(), specdec.Tree(nodes=4, depth=2), "A best-first tree needs a draft mode"),
        (specdec.Hierarchical("quickstart", specdec.Copying(), 2), (2, 1), "chains only: give gam"),
    ],
    ids=["copying", "hierarchical"],
)  # fmt: skip
def test_trees_that_a_draft_cannot_grow(draft, tree, message):
    with pytest.raises(ValueError, match=message):
        load_pair(target="quickstart", draft=draft).generate(["a"], tree=tree)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one", "wrap it in a list"),
        (None, "texts must be a list of texts, got NoneType"),
        ([[5.0, 1.0]], "text 0 must be a string or a non-empty list of token ids"),
        ([[5, 1], [19, 1]], r"text 1 has a token outside the vocabulary \[0, 19\)"),
        (["a"], "text 0 is a string, but this pair has no vocabulary"),
    ],
)
def test_texts_of_another_kind(pair, texts, message):
    with pytest.raises(ValueError, match=message):
        generate(pair, texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "quickstart", "draft": specdec.Copying}, "draft must be a checkpoint's path"),
        ({"target": 3, "draft": "quickstart"}, "target must be a checkpoint's path"),
    ],
)
def test_what_cannot_be_loaded(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_pair(**arguments)


def test_half_of_a_surrogate_pair():
    with pytest.raises(ValueError, match="text 1 is not valid Unicode: character 2"):
        load_pair("quickstart").generate(["a", "b \ud800"])
