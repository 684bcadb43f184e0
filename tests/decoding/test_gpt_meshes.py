"""GPTs on meshes of 8 simulated devices: the same tokens from ragged prompts, an empty one too."""

import json

import pytest
from run_gpts_on_meshes import CONFIGS, LIMIT, MESHES, PROMPTS, WAYS
from simulated import on_eight_devices

from specdec.checkpoints.share import DeviceShare

# Two minutes; test_meshes.py has the same of T5s.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(once):
    directory = once("gpt_meshes", on_eight_devices("run_gpts_on_meshes.py"))
    return json.loads((directory / "report.json").read_text())


CUT = [mesh for mesh in MESHES if MESHES[mesh]]


@pytest.mark.parametrize(
    ("mesh", "way"), [*((mesh, way) for mesh in CUT for way in WAYS), ("2x4", "prime")]
)
def test_tokens_do_not_depend_on_the_mesh(report, mesh, way):
    assert report["devices"] == 8
    assert sorted(map(len, PROMPTS))[0] == 0
    expected = report["decodes"][f"one device, {way}"]
    lengths = list(map(len, expected["tokens"]))
    assert sum(lengths) >= 2000
    assert len(set(lengths)) > 3, "rows should end at different places"
    assert LIMIT in lengths
    if way != "plain":
        assert expected["accepted"] > 0, "some guesses should be right for this to mean anything"
    assert report["decodes"][f"{mesh}, {way}"] == expected


@pytest.mark.parametrize("mesh", MESHES)
def test_speculation_changes_no_greedy_token(report, mesh):
    plain, fast = (report["decodes"][f"{mesh}, {way}"] for way in ("plain", "greedy"))
    assert fast["tokens"] == plain["tokens"]
    assert fast["target_calls"] < plain["target_calls"]


@pytest.mark.parametrize(("mesh", "parts"), [("1x8", 8), ("2x4", 4)])
def test_each_device_holds_its_part_of_the_target(report, mesh, parts):
    """Kernels with what is added to cut axes are cut; positions, norms and sums' biases are not."""
    shards = report["shards"][mesh]
    for name, (size, *held) in shards["target"].items():
        whole = any(word in name for word in ("norm", "out_bias", "wo_bias", "positions"))
        assert held == [size if whole else size // parts], name
    assert all(held == [size] for size, *held in shards["draft"].values())
    for role in ("target", "draft"):
        planned = DeviceShare(CONFIGS[role], getattr(MESHES[mesh], f"planned_{role}"), 8)
        assert planned.weights == sum(4 * held for _, held in shards[role].values())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("prime", ["of 8 devices", "vocab_size = 61", "keep", "vocab whole"]),
        ("six_heads", ["of 8 devices", "num_heads = 6", "keep heads", "('heads', None)"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_to_do(report, target, words):
    for word in words:
        assert word in report["errors"][target]
