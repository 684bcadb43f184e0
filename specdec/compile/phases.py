"""A compiled decode, part by part: the part before its loop, and each phase of one block."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from specdec.compile.costs import Cost, cost_of
from specdec.compile.flow import Flow
from specdec.compile.hlo import Computation, Instruction, Module

# The engine's, in its ``jax.named_scope``s; of a draft also the loop of its steps after the first
# call, which a compiler may have unrolled.
PHASES = ("draft/while", "draft", "target", "verify", "commit")
STEPS, OTHER = PHASES[0], "other"  # The latter for what stands outside of them.
_PHASE = re.compile(rf"/({'|'.join(PHASES)})(?=/|$)")
Branch = Literal["cheapest", "dearest"]


@dataclasses.dataclass(frozen=True)
class Phases:
    """A decode's costs.

    Attributes:
      start: all before the loop of blocks: encoder, prefill, what is made of weights.
      block: one pass of that loop, by phase.
    """

    start: Cost
    block: dict[str, Cost]


def decode_loop(module: Module) -> Instruction:
    """The loop of blocks: of the entry's loops the one with the largest body.

    Raises ValueError if the program has no loop.
    """
    loops = [each for each in module.entry if each.opcode == "while"]
    if not loops:
        raise ValueError("This program has no loop, so it is no decode.")
    return max(loops, key=lambda loop: sum(1 for _ in within(module, loop)))


def within(module: Module, loop: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """All instructions of a loop's body, and of the loops and branches in it."""
    for called in module.called(loop, "body"):
        yield from executed(module, called)


def executed(
    module: Module, computation: Computation, stop: Instruction | None = None
) -> Iterator[tuple[Computation, Instruction]]:
    """All instructions that a computation runs one by one: not those that fusions are made of.

    Args:
      stop: a loop whose inside is left out.
    """
    for instruction in computation:
        yield computation, instruction
        if instruction is stop:
            continue
        if instruction.opcode in ("while", "conditional", "call"):
            for called in module.called(instruction):
                yield from executed(module, called)


class Reader:
    """Adds up a module's costs.

    Args:
      kernels: launches of each instruction by name; empty for a TPU.
      draft_trips: passes of a loop of draft steps where the compiler does not know them. Of all
        others that it does not know one pass counts.
      branch: which branch of a conditional counts.
    """

    def __init__(
        self, module: Module, kernels: Mapping[str, int] = {}, draft_trips: int | None = None,
        branch: Branch = "cheapest",
    ):  # fmt: skip
        self.module, self.kernels, self.flow = module, kernels, Flow(module)
        self._draft_trips, self._branch = draft_trips, branch

    def phases(self) -> Phases:
        """Raises ValueError if the program has no loop."""
        main = decode_loop(self.module)
        start = Cost.total(self._costs(self.module.entry, "start", skip=main).values())
        (body,), (condition,) = (self.module.called(main, role) for role in ("body", "condition"))
        block = self._costs(body, None)
        ends = Cost.total(self._costs(condition, OTHER).values())
        block[OTHER] = block.get(OTHER, Cost()) + ends
        return Phases(start, block)

    def _costs(
        self, computation: Computation, phase: str | None, skip: Instruction | None = None
    ) -> dict[str, Cost]:
        """Cost of each phase; all in ``phase`` if it is given."""
        phases = {} if phase else _phases_of(computation)
        found: dict[str, Cost] = {}
        for instruction in computation:
            if instruction is skip:
                continue
            where = phase or phases[instruction.name]
            found[where] = found.get(where, Cost()) + self._cost(computation, instruction, where)
        return found

    def _cost(self, computation: Computation, instruction: Instruction, phase: str) -> Cost:
        inside = [
            Cost.total(self._costs(called, phase).values())
            for called in self.module.called(instruction)
            if instruction.opcode in ("while", "conditional", "call")
        ]
        own = cost_of(self.module, computation, instruction, self.kernels)
        if instruction.opcode == "while":
            trips = self.flow.trips(computation, instruction)
            if trips is None and phase == STEPS:
                trips = self._draft_trips
            return own + Cost.total(inside).scaled(1 if trips is None else trips)
        if instruction.opcode == "conditional":
            choose = min if self._branch == "cheapest" else max
            return own + choose(inside, key=lambda cost: (cost.cycles, cost.bytes))
        return own + Cost.total(inside)


def _phases_of(computation: Computation) -> dict[str, str]:
    """Phase of each instruction: that of its op_name, else of its user, else of the one before.

    A copy that the compiler began early, to hide it, belongs to the phase that needs it, which may
    be one of the next block.
    """
    found: dict[str, str] = {}
    for users in (computation.users, _users_in_next_pass(computation)):
        for instruction in reversed(list(computation)):
            named = _PHASE.search(instruction.op_name)
            needed = (found.get(user.name) for user in users.get(instruction.name, ()))
            phase = named[1] if named else next((each for each in needed if each), None)
            if phase:
                found.setdefault(instruction.name, phase)
    last = OTHER
    for instruction in computation:
        last = found.setdefault(instruction.name, last)
    return found


def _users_in_next_pass(computation: Computation) -> dict[str, list[Instruction]]:
    """Users of each instruction, with those of the next pass of a loop."""
    users = {name: list(each) for name, each in computation.users.items()}
    if computation.root.opcode == "tuple" and 0 in computation.parameters:
        for part in computation.users[computation.parameters[0].name]:
            if part.opcode == "get-tuple-element":
                users[computation.root.operands[part.index]].append(part)
    return users
