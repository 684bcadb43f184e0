"""Where the arrays of a compiled program come from, across its loops, branches and fusions."""

from __future__ import annotations

import functools

from specdec.compile.hlo import Computation, Instruction, Module

# What only hands on or moves an array. Starts and dones are the two ends of a copy under way.
_MOVES = {
    "bitcast", "copy", "copy-start", "copy-done", "slice-start", "slice-done", "async-start",
    "async-done", "reshape", "transpose", "convert", "optimization-barrier",
}  # fmt: skip
# What a fusion may be made of and still only move, join or widen arrays.
_MOVING = {
    "parameter", "bitcast", "copy", "transpose", "convert", "reshape", "concatenate", "slice",
    "pad", "constant", "tuple", "get-tuple-element",
}  # fmt: skip
_SMALLEST_KERNEL = 16384  # Bytes; tables of position biases have fewer, and cost nothing.
_WHOLE = ("ConcatBitcast",)  # Custom calls that put the slices of an array together again.


class Flow:
    """A module with its call graph."""

    def __init__(self, module: Module):
        self.module = module
        self._unchanged = functools.cache(self._hands_on)  # Dropped with this object.
        self._callers: dict[str, tuple[Computation, Instruction]] = {}
        for computation in module.computations.values():
            for instruction in computation:
                for called in module.called(instruction):
                    self._callers[called.name] = computation, instruction

    def origin(
        self, computation: Computation, name: str, path: tuple[int, ...] = ()
    ) -> tuple[Computation, Instruction]:
        """What made an array, before it was moved, widened or handed into loops and fusions.

        Args:
          path: of a tuple, which of its arrays.
        """
        instruction = computation.instructions[name]
        operands = instruction.operands
        if instruction.opcode == "get-tuple-element":
            return self.origin(computation, operands[0], (instruction.index, *path))
        if instruction.opcode == "tuple" and path:
            return self.origin(computation, operands[path[0]], path[1:])
        if instruction.opcode == "while" and path and self._unchanged(instruction, path[0]):
            return self.origin(computation, operands[0], path)
        if instruction.opcode == "parameter" and computation.name in self._callers:
            where, caller = self._callers[computation.name]
            at = instruction.index
            if caller.opcode == "conditional":
                at = 1 + self.module.called(caller).index(computation)
            if at < len(caller.operands) and caller.opcode != "reduce":
                return self.origin(where, caller.operands[at], path)
        if self.moves(instruction):
            return self.origin(computation, operands[0], path)
        return computation, instruction

    def moves(self, instruction: Instruction) -> bool:
        """Whether it gives its first operand's own values: copied, transposed or of other bits."""
        if instruction.opcode == "fusion":
            inside = self.module.called(instruction, "calls")[0]
            return bool(instruction.operands) and all(each.opcode in _MOVING for each in inside)
        return instruction.opcode in _MOVES or instruction.target in _WHOLE

    def weight(self, computation: Computation, name: str) -> Instruction | None:
        """The kernel that an array is or was: a parameter of the program with two axes or more."""
        where, made = self.origin(computation, name)
        if where is not self.module.entry or made.opcode != "parameter":
            return None
        (shape, *_) = made.shapes
        numbers = shape.dtype[0] in "bf" or shape.dtype in ("s8", "s4")
        kernel = sum(size > 1 for size in shape.dims) > 1 and shape.bytes >= _SMALLEST_KERNEL
        return made if numbers and kernel else None

    def trips(self, computation: Computation, loop: Instruction) -> int | None:
        """How often a loop runs that counts up to a constant; None where that is not known."""
        if loop.known_trips is not None:
            return loop.known_trips
        (condition,) = self.module.called(loop, "condition")
        compare = condition.root
        if compare.opcode == "fusion":
            condition = self.module.called(compare, "calls")[0]
            compare = condition.root
        if compare.opcode != "compare" or "direction=LT" not in compare.rest:
            return None
        first, last = (self._number(condition, name) for name in compare.operands)
        return None if first is None or last is None else last - first

    def _number(self, computation: Computation, name: str) -> int | None:
        """A constant's; of what a loop counts, where it begins."""
        _, made = self.origin(computation, name)
        digits = made.argument.strip("{} ")
        if made.opcode != "constant" or not digits.lstrip("-").isdigit():
            return None
        return int(digits)

    def _hands_on(self, loop: Instruction, at: int) -> bool:
        """Whether a loop passes this part of its tuple on unchanged."""
        (body,) = self.module.called(loop, "body")
        made = body.root
        if made.opcode != "tuple" or at >= len(made.operands):
            return False
        made = body.instructions[made.operands[at]]
        while made.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            made = body.instructions[made.operands[0]]
        parameter = body.parameters[0].name
        return (
            made.opcode == "get-tuple-element"
            and made.index == at
            and made.operands[0] == parameter
        )
