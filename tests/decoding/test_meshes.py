"""Decodes on meshes of 8 simulated devices: the same tokens, and no waiting where none is due."""

import json
import re

import pytest
from compiled_text import collectives, decode_loop, part, read_program
from run_on_meshes import (
    BEAMS,
    CONFIGS,
    CUT,
    DECODES,
    FEW,
    MESHES,
    PROGRAMS,
    TREES,
)
from simulated import on_eight_devices
from slow import slow

from specdec.measure.memory import DeviceShare

# What cannot be cut by heads, hidden width or vocabulary: norms.
WHOLE = re.compile("norm")


@pytest.fixture(scope="module")
def written(once):
    """part -> the directory that run_on_meshes.py wrote."""
    return lambda part: once(f"meshes-{part}", on_eight_devices("run_on_meshes.py", part))


@pytest.fixture(scope="module")
def reported(written):
    """part -> its report."""
    return lambda part: json.loads((written(part) / "report.json").read_text())


@pytest.fixture(scope="module")
def report(reported):
    return reported("few")


@pytest.fixture(scope="module")
def program(written):
    """mesh -> the program that was compiled."""
    return lambda mesh: read_program((written(PROGRAMS[mesh]) / f"{mesh}.hlo").read_text())


@pytest.mark.parametrize(
    ("mesh", "way"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each not in FEW)) for each in DECODES],
)
def test_tokens_do_not_depend_on_the_mesh(reported, mesh, way):
    report = reported("few" if (mesh, way) in FEW else "rest")
    assert report["devices"] == 8
    expected = report["decodes"][f"one device, {way}"]
    assert sum(map(len, expected["tokens"])) >= (200 if way in BEAMS else 2000)
    assert len(set(map(len, expected["tokens"]))) > 5, "rows should end at different places"
    if way != "beams":
        assert expected["accepted"] > 0, "some guesses should be right for this to mean anything"
    if way in TREES:
        assert min(expected["accepted_by_rank"]) > 0, "not only first siblings should be right"
    assert report["decodes"][f"{mesh}, {way}"] == expected


def test_each_device_holds_its_part_of_the_target(report):
    for mesh, parts in (("1x8", 8), ("2x4", 4), ("8x1", 1)):
        shards = report["shards"][mesh]
        assert any("encoder" in name for name in shards["target"])
        for name, (size, *held) in shards["target"].items():
            assert held == [size if WHOLE.search(name) else size // parts], (mesh, name)
        for name, (size, *held) in shards["draft"].items():
            assert held == [size], (mesh, name)
    cut_alike = report["shards"]["1x8, draft as target"]["draft"]
    for name, (size, *held) in cut_alike.items():
        assert held == [size if WHOLE.search(name) else size // 8], name
    in_two = report["shards"]["2x4, in two dimensions"]["target"]
    assert any(held == [size // 8] for size, *held in in_two.values())


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("heads", ["of 8 devices", "num_heads = 6 and d_ff = 20", "divides 2", "('heads', None)"]),
        ("batch", ["batch_size is 3", "2 parts", "multiple of 2"]),
        ("devices", ["4 x 4", "16 devices", "this process has 8"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_to_do(report, problem, words):
    for word in words:
        assert word in report["errors"][problem]


@pytest.mark.parametrize("mesh", ["2x4", slow("1x8")])
def test_a_replicated_draft_waits_for_no_other_device(program, mesh):
    """In the compiled program; and the target for no more than its shares of sums and logits."""
    compiled = program(mesh)
    draft, target = part(compiled, "draft"), part(compiled, "target")
    steps = [i for i in draft if i.opcode == "while" and i.scope[-2:] == ("draft", "while")]
    assert len(steps) == 1, "the draft's steps are a loop"
    assert sum(i.opcode == "dot" for i in draft) > 5
    assert collectives(draft) == []
    # Two layers' self-attention, cross-attention and feed-forward; the embedding; the logits.
    assert len(collectives(target)) == 2 * 3 + 1 + 1
    for collective in collectives(decode_loop(compiled)):
        # Besides, groups tell each other whether their rows have ended.
        assert "target" in collective.scope or "cond" in collective.scope, collective


@pytest.mark.slow
def test_the_reading_sees_a_draft_that_waits(program):
    assert len(collectives(part(program("1x8, draft as target"), "draft"))) > 5


@pytest.mark.slow
def test_groups_of_devices_decode_apart(program):
    """At 8x1 devices tell each other only whether their rows have ended."""
    (ended,) = collectives(decode_loop(program("8x1")))
    assert ended.opcode.startswith("all-reduce")
    assert "cond" in ended.scope


@pytest.mark.parametrize("mesh", CUT)
def test_the_plan_holds_what_devices_hold(report, mesh):
    shards = report["shards"][mesh]
    for name, partitioning in (
        ("target", MESHES[mesh].planned_target),
        ("draft", MESHES[mesh].planned_draft),
    ):
        held = sum(4 * each for _, each in shards[name].values())
        assert DeviceShare(CONFIGS[name], partitioning, 8).weights == held
