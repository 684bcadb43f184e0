"""Needless work in a decode: weights restated, loops over rows, products off the units.

Each is read in the structure of the compiled program, not in estimates.
"""

from __future__ import annotations

import dataclasses

from specdec.compile.flow import moves, weight
from specdec.compile.hlo import Instruction, Module, Shape
from specdec.compile.phases import decode_loop, executed, within

_PRODUCTS = {"dot", "convolution", "custom-call"}
_SORTS = ("TopK", "__cub$DeviceRadixSort", "ApproxTopK")


@dataclasses.dataclass(frozen=True)
class Findings:
    """Counts of one program; 0 is best everywhere.

    Attributes:
      weight_copy_bytes: of kernels that are written once more, in the same or fewer bits, because
        a product wants another layout or several as one. What a block does while it brings a
        kernel onto the chip is a part of reading it.
      weight_widened_bytes: of kernels that are written once more in more bits.
      row_loops: loops inside of a block that the compiler made of one operation over the rows.
      one_token_vector_products: products of kernels that are multiplied and summed element by
        element, off the matrix unit.
      stacked_copies: of the copies, those of kernels of three axes.
      sorts: inside of a block.
    """

    weight_copy_bytes: int
    weight_widened_bytes: int
    row_loops: int
    one_token_vector_products: int
    stacked_copies: int
    sorts: int


def find(module: Module) -> Findings:
    """Raises ValueError if the program has no loop."""
    loop = decode_loop(module)
    block = list(within(loop))
    restated = [found for each in executed(module.entry, loop) if (found := _restated(each))]
    inside = [found for each in block if (found := _restated(each))]
    restated += [found for found in inside if not found[1].space]
    wider = [new.bytes for old, new in restated if new.bits > old.bits]
    copies = [(old, new.bytes) for old, new in restated if new.bits <= old.bits]
    return Findings(
        weight_copy_bytes=sum(size for _, size in copies),
        weight_widened_bytes=sum(wider),
        row_loops=sum(map(_over_rows, block)),
        one_token_vector_products=sum(map(_on_vector_unit, block)),
        stacked_copies=sum(len(old.dims) > 2 for old, _ in copies),
        sorts=sum(
            part.opcode in ("sort", "topk") or part.target.startswith(_SORTS)
            for instruction in block
            for part in _parts(instruction)
        ),
    )


def _restated(instruction: Instruction) -> tuple[Shape, Shape] | None:
    """A kernel's shape and what it is written as once more; None if this does no such thing."""
    if instruction.opcode in ("bitcast", "copy-done", "slice-start", "slice-done", "custom-call"):
        return None
    joins = instruction.opcode in ("concatenate", "slice", "pad")
    if not (joins or moves(instruction)) or not instruction.operands:
        return None
    (new, *_) = instruction.shapes
    shapes = [found.shapes[0] for each in instruction.operands if (found := weight(each))]
    largest = max(shapes, key=lambda shape: shape.size, default=None)
    if largest is None or new.size < largest.size:
        return None
    # Fetched to the chip as it is, it is a part of being read.
    fetched = new.space and new == dataclasses.replace(largest, space=new.space)
    return None if fetched else (largest, new)


def _over_rows(instruction: Instruction) -> bool:
    """A loop that the compiler added: those of the traced program have its loops' names."""
    ends = instruction.op_name.rpartition("/")[2]
    return instruction.opcode == "while" and ends not in ("while", "scan")


def _on_vector_unit(instruction: Instruction) -> bool:
    """A fusion that is made for a product of a kernel, and has none in it."""
    if instruction.opcode != "fusion":
        return False
    parts = _parts(instruction)
    kinds = {each.opcode for each in parts}
    made_for = any(each.op_name.endswith("dot_general") for each in parts)
    if not made_for or "multiply" not in kinds or kinds & _PRODUCTS:
        return False
    return any(weight(each) is not None for each in instruction.operands)


def _parts(instruction: Instruction) -> list[Instruction]:
    """An instruction, and all parts of it if it is a fusion, also of fusions in that."""
    if instruction.opcode != "fusion":
        return [instruction]
    (inside,) = instruction.calls("calls")
    return [instruction, *(part for each in inside for part in _parts(each))]
