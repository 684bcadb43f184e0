"""The systems a benchmark knows: one file for each library, several methods in some.

Each file has a class ``System(workload, method, options)``, of one library with one method, with

    decode(rows, lengths) -> a list of token ids for each row (without the decoder's start token)
    versions: names and versions of what ran

``rows`` are row numbers of the workload; ``lengths`` is how many tokens to emit for each of them,
or is None where rows end by themselves, as beams do. ``options`` has the number of "threads" and,
for T5X, "t5x_path". An ImportError makes the system absent.
"""

from __future__ import annotations

import dataclasses

from specdec.decoding.beam_rules import Rule


@dataclasses.dataclass(frozen=True)
class Entry:
    """Place of a system, and its abilities."""

    module: str  # In this package.
    method: str  # Passed to ``System``.
    needs: tuple[str, ...] = ()  # Packages whose absence makes the system absent.
    # Whether it does the workload's own arithmetic, so that its tokens must be the same.
    exact: bool = True
    own: bool = False  # Whether it is specdec: samples, forces acceptance.
    drawn: bool = False  # Whether it can draw random weights itself, so that they need no files.
    beams: tuple[Rule, ...] = ()  # Rules by which it searches beams; none if it does not.

    @property
    def guesses(self) -> bool:
        """Whether it is specdec's speculative decoding."""
        return self.own and self.method.startswith("speculative") and not self.beams


_HUGGINGFACE = ("torch", "transformers")
_CT2 = ("ctranslate2", *_HUGGINGFACE)
_RULES: tuple[Rule, ...] = ("t5x", "huggingface")

SYSTEMS = {
    "specdec autoregressive": Entry("specdec_loop", "autoregressive", own=True, drawn=True),
    "specdec autoregressive, float32":
        Entry("specdec_loop", "autoregressive_float32", own=True),
    "specdec autoregressive, int8":
        Entry("specdec_loop", "autoregressive_int8", exact=False, own=True),
    "specdec speculative": Entry("specdec_loop", "speculative", own=True, drawn=True),
    "specdec speculative, Quantized":
        Entry("specdec_loop", "speculative_quantized", own=True, drawn=True),
    "specdec speculative, int8": Entry("specdec_loop", "speculative_int8", exact=False, own=True),
    "transformers greedy": Entry("huggingface", "greedy", _HUGGINGFACE),
    "transformers greedy, bfloat16":
        Entry("huggingface", "greedy_bfloat16", _HUGGINGFACE, exact=False),
    "transformers greedy, torch int8":
        Entry("huggingface", "greedy_int8", _HUGGINGFACE, exact=False),
    "transformers assisted": Entry("huggingface", "assisted", _HUGGINGFACE),
    "transformers assisted, constant gamma":
        Entry("huggingface", "assisted_constant", _HUGGINGFACE),
    "CTranslate2 float32": Entry("ct2", "float32", _CT2),
    "CTranslate2 int8": Entry("ct2", "int8", _CT2, exact=False),
    "CTranslate2 int8_float32": Entry("ct2", "int8_float32", _CT2, exact=False),
    "T5X": Entry("t5x", "greedy"),
    "specdec beams": Entry("specdec_loop", "autoregressive", own=True, beams=_RULES),
    "specdec beams, float32":
        Entry("specdec_loop", "autoregressive_float32", own=True, beams=_RULES),
    "specdec speculative beams":
        Entry("specdec_loop", "speculative", own=True, beams=_RULES),
    "transformers beams": Entry("huggingface", "beams", _HUGGINGFACE, beams=("huggingface",)),
    "CTranslate2 beams, float32": Entry("ct2", "float32", _CT2, beams=("huggingface",)),
    "T5X beams": Entry("t5x", "beams", beams=("t5x",)),
}  # fmt: skip
