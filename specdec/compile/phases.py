"""A compiled decode, part by part: the part before its loop, and each phase of one block."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from specdec.compile.costs import Cost, cost_of
from specdec.compile.flow import trips
from specdec.compile.hlo import Computation, Instruction, Module

# The engine's, in its ``jax.named_scope``s; of a draft also the loop of its steps after the first
# call, which a compiler may have unrolled.
PHASES = ("draft/while", "draft", "target", "verify", "commit")
STEPS, OTHER = PHASES[0], "other"  # The latter for what stands outside of them.
_PHASE = re.compile(rf"/({'|'.join(PHASES)})(?=/|$)")
Branch = Literal["cheapest", "dearest"]
_CONTROL = ("while", "conditional", "call")


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
    return max(loops, key=lambda loop: sum(1 for _ in within(loop)))


def within(loop: Instruction) -> Iterator[Instruction]:
    """All instructions of a loop's body, and of the loops and branches in it."""
    for called in loop.calls("body"):
        yield from executed(called)


def executed(computation: Computation, stop: Instruction | None = None) -> Iterator[Instruction]:
    """All instructions that a computation runs one by one: not those that fusions are made of.

    Args:
      stop: a loop whose inside is left out.
    """
    for instruction in computation:
        yield instruction
        if instruction.opcode in _CONTROL and instruction is not stop:
            for called in instruction.calls():
                yield from executed(called)


@dataclasses.dataclass(frozen=True)
class Reader:
    """Adds up a module's costs.

    Attributes:
      kernels: launches of each instruction by name; empty for a TPU.
      draft_trips: passes of a loop of draft steps where the compiler does not know them. Of all
        others that it does not know one pass counts.
      branch: which branch of a conditional counts.
    """

    module: Module
    kernels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    draft_trips: int | None = None
    branch: Branch = "cheapest"

    def phases(self) -> Phases:
        """Raises ValueError if the program has no loop."""
        main = decode_loop(self.module)
        start = Cost.total(self._costs(self.module.entry, "start", skip=main).values())
        (body,), (condition,) = (main.calls(role) for role in ("body", "condition"))
        block = self._costs(body, None)
        ends = Cost.total(self._costs(condition, OTHER).values())
        block[OTHER] = block.get(OTHER, Cost()) + ends
        return Phases(start, block)

    def _costs(
        self, computation: Computation, phase: str | None, skip: Instruction | None = None
    ) -> dict[str, Cost]:
        """Cost of each phase; all in ``phase`` if it is given."""
        phases = {} if phase else phases_of(computation)
        found: dict[str, Cost] = {}
        for instruction in computation:
            if instruction is not skip:
                where = phase or phases[instruction]
                found[where] = found.get(where, Cost()) + self._cost(instruction, where)
        return found

    def _cost(self, instruction: Instruction, phase: str) -> Cost:
        own = cost_of(instruction, self.kernels)
        if instruction.opcode not in _CONTROL:
            return own
        inside = [Cost.total(self._costs(called, phase).values()) for called in instruction.calls()]
        if instruction.opcode == "conditional":
            choose = min if self.branch == "cheapest" else max
            return own + choose(inside, key=lambda cost: (cost.cycles, cost.bytes))
        times = 1
        if instruction.opcode == "while":
            times = trips(instruction)
            if times is None:
                times = self.draft_trips if phase == STEPS and self.draft_trips else 1
        return own + Cost.total(inside).scaled(times)


def phases_of(computation: Computation) -> dict[Instruction, str]:
    """Phase of each instruction: that of its op_name, else of its user, else of the one before.

    A copy that the compiler began early, to hide it, belongs to the phase that needs it, which may
    be one of the next block.
    """
    found: dict[Instruction, str] = {}
    for later in ({}, _users_in_next_pass(computation)):
        for instruction in reversed(list(computation)):
            named = _PHASE.search(instruction.op_name)
            users = [*instruction.users, *later.get(instruction, ())]
            needed = (found.get(user) for user in users)
            phase = named[1] if named else next((each for each in needed if each), None)
            if phase:
                found.setdefault(instruction, phase)
    last = OTHER
    for instruction in computation:
        last = found.setdefault(instruction, last)
    return found


def _users_in_next_pass(computation: Computation) -> dict[Instruction, list[Instruction]]:
    """Users that an instruction of a loop's body has in the next pass."""
    users: dict[Instruction, list[Instruction]] = {}
    if computation.root.opcode == "tuple" and 0 in computation.parameters:
        for part in computation.parameters[0].users:
            if part.opcode == "get-tuple-element":
                users.setdefault(computation.root.operands[part.index], []).append(part)
    return users
