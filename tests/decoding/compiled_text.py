"""What programs for several devices have in them, read from their text as compiled."""

import dataclasses
import math
import re

COLLECTIVES = re.compile(
    r"(all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter)"
)
BYTES = {"pred": 1, "f16": 2, "s32": 4, "f32": 4}


@dataclasses.dataclass(frozen=True)
class Instruction:
    opcode: str
    scope: tuple[str, ...]  # The functions and named scopes it was traced in.
    called: tuple[str, ...]  # Computations: a loop's body, a reduction's sum.
    size: int  # Bytes of its result on each device; 0 of types that no collective has.
    devices: int  # Of each group that a collective is among; else 0.


def read_program(text):
    """{computation: its instructions} of a compiled program's text."""
    program, instructions = {}, []
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
            instructions = program.setdefault(header[1], [])
        elif opcode := re.search(r"^ +(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][\w-]*)\(", line):
            name = re.search(r'op_name="([^"]*)"', line)
            called = re.findall(r"(?:calls|body|condition|to_apply)=%?([\w.-]+)", line)
            for branches in re.findall(r"branch_computations=\{([^}]*)\}", line):
                called += re.findall(r"%?([\w.-]+)", branches)
            scope = tuple(name[1].split("/")) if name else ()
            instructions.append(
                Instruction(opcode[2], scope, tuple(called), size_of(opcode[1]), group_size(line))
            )
    return program


def size_of(type_):
    """Bytes of a result, such as f32[8,32]{1,0} or a tuple of them."""
    return sum(
        BYTES.get(element, 0) * math.prod(int(n) for n in shape.split(",") if n)
        for element, shape in re.findall(r"(\w+)\[([\d,]*)\]", type_)
    )


def group_size(line):
    """Of a collective's groups, which are listed, given as counts, or as axes of a mesh."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return len(listed[1].split(","))
    if counts := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(counts[1])
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\].*? \{([^}]*)\}", line):
        sizes = dict(re.findall(r"(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"\w+", named[2]))
    return 0


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
