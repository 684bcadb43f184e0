"""A target with what its checkpoint says of texts and outputs, which its network does not know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from specdec.models.base import LoadedModel
from specdec.rules.base import Rule, Words


@dataclasses.dataclass(frozen=True)
class LoadedTarget(LoadedModel):
    """A loaded model that outputs can follow.

    Attributes:
      vocabulary: the words of its tokens; None where there is none.
      rules: those for logits that its checkpoint sets.
      refused: why "sampled" decoding or "beams" cannot follow its checkpoint's other options.
      first_token: what each output begins with, such as its language, whatever the rules; None for
        what the model makes of it.
    """

    vocabulary: Words | None = None
    rules: tuple[Rule, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    first_token: int | None = None
