"""A draft for every checkpoint: the model itself, with the weights of its decoder in few bits."""

from __future__ import annotations

from typing import Annotated

import jax

from specdec.core.arguments import path_name
from specdec.core.fields import checked
from specdec.drafters.base import OpenDraft, Opening
from specdec.drafters.model import model_draft
from specdec.models.products.quantized import GROUP, check_bits


@checked(named=True)
class Quantized:
    """The target's own decoder in few bits, or another model's.

    A decode step is bound by reading weights, and few bits are read in less time. The target's copy
    shares its embedding, and what it makes of the inputs: nothing is encoded twice. Its cache is
    its own. How weights are rounded: :mod:`specdec.models.products.quantized`.

    Attributes:
      bits: 8, with a scale for each output of a kernel; or 4, with one for each group of inputs.
      group: inputs of a group, in 4 bits; None for 16.
      of: a draft model, as in :func:`specdec.load_pair`; None for the target.

    Raises:
      ValueError: bits or a group that are not offered, or no model.
    """

    bits: int = 8
    group: int | None = None
    of: Annotated[str, path_name] | None = None

    def __post_init__(self):
        check_bits(self.bits, self.group)

    def __str__(self) -> str:
        return f"{self.of or 'target'} in int{self.bits}"

    def open(self, opening: Opening) -> OpenDraft:
        loaded = opening.target if self.of is None else opening.model(self.of)
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded.params)):
            raise ValueError(
                "Quantized needs the target's weights when the draft is loaded, and here they come "
                "later: name a checkpoint of the target, Quantized(of=...)."
            )
        return model_draft(loaded.quantized(self.bits, self.group or GROUP, self.of is None))
