"""What ends an output beside EOS: strings in its text, and tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.texts import TextTable, text_table
from specdec.types import AnyArray, Prompt


@pytree
class Stops:
    """Ends a row behind the first token with which its text has a string, or behind given tokens.

    :mod:`specdec.rules.texts` says what the text is.

    Attributes:
      tokens: [V] whether each one ends a row.
      text: finds the strings; None without any.
    """

    tokens: Bool[AnyArray, " v"]
    text: TextTable | None

    def start(self, prompt: Prompt) -> Int[Array, " b"]:
        """The states of rows before their first token. What is before the output does not count."""
        batch = prompt.batch_size
        if self.text is None:
            return jnp.zeros((batch,), jnp.int32)
        lengths = jnp.asarray(prompt.prefix_lengths)
        begin = self.text.begin
        return jax.vmap(lambda prefix, length: begin(RowStart(prefix, length, length, 0)))(
            jnp.asarray(prompt.prefix), lengths
        )

    def along(
        self, states: Int[Array, " b"], tokens: Int[Array, "b t"]
    ) -> tuple[Int[Array, "b t"], Bool[Array, "b t"]]:
        """The states behind each token of rows, and whether it ends its row."""
        ends = jnp.asarray(self.tokens)[tokens]
        text = self.text
        if text is None:
            return jnp.zeros_like(tokens), ends

        def step(states, tokens):
            states = text.behind(states, tokens)
            return states, states

        _, behind = jax.lax.scan(step, states, tokens.T)
        return behind.T, ends | (text.found == behind.T)


def open_stops(stop: Sequence[str | int], target: RuleTarget) -> Stops | None:
    """What ends rows for a target; None where nothing is given.

    Raises:
      ValueError: a token outside the vocabulary, or a string that
        :func:`~specdec.rules.texts.text_table` refuses.
    """
    return _opened(tuple(stop), target) if stop else None


@functools.lru_cache(maxsize=16)
def _opened(stop: tuple[str | int, ...], target: RuleTarget) -> Stops:
    strings = [each for each in stop if isinstance(each, str)]
    tokens = [target.token("stop", each) for each in stop if not isinstance(each, str)]
    text = text_table("stop", strings, target) if strings else None
    return jax.tree.map(jnp.asarray, Stops(target.mask(tokens), text))


def cut_before(text: str, stop: Sequence[str | int]) -> str:
    """The text up to the string that was found first, without it."""
    ends = [
        (text.find(each) + len(each), text.find(each))
        for each in stop
        if isinstance(each, str) and each in text
    ]
    return text[: min(ends)[1]] if ends else text
