"""Reads the text of a compiled program: XLA's optimized HLO, as computations of instructions."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_BITS = {"pred": 8, "token": 0}  # Of others the name says it: bf16, s32, f8e4m3fn.
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_BEGINS = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_LINE = re.compile(r"^  (ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array's.

    Attributes:
      space: the memory that it is in: 0 is the device's main memory, others are on the chip.
      layout: the order of its axes and its tiles, as the text has them.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = 0
    layout: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bits(self) -> int:
        """Size of an element in bits."""
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        return _BITS.get(self.dtype, int(digits[1]) if digits else 0)

    @property
    def bytes(self) -> int:
        """Size in bytes, without a layout's padding."""
        return self.size * self.bits // 8


@dataclasses.dataclass(eq=False)
class Instruction:
    """An instruction: one line of a computation.

    Attributes:
      shapes: of its result; those of a tuple's arrays in order.
      op_name: where in the traced program it is from; "" where the compiler does not say.
      cycles: the TPU compiler's estimate; 0 where it makes none.
      argument: the text between the parentheses.
      rest: the line's text behind them.
      operands: instructions of the same computation.
      users: those that have it as operand.
      called: computations by what they are to it, such as "body" or "calls".
      computation: where it stands.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    op_name: str
    cycles: int
    argument: str
    rest: str
    operands: list[Instruction] = dataclasses.field(default_factory=list)
    users: list[Instruction] = dataclasses.field(default_factory=list)
    called: dict[str, list[Computation]] = dataclasses.field(default_factory=dict)
    computation: Computation = dataclasses.field(init=False)

    def calls(self, *roles: str) -> list[Computation]:
        """The computations that it calls in these roles, all if none is given."""
        found = (each for role, each in self.called.items() if not roles or role in roles)
        return [computation for each in found for computation in each]

    @property
    def index(self) -> int:
        """Number of a parameter, or a get-tuple-element's place in the tuple."""
        if self.opcode == "parameter":
            return int(self.argument)
        return int(_found(r"\bindex=(\d+)", self.rest) or 0)

    @property
    def target(self) -> str:
        """Name of the function that a custom call calls."""
        return _found(r'custom_call_target="([^"]*)"', self.rest)

    @property
    def bytes(self) -> int:
        """Size of the result in bytes."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def known_trips(self) -> int | None:
        """Number of runs of a loop, where the compiler noted it."""
        count = _found(r'"known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(count) if count else None


@dataclasses.dataclass(eq=False)
class Computation:
    """Instructions by name, in the order of the text.

    Attributes:
      caller: the last instruction that calls it; None of the entry.
    """

    name: str
    instructions: dict[str, Instruction]
    root: Instruction
    caller: Instruction | None = None

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by number."""
        return {each.index: each for each in self if each.opcode == "parameter"}


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A program."""

    computations: dict[str, Computation]
    entry: Computation


def parse(text: str) -> Module:
    """Raises ValueError if the text is no HLO module with an entry."""
    computations: dict[str, Computation] = {}
    entry = None
    name, lines, root = None, {}, None
    for line in text.splitlines():
        if name is None:
            if begins := _BEGINS.match(line):
                name, lines, root = begins[2], {}, None
                entry = name if begins[1] else entry
        elif line.startswith("}"):
            last = root or (next(reversed(lines.values())) if lines else None)
            if last is not None:
                computations[name] = Computation(name, lines, last)
            name = None
        elif match := _LINE.match(line):
            instruction = _instruction(match[2], match[3])
            lines[instruction.name] = instruction
            root = instruction if match[1] else root
    if entry not in computations:
        raise ValueError("This is not the text of an HLO module: it has no ENTRY.")
    for computation in computations.values():
        for instruction in computation:
            _link(instruction, computation, computations)
    return Module(computations, computations[entry])


def _link(
    instruction: Instruction, computation: Computation, computations: Mapping[str, Computation]
) -> None:
    """Finds what an instruction's text names."""
    instruction.computation = computation
    names = _NAME.findall(instruction.argument)
    instruction.operands = [computation.instructions[name] for name in names]
    for operand in dict.fromkeys(instruction.operands):
        operand.users.append(instruction)
    for role, text in _CALLED.findall(instruction.rest):
        called = [computations[name] for name in _NAME.findall(text) or [text]]
        instruction.called[role] = called
        for each in called:
            each.caller = instruction


def _instruction(name: str, text: str) -> Instruction:
    """Parse ``SHAPE opcode(operands), attributes``."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    opens = text.index("(")
    opcode, closes = text[:opens], _closing(text, opens)
    inside, rest = text[opens + 1 : closes - 1], text[closes:]
    cycles = int(_found(r'"estimated_cycles":"(\d+)"', rest) or 0)
    op_name = _found(r'\bop_name="([^"]*)"', rest)
    return Instruction(name, opcode, _shapes(shape), op_name, cycles, inside, rest)


def _shapes(text: str) -> tuple[Shape, ...]:
    found = []
    for dtype, dims, layout in _SHAPE.findall(text):
        space = _found(r"S\((\d+)\)", layout)
        sizes = tuple(int(size) for size in dims.split(",") if size)
        found.append(Shape(dtype, sizes, int(space or 0), re.sub(r"S\(\d+\)", "", layout)))
    return tuple(found)


def _closing(text: str, at: int) -> int:
    """Index behind the parenthesis that closes the one at ``at``."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    raise ValueError(f"No closing parenthesis in {text[at : at + 60]!r}.")


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
