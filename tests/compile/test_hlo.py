"""Programs' texts as computations, and what their parts cost, on short ones written by hand."""

from pathlib import Path

import pytest

from specdec.compile import flow, hlo, thunks
from specdec.compile.costs import bytes_of
from specdec.compile.phases import OTHER, STEPS, Reader

# A decode: the start widens the kernel; a block drafts in a loop of three steps, and scores.
TEXT = (Path(__file__).parent / "decode.hlo").read_text()
KERNEL = 4 * 64 * 128


@pytest.fixture
def module():
    return hlo.parse(TEXT)


def test_lines_are_read(module):
    assert module.entry.name == "main"
    step = module.computations["step"]
    made, arg = step.instructions["made"], step.instructions["arg.1"]
    assert (made.opcode, made.cycles) == ("fusion", 10)
    assert [each.name for each in made.operands] == ["kernel", "kernel"]
    assert made.calls("calls") == [module.computations["product"]]
    assert made.op_name.endswith("draft/while/body/dot_general")
    assert [(shape.dtype, shape.dims) for shape in arg.shapes] == [("s32", ()), ("f32", (64, 128))]
    assert (made.shapes[0].space, made.shapes[0].bytes) == (1, 4 * 8 * 128)
    assert step.root.name == "next"
    assert step.instructions["kernel"].index == 1
    assert [user.name for user in step.instructions["kernel"].users] == ["made", "next"]
    guess = module.computations["block"].instructions["guess"]
    assert [each.name for each in guess.calls("body")] == ["step"]


def test_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("HloModule nothing\n")
    alone = "ENTRY %main (a: f32[]) -> f32[] {\n  ROOT %a = f32[] parameter(0)\n}\n"
    with pytest.raises(ValueError, match="no loop"):
        Reader(hlo.parse(alone)).phases()


def test_where_arrays_come_from(module):
    step, block = (module.computations[name].instructions for name in ("step", "block"))
    assert flow.weight(step["kernel"]).name == "w"
    assert flow.weight(block["here"]).name == "w"
    assert flow.weight(block["table"]).name == "t"
    assert flow.weight(block["ids"]) is None
    assert flow.trips(block["guess"]) == 3


def test_bytes_of_main_memory(module):
    block = module.computations["block"]

    def count(name):
        return bytes_of(block.instructions[name])

    assert count("early") == KERNEL  # Read once, though both ends are in its result.
    assert count("found") == 2 * 8 * 64 + 4 * 8  # Rows of the table, and their numbers.
    assert count("scored") == 4 * 8 * 128  # The kernel is on the chip.
    assert bytes_of(module.entry.instructions["wide"]) == KERNEL // 2 + KERNEL


def test_phases(module):
    found = Reader(module).phases()
    assert found.start.cycles == 100
    assert found.start.bytes == KERNEL + KERNEL // 2
    assert set(found.block) == {STEPS, "target", OTHER}
    steps, target = found.block[STEPS], found.block["target"]
    assert steps.cycles == 3 * 10
    assert steps.bytes == 3 * (KERNEL + 4 * 8 * 64 + 9)  # 9 are those of the condition.
    assert target.cycles == 25
    # What was fetched early belongs to the phase that reads it.
    assert target.bytes == KERNEL + 4 * 8 * 128 + 2 * 8 * 64 + 4 * 8


UPDATE = """\
%put (p0: f32[8,64], p1: f32[1,64], p2: s32[]) -> f32[8,64] {
  %p0 = f32[8,64]{1,0} parameter(0)
  %p1 = f32[1,64]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %dus = f32[8,64]{1,0} dynamic-update-slice(%p0, %p1, %p2, %p2)
}

ENTRY %main (a: f32[8,64], b: f32[1,64], i: s32[]) -> f32[8,64] {
  %a = f32[8,64]{1,0} parameter(0)
  %b = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %one = f32[8,64]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%put
  ROOT %two = f32[8,64]{1,0} dynamic-update-slice(%one, %b, %i, %i)
}
"""


def test_an_update_in_place_costs_the_update():
    entry = hlo.parse(UPDATE).entry
    for name in ("one", "two"):
        count = bytes_of(entry.instructions[name])
        assert 2 * 4 * 64 <= count <= 2 * 4 * 64 + 8


THUNKS = """\
000: kCommandBuffer [source       | next=003 (1)]
    001: kCopy [source | sink] kCopy
    002: kCustomKernel [source | sink] fusion grid: [1, 1, 1]
003: kWhile         [prev=000 (1) | next=000 (1)]
condition:
    004: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | sink]
        005: kGemm [source       | next=006 (1)]
        006: kWhile [source       | next=007 (1)]
condition:
            007: kCustomKernel [source | sink] compare grid: [1, 1, 1]
          body:
            008: kCustomKernel [prev=006 (1) | sink        ] fusion
"""


def test_thunks():
    names = {1: "copy.1", 2: "fusion.1", 4: "compare.1", 5: "dot.1", 7: "compare.2", 8: "fusion.1"}
    found = thunks.parse(THUNKS, names)
    assert (found.graphs, found.loops_outside) == (2, 1)
    assert found.kernels == {
        "copy.1": 1, "fusion.1": 2, "compare.1": 1, "dot.1": 1, "compare.2": 1
    }  # fmt: skip


def test_no_thunks(tmp_path):
    with pytest.raises(FileNotFoundError, match="no list of thunks"):
        thunks.read(tmp_path)


# A loop that begins to read in one pass what the draft of the next one needs.
AHEAD = """HloModule ahead
%body (s: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  %s = (s32[], f32[64,64]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %w = f32[64,64] get-tuple-element(%s), index=1
  %use = f32[64,64] negate(%w), metadata={op_name="jit(f)/while/body/draft/neg"}
  %next = s32[] add(%i, %i), metadata={op_name="jit(f)/while/body/commit/add"}
  %copy = f32[64,64] copy(%use)
  ROOT %all = (s32[], f32[64,64]) tuple(%next, %copy)
}
%cond (s.1: (s32[], f32[64,64])) -> pred[] {
  %s.1 = (s32[], f32[64,64]) parameter(0)
  ROOT %c = pred[] constant(false)
}
ENTRY %main (a: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  %a = (s32[], f32[64,64]) parameter(0)
  ROOT %loop = (s32[], f32[64,64]) while(%a), condition=%cond, body=%body
}
"""


def test_what_is_read_ahead_belongs_to_the_phase_that_needs_it():
    assert Reader(hlo.parse(AHEAD)).phases().block["draft"].bytes == 4 * 64 * 64 * 4
