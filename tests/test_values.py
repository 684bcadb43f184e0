"""Every public value checks its own fields when it is made."""

import dataclasses
import inspect

import numpy as np
import pytest
from tiny import TINY, TINY_GPT, changed

import specdec
from specdec.core.topology import MOST_NODES
from specdec.drafters.copying import Copying

NUMBERS = ("x", None, [], True, float("nan"), float("inf"), object)
WHOLE = (*NUMBERS, 2.5, 0, -1)
REAL = (*NUMBERS, -0.5)
NAMES = ("", 3, [], None, True, object)
SEQUENCES = ("x", 3, None, [], [[]], [3], [[-1]], [[2.5]], [""])
# Of each public dataclass: what it is made from, and wrong values of every field.
WRONG = {
    specdec.AllowedSequences: ({"sequences": ["a"]}, {"sequences": SEQUENCES}),
    specdec.Automaton: (
        {"edges": {0: {2: 0}}, "accepting": [0]},
        {
            "edges": ("x", 3, None, [], {}, {0: 3}, {-1: {2: 0}}, {0: {2: -1}}, {0: {}}),
            "accepting": ("x", 3, None, [-1], [None]),
        },
    ),
    specdec.Forbidden: ({"sequences": ["a"]}, {"sequences": SEQUENCES}),
    specdec.ForcedFirst: ({"token": 3}, {"token": [each for each in WHOLE if each != 0]}),
    specdec.ForcedLast: ({}, {"token": [each for each in WHOLE if each not in (0, None)]}),
    specdec.FrequencyPenalty: ({"penalty": 1.0}, {"penalty": NUMBERS}),
    specdec.MinLength: ({"length": 3}, {"length": [each for each in WHOLE if each != 0]}),
    specdec.MinNewTokens: ({"count": 3}, {"count": [each for each in WHOLE if each != 0]}),
    specdec.NoRepeatNgram: ({"size": 3}, {"size": WHOLE}),
    specdec.PresencePenalty: ({"penalty": 1.0}, {"penalty": NUMBERS}),
    specdec.Regex: ({"pattern": "a"}, {"pattern": ("", 3, None, [])}),
    specdec.RepetitionPenalty: ({"penalty": 1.2}, {"penalty": (*REAL, 0)}),
    specdec.Suppressed: (
        {"tokens": [3]},
        {
            "tokens": ("x", 3, None, [-1], [None]),
            "at": [each for each in WHOLE if each not in (0, None)],
        },
    ),
    specdec.BeamConfig: (
        {},
        {
            "num_beams": WHOLE, "rule": ("x", 3, [], {}, None),
            "alpha": [each for each in REAL if each is not None],
            "length_penalty": (0.5, "x"), "early_stopping": (True, "never"),
        },
    ),
    specdec.Copying: ({}, {"max_match": (*WHOLE, 65)}),
    specdec.Decoding: (
        {"max_decode_len": 8, "gamma": 2},
        {
            "method": ("x", 3, None, [], "Speculative"),
            "gamma": [*(each for each in WHOLE if each is not None), 8, "Auto"],
            "stop_below": (*REAL, 1.5),
            "tree": ((2,), "x", 3, "auto"),  # Beside gamma.
            "num_samples": (*WHOLE, 2), "beam": (specdec.BeamConfig(), 3), "num_return": (1, "x"),
            "draft_beams": (4, "x"),
            "verifier": ("x", 3, specdec.BlockVerifier, []), "sampling": ("x", None, 0.5),
            "draft_sampling": ("x", 0.5, []), "max_input_len": WHOLE, "max_decode_len": WHOLE,
            "rules": ("x", 3, [3], specdec.NoRepeatNgram, [None]),
            "draft_follows_rules": ("no", None, 1),
            "stop": ("x", None, 3, [-1], [2.5], {"a"}), "log_probs": ("no", None, 1),
            "top_log_probs": [each for each in WHOLE if each != 0], "truncate": ("no", None, 1),
            "time_limit": [each for each in (*REAL, 0) if each is not None],
            "seed": [each for each in WHOLE if each not in (0, -1)], "batch_size": WHOLE,
        },
    ),
    specdec.DeviceMesh: (
        {},
        {
            "data": WHOLE, "model": WHOLE,
            "target_rules": ("x", 3, None, [3], (("mlp",),), (("mlp", "x"),), (([], "model"),)),
            "draft_rules": ("x", 3, None, [3], (("x", "model"),), (("mlp", []),)),
        },
    ),
    specdec.Heads: ({"path": "p"}, {"path": NAMES}),
    specdec.Hierarchical: (
        {"draft": "d", "inner": Copying()},
        {
            "draft": ("", 3, None, Copying(), specdec.Heads("h"), specdec.Quantized),
            "inner": ("checkpoint", 3, None, Copying, specdec.Heads("h"), specdec.Quantized()),
            "gamma": (*WHOLE, MOST_NODES + 1),
        },
    ),
    specdec.JsonSchema: ({"schema": {}}, {"schema": ("x", 3, None, [], "[]", {"a": {1}})}),
    specdec.LenientVerifier: ({"lenience": 0.5}, {"lenience": (*REAL, 0, 1.5)}),
    specdec.Merged: (
        {"drafts": ("a", "b")},
        {"drafts": ((1, 2), None, "ab", ("a",), 3, ("a", Copying), ("a", ""), {"a", "b"})},
    ),
    specdec.Ngram: (
        {"path": "p"},
        {"path": NAMES, "order": [each for each in WHOLE if each is not None]},
    ),
    specdec.Quantized: (
        {"bits": 4},
        {
            "bits": (*WHOLE, 5), "group": [3, *(each for each in WHOLE if each is not None)],
            "of": [each for each in NAMES if each is not None],
        },
    ),
    specdec.SamplingConfig: (
        {},
        {"temperature": REAL, "top_k": [each for each in WHOLE if each != 0],
         "top_p": (*REAL, 0, 1.5), "min_p": [each for each in (*REAL, 1.5) if each != 0],
         "typical_p": (*REAL, 0, 1.5)},
    ),
    specdec.Tree: (
        {"branching": (2, 1)},
        {
            "branching": ("x", None, [], True, 2.5, (0,), ("a",), ([],), (2000,)),
            "parents": (None, "x", 3), "nodes": (3,), "depth": (2,), "siblings": (2,),
            "independent": ("no", None, 1, [], 0.0),
        },
    ),
    specdec.TypicalVerifier: ({}, {"epsilon": (*REAL, 0, 2), "delta": (*REAL, 0, 2)}),
}  # fmt: skip
# Results, which the library itself makes.
MADE_HERE = {"GenerateOutput"}


def test_every_field_of_every_public_dataclass_is_in_the_table():
    """A new option must come with its own wrong values."""
    public = [getattr(specdec, name) for name in specdec.__all__ if name not in MADE_HERE]
    with_fields = {
        each: {field.name for field in dataclasses.fields(each) if field.init}
        for each in public
        if inspect.isclass(each) and dataclasses.is_dataclass(each)
    }
    listed = {each: set(wrong) for each, (_, wrong) in WRONG.items()}
    assert listed == {each: fields for each, fields in with_fields.items() if fields}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        pytest.param(kind, field, value, id=f"{kind.__name__}.{field}-{number}")
        for kind, (_, wrong) in WRONG.items()
        for field, values in wrong.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wrong_value_is_refused_in_one_line(kind, field, value):
    good = WRONG[kind][0]
    if field == "parents" and value is None:
        good = {"branching": None}
    with pytest.raises(ValueError, match=r"\S") as error:
        kind(**{**good, field: value})
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers():
    assert specdec.DeviceMesh(np.int64(1), np.int32(1)) == specdec.DeviceMesh()
    assert specdec.Tree((np.int64(2),), independent=np.True_).independent is True
    assert specdec.Quantized(np.int64(4), np.int64(16)).bits == 4


@pytest.mark.parametrize("gamma", [MOST_NODES + 1, 30_000, 10**12])
def test_a_chain_is_bounded_as_a_tree_is(gamma):
    """Each would be compiled; the longest one never ends."""
    from specdec.drafters.base import chain

    assert chain(MOST_NODES).size == MOST_NODES
    with pytest.raises(ValueError, match=r"gamma must be in 1\.\.1024"):
        chain(gamma)


@pytest.mark.parametrize(
    ("config", "field"),
    [(TINY["v1.1"], "num_encoder_layers"), (TINY_GPT["gpt"], "num_layers"),
     (TINY["v1.1"], "d_ff"), (TINY_GPT["gpt"], "vocab_size")],
)  # fmt: skip
def test_sizes_of_networks_are_bounded(config, field):
    """Names of so many layers are never made."""
    with pytest.raises(ValueError, match=rf"({field}|num_layers) must be in 1\.\."):
        changed(config, **{field: 10**19})
