"""What a decode does that it need not: weights restated, loops over rows, products off the units.

Each is read in the structure of the compiled program, not in estimates.
"""

from __future__ import annotations

import dataclasses

from specdec.accelerators.flow import Flow
from specdec.accelerators.hlo import Computation, Instruction, Module, Shape
from specdec.accelerators.phases import decode_loop, executed, within

_PRODUCTS = {"dot", "convolution", "custom-call"}
_SORTS = ("TopK", "__cub$DeviceRadixSort", "ApproxTopK")


@dataclasses.dataclass(frozen=True)
class Findings:
    """Counts of one program; 0 is best everywhere.

    Attributes:
      weight_copy_bytes: of kernels that are written once more, in the same or fewer bits, because
        a product wants another layout or several as one.
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
    block = list(within(module, loop))
    restated = [
        found
        for computation, instruction in executed(module, module.entry)
        if (found := _restated(flow, computation, instruction)) is not None
    ]
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
            each.opcode in ("sort", "topk") or each.target.startswith(_SORTS) for _, each in block
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
    if instruction.opcode == "copy-start" and new.space:
        return None  # It is fetched to where it is read, as it is.
    weights = [flow.weight(computation, name) for name in instruction.operands]
    shapes = [weight.shapes[0] for weight in weights if weight is not None]
    largest = max(shapes, key=lambda shape: shape.size, default=None)
    return (largest, new) if largest is not None and new.size >= largest.size else None


def _over_rows(instruction: Instruction) -> bool:
    """A loop that is none in the traced program, whose own loops are named so."""
    ends = instruction.op_name.rpartition("/")[2]
    return instruction.opcode == "while" and ends not in ("while", "scan")


def _on_vector_unit(flow: Flow, computation: Computation, instruction: Instruction) -> bool:
    """A fusion that is made for a product of a kernel, and has none in it."""
    if instruction.opcode != "fusion":
        return False
    (inside,) = flow.module.called(instruction, "calls")
    parts = [*inside, *_nested(flow.module, inside)]
    if any(each.opcode in _PRODUCTS for each in parts):
        return False
    made_for = any(
        each.op_name.endswith("dot_general") and each.opcode in ("multiply", "reduce")
        for each in parts
    )
    names = instruction.operands
    return made_for and any(flow.weight(computation, name) is not None for name in names)


def _nested(module: Module, computation: Computation) -> list[Instruction]:
    """What fusions inside of a fusion are made of."""
    found = []
    for instruction in computation:
        if instruction.opcode == "fusion":
            (inside,) = module.called(instruction, "calls")
            found += [*inside, *_nested(module, inside)]
    return found
