"""What a GPU's program launches: XLA's list of its kernels and graphs, which is not in the HLO."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

_LINE = re.compile(r"^( *)(\d+): (k\w+)")
_NAMED = re.compile(
    r'profile_annotation: "([^"]*)"\s*(?:thunk_id: (\d+)\s*)?\}\s*thunk_kind: "(\w+)"'
)
# They launch nothing themselves.
_CONTROL = {"kCommandBuffer", "kWhile", "kConditional", "kSequential"}
_WAITS = re.compile(r"Done$|Send|Recv|kWaitForStreams")


@dataclasses.dataclass(frozen=True)
class Thunks:
    """The launches of a program.

    Attributes:
      kernels: of each HLO instruction by name.
      graphs: that the host launches: a graph inside of another, or of a loop in one, is none.
      loops_outside: loops whose every pass the host launches.
    """

    kernels: Counter[str]
    graphs: int
    loops_outside: int


def read(folder: Path) -> Thunks:
    """What XLA wrote into a folder (``xla_dump_to``).

    Raises FileNotFoundError if there is no list of thunks in it.
    """
    (sequence,) = (
        list(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
        or list(folder.glob("*thunk_sequence.txt"))
        or _missing(folder)
    )[:1]
    names = {}
    for file in folder.glob("*thunk_metadata.txt"):
        for name, number, _ in _NAMED.findall(file.read_text()):
            names[int(number or 0)] = name
    return parse(sequence.read_text(), names)


def _missing(folder: Path) -> list[Path]:
    raise FileNotFoundError(f"The GPU compiler wrote no list of thunks to {folder}.")


def parse(text: str, names: dict[int, str]) -> Thunks:
    """Args: names: the HLO instruction of each thunk's number."""
    kernels: Counter[str] = Counter()
    graphs = loops = 0
    within: int | None = None  # How far the graph is indented that a line is in.
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        depth, number, kind = len(match[1]), int(match[2]), match[3]
        if within is not None and depth <= within:
            within = None
        if kind == "kCommandBuffer" and within is None:
            graphs, within = graphs + 1, depth
        elif kind == "kWhile" and within is None:
            loops += 1
        elif kind not in _CONTROL and not _WAITS.search(kind):
            kernels[names.get(number, "")] += 1
    return Thunks(kernels, graphs, loops)
