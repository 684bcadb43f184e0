"""Origins of the arrays of a compiled program, across its loops, branches and fusions."""

from __future__ import annotations

from specdec.compile.hlo import Instruction

# Operations that only hand on or move an array. Starts and dones are the ends of a copy under way.
_MOVES = {
    "bitcast", "copy", "copy-start", "copy-done", "slice-start", "slice-done", "async-start",
    "async-done", "reshape", "transpose", "convert", "optimization-barrier",
}  # fmt: skip
# Operations of fusions that only move, join or widen arrays.
_MOVING = {
    "parameter", "bitcast", "copy", "transpose", "convert", "reshape", "concatenate", "slice",
    "pad", "constant", "tuple", "get-tuple-element",
}  # fmt: skip
_SMALLEST_KERNEL = 16384  # Bytes; tables of position biases have fewer, and cost nothing.
_WHOLE = ("ConcatBitcast",)  # Custom calls that put the slices of an array together again.


def origin(made: Instruction, path: tuple[int, ...] = ()) -> Instruction:
    """Instruction that made an array, before moves, wider dtypes, loops and fusions.

    Args:
      path: of a tuple, which of its arrays.
    """
    operands, caller = made.operands, made.computation.caller
    if made.opcode == "get-tuple-element":
        return origin(operands[0], (made.index, *path))
    if made.opcode == "tuple" and path:
        return origin(operands[path[0]], path[1:])
    if made.opcode == "while" and path and _hands_on(made, path[0]):
        return origin(operands[0], path)
    if made.opcode == "parameter" and caller is not None:
        at = made.index
        if caller.opcode == "conditional":
            at = 1 + caller.calls().index(made.computation)
        if at < len(caller.operands) and caller.opcode != "reduce":
            return origin(caller.operands[at], path)
    return origin(operands[0], path) if moves(made) else made


def moves(instruction: Instruction) -> bool:
    """Whether it gives its first operand's own values: copied, transposed or of other bits."""
    if instruction.opcode == "fusion":
        inside = instruction.calls("calls")[0]
        return bool(instruction.operands) and all(each.opcode in _MOVING for each in inside)
    return instruction.opcode in _MOVES or instruction.target in _WHOLE


def weight(array: Instruction) -> Instruction | None:
    """The kernel that an array is or was: a parameter of the program with two axes or more."""
    made = origin(array)
    if made.computation.caller is not None or made.opcode != "parameter":
        return None
    (shape, *_) = made.shapes
    numbers = shape.dtype[0] in "bf" or shape.dtype in ("s8", "s4")
    kernel = sum(size > 1 for size in shape.dims) > 1 and shape.bytes >= _SMALLEST_KERNEL
    return made if numbers and kernel else None


def trips(loop: Instruction) -> int | None:
    """Number of runs of a loop that counts up to a constant; None where it is not known."""
    if loop.known_trips is not None:
        return loop.known_trips
    (condition,) = loop.calls("condition")
    compare = condition.root
    if compare.opcode == "fusion":
        compare = compare.calls("calls")[0].root
    if compare.opcode != "compare" or "direction=LT" not in compare.rest:
        return None
    first, last = map(_number, compare.operands)
    return None if first is None or last is None else last - first


def _number(array: Instruction) -> int | None:
    """Value of a constant; of a loop's counter, its first value."""
    made = origin(array)
    digits = made.argument.strip("{} ")
    if made.opcode != "constant" or not digits.lstrip("-").isdigit():
        return None
    return int(digits)


def _hands_on(loop: Instruction, at: int) -> bool:
    """Whether a loop passes this part of its tuple on unchanged."""
    (body,) = loop.calls("body")
    if body.root.opcode != "tuple" or at >= len(body.root.operands):
        return False
    made = body.root.operands[at]
    while made.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        made = made.operands[0]
    first = body.parameters[0]
    return made.opcode == "get-tuple-element" and made.index == at and made.operands[0] is first
