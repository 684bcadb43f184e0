"""Decodes on meshes of 8 simulated devices: the same tokens, and no waiting where none is due."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MESHES = ("1x8", "2x4", "8x1", "1x8, draft as target", "2x4, in two dimensions")
COLLECTIVES = re.compile(
    r"(all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter)"
)
# What cannot be cut by heads, hidden width or vocabulary: norms.
WHOLE = re.compile("norm")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """What run_on_meshes.py wrote, in a process of its own: this one keeps its single device."""
    path = tmp_path_factory.mktemp("meshes")
    run = subprocess.run(
        [sys.executable, HERE / "run_on_meshes.py", path],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return path


@pytest.fixture(scope="module")
def report(directory):
    return json.loads((directory / "report.json").read_text())


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("mesh", MESHES)
def test_tokens_do_not_depend_on_the_mesh(report, mesh, sampling):
    assert report["devices"] == 8
    expected = report["decodes"][f"one device, {sampling}"]
    assert sum(map(len, expected["tokens"])) >= 2000
    assert len(set(map(len, expected["tokens"]))) > 5, "rows should end at different places"
    assert expected["accepted"] > 0, "some guesses should be right for this test to mean anything"
    assert report["decodes"][f"{mesh}, {sampling}"] == expected


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


def test_t5x_checkpoints_too_are_read_into_their_shards(report):
    assert report["T5X alike"]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("heads", ["of 8 devices", "num_heads = 6 and d_ff = 20", "divides 2", "('heads', None)"]),
        ("d_ff", ["of 3 devices", "num_heads = 8", "vocab_size = 64", "divides 8"]),
        ("draft", ["num_heads = 6"]),
        ("batch", ["batch_size is 3", "2 parts", "multiple of 2"]),
        ("devices", ["4 x 4", "16 devices", "this process has 8"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_to_do(report, problem, words):
    for word in words:
        assert word in report["errors"][problem]


@dataclasses.dataclass(frozen=True)
class Instruction:
    opcode: str
    scope: tuple[str, ...]  # The functions and named scopes it was traced in.
    called: tuple[str, ...]  # Computations: a loop's body, a reduction's sum.


def read_program(text):
    """{computation: its instructions} of a compiled program's text."""
    program, instructions = {}, []
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
            instructions = program.setdefault(header[1], [])
        elif opcode := re.search(r"^ +(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", line):
            name = re.search(r'op_name="([^"]*)"', line)
            called = re.findall(r"(?:calls|body|condition|to_apply)=%?([\w.-]+)", line)
            for branches in re.findall(r"branch_computations=\{([^}]*)\}", line):
                called += re.findall(r"%?([\w.-]+)", branches)
            scope = tuple(name[1].split("/")) if name else ()
            instructions.append(Instruction(opcode[1], scope, tuple(called)))
    return program


def reached(program, computation):
    """All instructions of a computation and of those that it calls."""
    for instruction in program[computation]:
        yield instruction
        for called in instruction.called:
            yield from reached(program, called)


def part(program, scope):
    """The instructions traced in a named scope, and all that they call."""
    found = []
    for instruction in (i for instructions in program.values() for i in instructions):
        if scope in instruction.scope:
            found.append(instruction)
            found += [i for called in instruction.called for i in reached(program, called)]
    return found


def collectives(instructions):
    return [i for i in instructions if COLLECTIVES.match(i.opcode)]


def decode_loop(program):
    """What runs once a block: the body and condition of the outermost loop."""
    (loop,) = [
        i
        for instructions in program.values()
        for i in instructions
        if i.opcode == "while" and i.scope[1:] == ("while",)
    ]
    return [i for called in loop.called for i in reached(program, called)]


@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
def test_a_replicated_draft_waits_for_no_other_device(directory, mesh):
    """In the compiled program: no collective in the draft's part, some in the target's."""
    program = read_program((directory / f"{mesh}.hlo").read_text())
    draft, target = part(program, "draft"), part(program, "target")
    assert sum(i.opcode == "while" for i in draft) == 1, "the draft's steps are a loop"
    assert sum(i.opcode == "dot" for i in draft) > 5
    assert collectives(draft) == []
    assert len(collectives(target)) > 5
    for collective in collectives(decode_loop(program)):
        # Besides, groups tell each other whether their rows have ended.
        assert "target" in collective.scope or "cond" in collective.scope, collective


def test_the_reading_sees_a_draft_that_waits(directory):
    program = read_program((directory / "1x8, draft as target.hlo").read_text())
    assert len(collectives(part(program, "draft"))) > 5


def test_groups_of_devices_decode_apart(directory):
    """At 8x1 devices tell each other only whether their rows have ended."""
    program = read_program((directory / "8x1.hlo").read_text())
    (ended,) = collectives(decode_loop(program))
    assert ended.opcode.startswith("all-reduce")
    assert "cond" in ended.scope
