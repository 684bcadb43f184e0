"""Families on meshes of 8 simulated devices: the same tokens, log-probabilities and shares."""

import json

import numpy as np
import pytest
from run_families_on_meshes import ALONE, DRAFTS, LIMIT, MESHES, PROMPTS, TARGETS, WAYS
from simulated import on_eight_devices

from specdec.measure.memory import DeviceShare

# Minutes; test_meshes.py has the same of T5s.
pytestmark = pytest.mark.slow
CUT = [(family, mesh) for family in TARGETS for mesh in MESHES[family] if MESHES[family][mesh]]


@pytest.fixture(scope="module")
def report(once):
    """family -> the report of run_families_on_meshes.py."""

    def read(family):
        fill = on_eight_devices("run_families_on_meshes.py", family)
        return json.loads((once(f"meshes-{family}", fill) / "report.json").read_text())

    return read


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
    decoded = found["decodes"][f"{mesh}, {way}"]
    for name in ("tokens", "accepted", "target_calls"):
        assert decoded[name] == expected[name]
    for row, other in zip(decoded["log_probs"], expected["log_probs"], strict=True):
        np.testing.assert_allclose(row, other, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("family", "mesh"), [*((family, ALONE) for family in TARGETS), *CUT])
def test_speculation_changes_no_greedy_token(report, family, mesh):
    decodes = report(family)["decodes"]
    plain, fast = (decodes[f"{mesh}, {way}"] for way in ("plain", "greedy"))
    assert fast["tokens"] == plain["tokens"]
    assert fast["target_calls"] < plain["target_calls"]


@pytest.mark.parametrize(("family", "mesh"), CUT)
def test_each_device_holds_its_part_of_the_target(report, family, mesh):
    """Kernels with what is added to cut axes are cut; what is as wide as states is not."""
    shards, parts = report(family)["shards"][mesh], MESHES[family][mesh].model
    whole = ("norm", "out_bias", "wo_bias", "cross_bias", "positions", "conv")
    for name, (size, *held) in shards["target"].items():
        kept = any(word in name for word in whole)
        assert held == [size if kept else size // parts], name
    assert all(held == [size] for size, *held in shards["draft"].values())
    for role, config in (("target", TARGETS[family]), ("draft", DRAFTS[family])):
        planned = DeviceShare(config, getattr(MESHES[family][mesh], f"planned_{role}"), 8)
        assert planned.weights == sum(4 * held for _, held in shards[role].values())


def test_a_mesh_that_does_not_fit_says_what_to_do(report):
    for word in ("of 8 devices", "vocab_size = 61", "keep", "vocab whole"):
        assert word in report("gpt")["error"]
