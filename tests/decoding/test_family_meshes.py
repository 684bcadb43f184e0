"""Families on meshes of 8 simulated devices: the same tokens and logits, and what they exchange."""

import collections
import json

import numpy as np
import pytest
from compiled_text import collectives as exchanged
from compiled_text import read_program
from run_families_on_meshes import (
    ALONE,
    CALL_ROWS,
    CALL_TOKENS,
    CAPACITY,
    DRAFTS,
    INPUTS,
    LIMIT,
    MESHES,
    PROMPTS,
    TARGETS,
    WAYS,
)
from simulated import on_eight_devices

from specdec.measure.device_share import DeviceShare

# Minutes; test_meshes.py has the same of T5s.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(once):
    """family -> the directory that run_families_on_meshes.py wrote."""
    script = "run_families_on_meshes.py"
    return lambda family: once(f"meshes-{family}", on_eight_devices(script, family))


@pytest.fixture(scope="module")
def report(written):
    """family -> its report."""
    return lambda family: json.loads((written(family) / "report.json").read_text())


CUT = [(family, mesh) for family in TARGETS for mesh in MESHES[family] if MESHES[family][mesh]]


@pytest.mark.parametrize(
    ("family", "mesh", "way"),
    [*((*each, way) for each in CUT for way in WAYS), ("gpt", "2x4", "prime")],
)
def test_tokens_do_not_depend_on_the_mesh(report, family, mesh, way):
    found = report(family)
    assert found["devices"] == 8
    assert sorted(map(len, PROMPTS))[0] == 0
    expected = found["decodes"][f"{ALONE}, {way}"]
    lengths = list(map(len, expected["tokens"]))
    assert sum(lengths) >= 1000
    assert len(set(lengths)) > 3, "rows should end at different places"
    assert LIMIT in lengths
    if way != "plain":
        assert expected["accepted"] > 0, "some guesses should be right for this to mean anything"
    assert found["decodes"][f"{mesh}, {way}"] == expected


@pytest.mark.parametrize(("family", "mesh"), [*((family, ALONE) for family in TARGETS), *CUT])
def test_speculation_changes_no_greedy_token(report, family, mesh):
    decodes = report(family)["decodes"]
    plain, fast = (decodes[f"{mesh}, {way}"] for way in ("plain", "greedy"))
    assert fast["tokens"] == plain["tokens"]
    assert fast["target_calls"] < plain["target_calls"]


@pytest.mark.parametrize(("family", "mesh"), CUT)
def test_logits_do_not_depend_on_the_mesh(written, family, mesh):
    with np.load(written(family) / "logits.npz") as logits:
        assert np.std(logits[ALONE]) > 0.5
        np.testing.assert_allclose(logits[mesh], logits[ALONE], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("family", "mesh"), CUT)
def test_each_device_holds_its_part_of_the_target(report, family, mesh):
    """Kernels with what is added to cut axes are cut; positions, norms and sums' biases are not."""
    shards, parts = report(family)["shards"][mesh], MESHES[family][mesh].model
    whole = ("norm", "out_bias", "wo_bias", "cross_bias", "positions")
    for name, (size, *held) in shards["target"].items():
        kept = any(word in name for word in whole)
        assert held == [size if kept else size // parts], name
    assert all(held == [size] for size, *held in shards["draft"].values())
    for role, config in (("target", TARGETS[family]), ("draft", DRAFTS[family])):
        planned = DeviceShare(config, getattr(MESHES[family][mesh], f"planned_{role}"), 8)
        assert planned.weights == sum(4 * held for _, held in shards[role].values())


@pytest.mark.parametrize(("family", "mesh"), CUT)
def test_the_plan_counts_what_a_call_exchanges(written, family, mesh):
    """Kind, bytes, devices and number, as compiled."""
    share = DeviceShare(TARGETS[family], MESHES[family][mesh].planned_target, CALL_ROWS)
    planned = {
        (each.kind, each.size, each.devices): each.count
        for each in share.call(CALL_TOKENS, CAPACITY, INPUTS).collectives
    }
    program = read_program((written(family) / f"{mesh}.hlo").read_text())
    compiled = exchanged(each for instructions in program.values() for each in instructions)
    assert collections.Counter((i.opcode, i.size, i.devices) for i in compiled) == planned


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("prime", ["of 8 devices", "vocab_size = 61", "keep", "vocab whole"]),
        ("six_heads", ["of 8 devices", "num_heads = 6", "keep heads", "('heads', None)"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_to_do(report, target, words):
    for word in words:
        assert word in report("gpt")["errors"][target]
