"""What a decode does that it need not: weights restated, loops over rows, products off the units.

Each is read in the structure of the compiled program, not in estimates.
"""

from __future__ import annotations

import dataclasses

from specdec.compile.flow import Flow
from specdec.compile.hlo import Computation, Instruction, Module, Shape
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
    flow, loop = Flow(module), decode_loop(module)
    start, block = list(executed(module, module.entry, loop)), list(within(module, loop))
    restated = [found for each in start if (found := _restated(flow, *each)) is not None]
    inside = [found for each in block if (found := _restated(flow, *each)) is not None]
    restated += [found for found in inside if not found[1].space]
    wider = [new.bytes for old, new in restated if new.bits > old.bits]
    copies = [(old, new.bytes) for old, new in restated if new.bits <= old.bits]
    return Findings(
        weight_copy_bytes=sum(size for _, size in copies),
        weight_widened_bytes=sum(wider),
        row_loops=sum(_over_rows(instruction) for _, instruction in block),
        one_token_vector_products=sum(
            _on_vector_unit(flow, computation, instruction) for computation, instruction in block
        ),
        stacked_copies=sum(len(old.dims) > 2 for old, _ in copies),
        sorts=sum(
            part.opcode in ("sort", "topk") or part.target.startswith(_SORTS)
            for _, instruction in block
            for part in _parts(module, instruction)
        ),
    )


def _restated(
    flow: Flow, computation: Computation, instruction: Instruction
) -> tuple[Shape, Shape] | None:
    """A kernel's shape and what it is written as once more; None if this does no such thing."""
    if instruction.opcode in ("bitcast", "copy-done", "slice-start", "slice-done", "custom-call"):
        return None
    joins = instruction.opcode in ("concatenate", "slice", "pad")
    if not (joins or flow.moves(instruction)) or not instruction.operands:
        return None
    (new, *_) = instruction.shapes
    weights = [flow.weight(computation, name) for name in instruction.operands]
    shapes = [weight.shapes[0] for weight in weights if weight is not None]
    largest = max(shapes, key=lambda shape: shape.size, default=None)
    if largest is None or new.size < largest.size:
        return None
    # Fetched to the chip as it is, it is a part of being read.
    return (
        None
        if new == dataclasses.replace(largest, space=new.space) and new.space
        else (largest, new)
    )


def _over_rows(instruction: Instruction) -> bool:
    """A loop that the compiler added: those of the traced program have its loops' names."""
    ends = instruction.op_name.rpartition("/")[2]
    return instruction.opcode == "while" and ends not in ("while", "scan")


def _on_vector_unit(flow: Flow, computation: Computation, instruction: Instruction) -> bool:
    """A fusion that is made for a product of a kernel, and has none in it."""
    if instruction.opcode != "fusion":
        return False
    parts = _parts(flow.module, instruction)
    kinds = {each.opcode for each in parts}
    made_for = any(each.op_name.endswith("dot_general") for each in parts)
    if not made_for or "multiply" not in kinds or kinds & _PRODUCTS:
        return False
    return any(flow.weight(computation, name) is not None for name in instruction.operands)


def _parts(module: Module, instruction: Instruction) -> list[Instruction]:
    """An instruction, and what it is made of if it is a fusion, also of fusions in that."""
    if instruction.opcode != "fusion":
        return [instruction]
    (inside,) = module.called(instruction, "calls")
    return [instruction, *(part for each in inside for part in _parts(module, each))]
