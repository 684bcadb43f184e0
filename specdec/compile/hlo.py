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
        """Its elements."""
        return math.prod(self.dims)

    @property
    def bits(self) -> int:
        """Of an element."""
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        return _BITS.get(self.dtype, int(digits[1]) if digits else 0)

    @property
    def bytes(self) -> int:
        """Without what a layout pads it with."""
        return self.size * self.bits // 8


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """One line.

    Attributes:
      shapes: of its result; those of a tuple's arrays in order.
      operands: names of instructions of the same computation.
      called: names of computations by what they are to it, such as "body" or "calls".
      op_name: where in the traced program it is from; "" where the compiler does not say.
      cycles: the TPU compiler's estimate; 0 where it makes none.
      rest: the line's text behind the operands.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    called: Mapping[str, tuple[str, ...]]
    op_name: str
    cycles: int
    argument: str  # What is between the parentheses.
    rest: str

    @property
    def index(self) -> int:
        """Of a parameter its number, of a get-tuple-element its place in the tuple."""
        if self.opcode == "parameter":
            return int(self.argument)
        return int(_found(r"\bindex=(\d+)", self.rest) or 0)

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return _found(r'custom_call_target="([^"]*)"', self.rest)

    @property
    def bytes(self) -> int:
        """Of its result."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def known_trips(self) -> int | None:
        """How often a loop runs, where the compiler noted it."""
        count = _found(r'"known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(count) if count else None


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """Instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """By number."""
        return {each.index: each for each in self if each.opcode == "parameter"}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """By an instruction's name, those that have it as operand."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for each in self:
            for operand in dict.fromkeys(each.operands):
                found[operand].append(each)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A program."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, *roles: str) -> list[Computation]:
        """The computations that an instruction calls in these roles, all if none is given."""
        return [
            self.computations[name]
            for role, names in instruction.called.items()
            if not roles or role in roles
            for name in names
        ]


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
    return Module(computations, computations[entry])


def _instruction(name: str, text: str) -> Instruction:
    """Of ``SHAPE opcode(operands), attributes``."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    opens = text.index("(")
    opcode, closes = text[:opens], _closing(text, opens)
    inside, rest = text[opens + 1 : closes - 1], text[closes:]
    called = {
        role: tuple(_NAME.findall(names)) or (names,) for role, names in _CALLED.findall(rest)
    }
    return Instruction(
        name, opcode, _shapes(shape), tuple(_NAME.findall(inside)), called,
        _found(r'\bop_name="([^"]*)"', rest),
        int(_found(r'"estimated_cycles":"(\d+)"', rest) or 0), inside, rest,
    )  # fmt: skip


def _shapes(text: str) -> tuple[Shape, ...]:
    found = []
    for dtype, dims, layout in _SHAPE.findall(text):
        space = _found(r"S\((\d+)\)", layout)
        sizes = tuple(int(size) for size in dims.split(",") if size)
        found.append(Shape(dtype, sizes, int(space or 0), re.sub(r"S\(\d+\)", "", layout)))
    return tuple(found)


def _closing(text: str, at: int) -> int:
    """Behind the parenthesis that closes the one at ``at``."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    raise ValueError(f"No closing parenthesis in {text[at : at + 60]!r}.")


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
