"""T5X's own decode compiled for chips that are not there: a part of a reproduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.checkpoints.architectures import EncoderDecoder
from specdec.studies import compiled_t5x
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept_of

RESULT = "compiled.json"


@dataclasses.dataclass(frozen=True)
class CompiledT5X:
    """T5X's networks of some sizes, each compiled for some chips.

    Attributes:
      name: short, for tables and directories.
      t5x_path: a checkout of google-research/t5x.
      targets: shapes by name; activations and parameters are in bfloat16.
      chips: TPUs by name, each with the targets to compile for it.
      networks: T5X's, as :data:`specdec.studies.compiled_t5x.NETWORKS` names them.
      param_dtype: of parameters.
    """

    name: str
    t5x_path: str
    targets: Mapping[str, EncoderDecoder]
    chips: Mapping[str, Sequence[str]]
    networks: Sequence[str] = tuple(compiled_t5x.NETWORKS)
    input_len: int = 64
    max_decode_len: int = 128
    param_dtype: str = "bfloat16"

    def __post_init__(self):
        for chip, names in self.chips.items():
            if missing := [name for name in names if name not in self.targets]:
                raise ValueError(f"chips[{chip!r}] names {missing[0]!r}, which targets has not.")

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """The file of each result, and what makes it or reads it there."""
        for chip, names in self.chips.items():
            for target in names:
                for network in self.networks:
                    index = (slug(self.name), "t5x", slug(chip), slug(target), slug(network))
                    made = (chip, target, network)
                    yield index, lambda directory, made=made: self._piece(directory, *made)

    def _piece(self, directory: Path, chip: str, target: str, network: str) -> dict[str, Any]:
        config = dataclasses.replace(self.targets[target], dtype="bfloat16")
        lengths: dict[str, Any] = {
            "input_len": self.input_len, "max_decode_len": self.max_decode_len,
            "param_dtype": self.param_dtype,
        }  # fmt: skip
        settings = {
            "chip": chip, "target": target, "network": network, "d_model": config.d_model,
            "num_encoder_layers": config.num_encoder_layers,
            "num_decoder_layers": config.num_decoder_layers, "num_heads": config.num_heads,
            "d_ff": config.d_ff, "vocab_size": config.vocab_size, **lengths,
        }  # fmt: skip

        def make() -> dict[str, Any]:
            return compiled_t5x.report(self.t5x_path, config, network, chip, **lengths)

        return kept_of(directory / RESULT, settings, make)
