"""Every public value checks its own fields when it is made."""

import dataclasses
import inspect

import numpy as np
import pytest
from tiny import TINY, TINY_GPT, changed

import specdec
from specdec.core.topology import MOST_NODES
from specdec.drafters.copying import Copying
from specdec.drafters.shape import Chain

# What each public dataclass is made from.
GOOD = {
    specdec.AllowedSequences: {"sequences": ["a"]},
    specdec.Automaton: {"edges": {0: {2: 0}}, "accepting": [0]},
    specdec.BeamConfig: {},
    specdec.Copying: {},
    specdec.Decoding: {"max_decode_len": 8, "gamma": 2},
    specdec.DeviceMesh: {},
    specdec.Forbidden: {"sequences": ["a"]},
    specdec.ForcedFirst: {"token": 3},
    specdec.ForcedLast: {},
    specdec.FrequencyPenalty: {"penalty": 1.0},
    specdec.Given: {},
    specdec.Heads: {"path": "p"},
    specdec.Hierarchical: {"draft": "d", "inner": Copying()},
    specdec.JsonSchema: {"schema": {}},
    specdec.LenientVerifier: {"lenience": 0.5},
    specdec.Merged: {"drafts": ("a", "b")},
    specdec.MinLength: {"length": 3},
    specdec.MinNewTokens: {"count": 3},
    specdec.Ngram: {"path": "p"},
    specdec.NoRepeatNgram: {"size": 3},
    specdec.PresencePenalty: {"penalty": 1.0},
    specdec.Quantized: {"bits": 4},
    specdec.Regex: {"pattern": "a"},
    specdec.RepetitionPenalty: {"penalty": 1.2},
    specdec.SamplingConfig: {},
    specdec.Suppressed: {"tokens": [3]},
    specdec.Timestamps: {"first": 5, "none": 4},
    specdec.Transcription: {},
    specdec.Tree: {"branching": (2, 1)},
    specdec.TypicalVerifier: {},
}
MADE_HERE = {"Audit", "GenerateOutput", "Transcript"}  # Results.
# Wrong in a way of their own; ranges of numbers are those of tests/core/test_fields.py.
ODD = [
    *((specdec.Forbidden, {"sequences": x}) for x in (None, [], [[]], [3], [[-1]], [[2.5]], [""])),
    *((specdec.Automaton, {"edges": x}) for x in ([], {}, {0: 3}, {-1: {2: 0}}, {0: {2: -1}})),
    (specdec.Automaton, {"accepting": [None]}),
    (specdec.BeamConfig, {"early_stopping": "never"}),
    *((specdec.Decoding, {"stop": x}) for x in ("x", None, [-1], [2.5], {"a"})),
    *((specdec.Decoding, {"rules": x}) for x in ([3], specdec.NoRepeatNgram, [None])),
    *((specdec.Decoding, {"gamma": x}) for x in (8, "Auto", True)),
    *((specdec.Decoding, x) for x in ({"tree": "auto"}, {"num_samples": 2}, {"beam": 3})),
    (specdec.Decoding, {"verifier": specdec.BlockVerifier}),
    *((specdec.DeviceMesh, {"target_rules": x}) for x in ([3], (("mlp",),), (([], "model"),))),
    (specdec.DeviceMesh, {"draft_rules": (("mlp", []),)}),
    *((specdec.Hierarchical, {"inner": x}) for x in ("checkpoint", specdec.Heads("h"), Copying)),
    *((specdec.JsonSchema, {"schema": x}) for x in ("x", "[]", {"a": {1}})),
    *((specdec.Merged, {"drafts": x}) for x in ((1, 2), "ab", ("a",), ("a", Copying), {"a", "b"})),
    (specdec.Quantized, {"group": 3}),
    (specdec.Timestamps, {"none": 5}),
    *((specdec.Transcription, {"temperatures": x}) for x in ((), 0.5, "0", (0.5, 0.0), (-1,))),
    *((specdec.Transcription, {"prompt": x}) for x in (3, ["a"])),
    (specdec.Transcription, {"previous_text": True, "windows": "overlapping"}),
    *((specdec.Tree, {"branching": x}) for x in (None, True, (0,), ("a",), ([],), (2000,))),
]


def test_every_public_dataclass_is_in_the_table():
    public = [getattr(specdec, name) for name in specdec.__all__ if name not in MADE_HERE]
    classes = [c for c in public if inspect.isclass(c) and dataclasses.is_dataclass(c)]
    made_of = {each: [f for f in dataclasses.fields(each) if f.init] for each in classes}
    assert GOOD.keys() == {each for each, fields in made_of.items() if fields}


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_a_wrong_value_of_each_field_is_refused_in_one_line(kind):
    kind(**GOOD[kind])
    wrong = [{f.name: object} for f in dataclasses.fields(kind) if f.init]
    for given in wrong + [given for each, given in ODD if each is kind]:
        with pytest.raises(ValueError, match=r"\S") as error:
            kind(**{**GOOD[kind], **given})
        assert "\n" not in str(error.value), given


def test_numbers_of_numpy_are_numbers():
    assert specdec.DeviceMesh(np.int64(1), np.int32(1)) == specdec.DeviceMesh()
    assert specdec.Tree((np.int64(2),), independent=np.True_).independent is True
    assert specdec.Quantized(np.int64(4), np.int64(16)).bits == 4


def test_a_chain_is_bounded_as_a_tree_is():
    """Each would be compiled; the longest one never ends."""
    assert Chain(MOST_NODES).topology.size == MOST_NODES
    with pytest.raises(ValueError, match=r"gamma must be in 1\.\.1024"):
        Chain(MOST_NODES + 1)


@pytest.mark.parametrize(
    ("config", "field"),
    [(TINY["v1.1"], "num_encoder_layers"), (TINY_GPT["gpt"], "num_layers"),
     (TINY["v1.1"], "d_ff"), (TINY_GPT["gpt"], "vocab_size")],
)  # fmt: skip
def test_sizes_of_networks_are_bounded(config, field):
    """Names of so many layers are never made."""
    with pytest.raises(ValueError, match=rf"({field}|num_layers) must be in 1\.\."):
        changed(config, **{field: 10**19})
