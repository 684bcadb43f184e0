"""The systems a benchmark knows: one file for each library, several methods in some.

Each file has a class ``System(workload, method, options)``, of one library with one method, with

    decode(rows, lengths) -> a list of token ids for each row (without the decoder's start token)
    versions: names and versions of what ran

``rows`` are row numbers of the workload; ``lengths`` is how many tokens to emit for each of them,
or is None where rows end by themselves, as beams do. ``options`` has the number of "threads"; for
T5X, "t5x_path"; and, where later processes are to use what this one made of the checkpoint, "kept",
a folder for it. An ImportError makes the system absent. Modules import their own library only, and
none above ``System`` that takes long and that only some methods need.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.decoding.beam_rules import Rule


@dataclasses.dataclass(frozen=True)
class Entry:
    """Place of a system, and its abilities."""

    module: str  # In this package.
    method: str  # Passed to ``System``.
    needs: tuple[str, ...] = ()  # Packages whose absence makes the system absent.
    converts: tuple[str, ...] = ()  # More of them, to convert a checkpoint only.
    keeps: str = ""  # What a process keeps on disk for later ones; nothing if empty.
    # Whether it does the workload's own arithmetic, so that its tokens must be the same.
    exact: bool = True
    like: str = ""  # System whose tokens it must have, if it runs; by default the first of all.
    at_once: int | None = None  # Rows of a batch, if not the workload's.
    own: bool = False  # Whether it is specdec: samples, forces acceptance.
    drawn: bool = False  # Whether it can draw random weights itself, so that they need no files.
    beams: tuple[Rule, ...] = ()  # Rules by which it searches beams; none if it does not.
    listens: bool = False  # Whether it transcribes recordings.

    @property
    def guesses(self) -> bool:
        """Whether it is specdec's speculative decoding."""
        guesses = self.own and self.method.startswith("speculative")
        return guesses and not self.beams and not self.listens


_HUGGINGFACE = ("torch", "transformers")
_own = functools.partial(Entry, "specdec_loop", keeps="programs", own=True)
_ct2 = functools.partial(
    Entry, "ct2", needs=("ctranslate2",), converts=_HUGGINGFACE, keeps="conversion"
)
_listening = functools.partial(
    Entry, "specdec_transcribing", keeps="programs", own=True, listens=True
)
_EXACT, _BFLOAT16 = "specdec autoregressive, exact", "transformers greedy, bfloat16"
_RULES: tuple[Rule, ...] = ("t5x", "huggingface")

SYSTEMS = {
    "specdec autoregressive": _own("autoregressive", drawn=True),
    "specdec autoregressive, float32":
        _own("autoregressive_float32"),
    "specdec autoregressive, int8":
        _own("autoregressive_int8", exact=False),
    "specdec speculative": _own("speculative", drawn=True),
    "specdec speculative, Quantized":
        _own("speculative_quantized", drawn=True),
    "specdec speculative, int8": _own("speculative_int8", exact=False),
    "specdec autoregressive, 8 at once": _own("autoregressive", at_once=8),
    _EXACT: _own("autoregressive_exact"),
    f"{_EXACT}, 8 at once": _own("autoregressive_exact", like=_EXACT, at_once=8),
    "specdec speculative, Quantized, exact": _own("speculative_exact", like=_EXACT),
    "specdec tree, Quantized, exact": _own("tree_exact", like=_EXACT),
    "transformers greedy": Entry("huggingface", "greedy", _HUGGINGFACE),
    _BFLOAT16: Entry("huggingface", "greedy_bfloat16", _HUGGINGFACE, exact=False),
    f"{_BFLOAT16}, 8 at once": Entry(
        "huggingface", "greedy_bfloat16", _HUGGINGFACE, exact=False, like=_BFLOAT16, at_once=8
    ),
    "transformers greedy, torch int8":
        Entry("huggingface", "greedy_int8", _HUGGINGFACE, exact=False),
    "transformers assisted": Entry("huggingface", "assisted", _HUGGINGFACE),
    "transformers assisted, constant gamma":
        Entry("huggingface", "assisted_constant", _HUGGINGFACE),
    "CTranslate2 float32": _ct2("float32"),
    "CTranslate2 int8": _ct2("int8", exact=False),
    "CTranslate2 int8_float32": _ct2("int8_float32", exact=False),
    "T5X": Entry("t5x", "greedy"),
    "specdec beams": _own("autoregressive", beams=_RULES),
    "specdec beams, float32":
        _own("autoregressive_float32", beams=_RULES),
    "specdec speculative beams":
        _own("speculative", beams=_RULES),
    "transformers beams": Entry("huggingface", "beams", _HUGGINGFACE, beams=("huggingface",)),
    "CTranslate2 beams, float32": _ct2("float32", beams=("huggingface",)),
    "T5X beams": Entry("t5x", "beams", beams=("t5x",)),
    "specdec transcribing": _listening("autoregressive"),
    "specdec transcribing, Quantized":
        _listening("speculative"),
    "specdec transcribing, overlapping windows":
        _listening("autoregressive, overlapping"),
    "specdec transcribing, 8 overlapping windows at once":
        _listening("autoregressive, overlapping, 8"),
    "specdec transcribing, Quantized, 8 overlapping windows at once":
        _listening("speculative, overlapping, 8"),
    "transformers transcribing":
        Entry("huggingface_transcribing", "greedy", _HUGGINGFACE, listens=True),
    # Its features differ in the last bits, and so may its words.
    "faster-whisper float32": Entry(
        "faster_whisper_transcribing", "float32", ("faster_whisper",), _HUGGINGFACE,
        keeps="conversion", exact=False, listens=True,
    ),
}  # fmt: skip
