"""Costs of a program's instructions: the compiler's cycles, bytes of main memory, kernels."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from specdec.compile.hlo import Computation, Instruction

# Nothing is done for these: names, and the second end of a copy under way.
_FREE = {
    "parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "copy-done",
    "slice-done", "async-done", "all-reduce-done", "all-gather-done", "collective-permute-done",
    "partition-id", "replica-id", "optimization-barrier",
}  # fmt: skip
_CONTROL = {"while", "conditional", "call"}
_COPIES = {"copy-start", "slice-start", "async-start", "dynamic-slice-start"}
_PARTS = {"slice", "dynamic-slice", "gather"}  # Operations that read no more than they give.
_COLLECTIVES = {
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast",
}  # fmt: skip
_NO_LABEL = re.compile(
    r"$|jit\(|(while|body|closed_call|branch_\d+_fun|draft|target|verify|commit)$"
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a part of a program.

    Attributes:
      cycles: the TPU compiler's estimate. Copies under way and collectives have none.
      bytes: of main memory, read and written; without what layouts pad arrays with.
      kernels: launches of a GPU.
      collectives: how many of each kind.
      largest: cycles (of a GPU: bytes) by where in the traced program they are from.
    """

    cycles: int = 0
    bytes: int = 0
    kernels: int = 0
    collectives: Counter[str] = dataclasses.field(default_factory=Counter)
    largest: Counter[str] = dataclasses.field(default_factory=Counter)

    def __add__(self, other: Cost) -> Cost:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Cost(*(mine + its for mine, its in pairs))

    def scaled(self, factor: float) -> Cost:
        """Cost of so many times this part; whole numbers, rounded."""

        def times(value: int | Counter[str]) -> Any:
            if isinstance(value, Counter):
                return Counter({name: round(factor * count) for name, count in value.items()})
            return round(factor * value)

        return Cost(*map(times, vars(self).values()))

    @staticmethod
    def total(costs: Iterable[Cost]) -> Cost:
        """Sum of costs."""
        return sum(costs, Cost())


def cost_of(instruction: Instruction, kernels: Mapping[str, int]) -> Cost:
    """An instruction's own cost, without the computations that it calls.

    Args:
      kernels: of each instruction by name; empty for a TPU.
    """
    if instruction.opcode in _FREE | _CONTROL:
        return Cost(kernels=kernels.get(instruction.name, 0))
    traffic, cycles = bytes_of(instruction), instruction.cycles
    kind = instruction.opcode.removesuffix("-start")
    return Cost(
        cycles, traffic, kernels.get(instruction.name, 0),
        Counter({kind: 1} if kind in _COLLECTIVES else {}),
        Counter({_label(instruction): cycles or (traffic if kernels else 0)}),
    )  # fmt: skip


def _label(instruction: Instruction) -> str:
    """The end of its op_name, without names of loops, phases and functions; or what it is."""
    parts = [part for part in instruction.op_name.split("/") if not _NO_LABEL.match(part)]
    return "/".join(parts[-2:]) or instruction.opcode


def bytes_of(instruction: Instruction) -> int:
    """Bytes of main memory that an instruction reads and writes."""
    operands = instruction.operands
    if instruction.opcode in _COPIES:
        # Both ends are in its result; it moves the smaller: a slice, or the whole.
        ends = [shape for shape in instruction.shapes if shape.dims][:2]
        return sum(min(end.bytes for end in ends) for end in ends if not end.space) if ends else 0
    if instruction.target in ("ConcatBitcast", "AllocateBuffer"):
        return 0
    inside = None
    if instruction.opcode == "fusion":
        (inside,) = instruction.calls("calls")
    read = 0
    for number, operand in enumerate(operands):
        if len(operand.shapes) != 1 or operand.shapes[0].space:
            continue
        if instruction.opcode == "custom-call" and operand in operands[:number]:
            continue  # Two views of one array, such as the halves of a joined kernel.
        if inside is None:
            read += _read(instruction, number, operand.bytes)
        elif (parameter := inside.parameters.get(number)) is not None:
            read += min(operand.bytes, _parts_read(parameter))
    if instruction.opcode == "dynamic-update-slice" and not instruction.shapes[0].space:
        return read + operands[1].bytes  # In place.
    return read + _written(instruction, inside)


def _read(instruction: Instruction, number: int, whole: int) -> int:
    """Bytes that an operation reads of an operand in memory."""
    if number == 0 and instruction.opcode in _PARTS:
        return instruction.bytes
    if number == 0 and instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 0
    return whole


def _parts_read(parameter: Instruction) -> int:
    """Bytes read of a fusion's parameter: the whole, unless all that reads it takes parts of it."""
    if parameter is parameter.computation.root:
        return parameter.bytes
    total = 0
    for user in parameter.users:
        first = user.operands[0] is parameter
        if user.opcode == "bitcast":
            total += _parts_read(user)
        elif user.opcode == "fusion":
            (nested,) = user.calls("calls")
            for number, operand in enumerate(user.operands):
                if operand is parameter and number in nested.parameters:
                    total += _parts_read(nested.parameters[number])
        elif first and user.opcode in _PARTS:
            total += user.bytes
        elif not (first and user.opcode == "dynamic-update-slice"):
            return parameter.bytes
    return min(total, parameter.bytes)


def _written(instruction: Instruction, inside: Computation | None) -> int:
    """Bytes written of a result: of what is updated in place, the update."""
    shapes = instruction.shapes
    if instruction.opcode == "custom-call":
        shapes = shapes[:1]  # The rest is the memory that a library works in.
    roots = [inside.root] if inside else []
    if inside and inside.root.opcode == "tuple":
        roots = inside.root.operands
    total = 0
    for at, shape in enumerate(shapes):
        if shape.space:
            continue
        root = roots[at] if len(roots) == len(shapes) else None
        while root and root.opcode == "bitcast":
            root = root.operands[0]
        updated = root and root.opcode == "dynamic-update-slice"
        total += root.operands[1].bytes if root and updated else shape.bytes
    return total
