"""The shape of heads of blockwise decoding and of Medusa."""

from __future__ import annotations

from typing import Literal

from specdec.core.arguments import whole
from specdec.core.fields import Count, Natural, checked

Kind = Literal["blockwise", "medusa"]
KINDS: tuple[Kind, ...] = ("blockwise", "medusa")


@checked()
class HeadsConfig:
    """The shape of a target's heads.

    Attributes:
      kind: "blockwise", one layer of F hidden units whose outputs are all heads'; or "medusa",
        two square layers for each head, which has no F.
      count: K.
      width: D.
      hidden_units: F; 0 with "medusa".

    Raises:
      ValueError: a value out of range.
    """

    kind: Kind
    count: Count
    width: Count
    hidden_units: Natural = 0

    def __post_init__(self):
        whole("hidden_units", self.hidden_units, *((1,) if self.kind == "blockwise" else (0, 0)))
