"""Rules for logits, and how they follow rows and the guesses of a block.

A rule is an automaton: what it makes of the logits depends on its state, and its state on the
tokens so far. So position i of a block has another state than position i + 1, and each node of a
tree has its own: that of its parent, one token on. Rules come before temperature, top-k and top-p,
in plain decoding, in drafts, in verification, and for the token that a block adds: all of them
follow one distribution. Only what was emitted moves the state of a row.

Shapes: B rows, N guesses, V tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.arguments import whole
from specdec.core.pytrees import pytree, static_field
from specdec.core.reductions import max_last
from specdec.core.residuals import take_position
from specdec.core.topology import AnyTopology
from specdec.rules.spelling import Words
from specdec.types import AnyArray, Prompt, RuleStates

_LONGEST = 160  # Characters of what is quoted in a message.
RuleState = Any  # Of one rule: a pytree of arrays.
# RuleStates: a tuple with one for each rule, leaves [B, ...]; () without rules.


@pytree
class RowStart:
    """A row before its first token, as a rule sees it.

    Attributes:
      prefix: [P] the decoder's first tokens: a start token and what is forced behind it, or a
        decoder-only model's prompt.
      prefix_length: how many of them the row has.
      limit: tokens that it may emit.
      size: the most tokens that a rule sees behind the prefix, those of guesses included.
    """

    prefix: Int[AnyArray, " p"]
    prefix_length: Int[AnyArray, ""]
    limit: Int[AnyArray, ""]
    size: int = static_field()


class OpenRule(Protocol):
    """A rule for a target's logits: a pytree, whose arrays are traced. Methods are of one row."""

    def init(self, row: RowStart) -> RuleState:
        """State before the first token. Shapes may depend on ``row``'s, in their last axes."""
        ...

    def allow(self, state: RuleState, logits: Float[Array, " v"]) -> Float[Array, " v"]:
        """The logits of the next token, as the rule has them; -inf for what must not follow."""
        ...

    def advance(self, state: RuleState, token: Int[Array, ""]) -> RuleState:
        """The state one token on. Tokens may also be such that it would not have allowed."""
        ...


@dataclasses.dataclass(frozen=True)
class RuleTarget:
    """The target and the limits that a rule is opened for.

    Attributes:
      vocab_size: V.
      eos_ids: the tokens of which each ends a row.
      continues: whether texts are prefixes that outputs continue (decoder-only models).
      max_decode_len: tokens that an output may have.
      vocabulary: None where there is none.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    continues: bool
    max_decode_len: int
    vocabulary: Words | None = None

    def token(self, name: str, token: int) -> int:
        """A token id, checked.

        Raises:
          ValueError: it is not in the vocabulary.
        """
        if not 0 <= token < self.vocab_size:
            raise ValueError(
                f"{name} has token {token}, which is outside the vocabulary [0, {self.vocab_size})."
            )
        return token

    def mask(self, tokens: Sequence[int]) -> Bool[np.ndarray, " v"]:
        """[V], true for these tokens."""
        found = np.zeros(self.vocab_size, bool)
        found[list(tokens)] = True
        return found


def sequences_of(name: str, given: Any) -> tuple[str | tuple[int, ...], ...]:
    """Strings and lists of token ids, checked.

    Raises:
      ValueError: naming the rule: no list of them, none, or an empty one.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"{name} needs a list of strings or lists of token ids, got {given!r}.")
    found: list[str | tuple[int, ...]] = []
    for each in given:
        if isinstance(each, str):
            try:
                each.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"{name} has {each!r}, which is no text: {error}.") from None
        else:
            if isinstance(each, bytes) or not isinstance(each, Iterable):
                raise ValueError(
                    f"Each of {name}'s sequences is a string or a list of token ids, got {each!r}."
                )
            each = tuple(whole(f"each token of {name}", token, 0) for token in each)
        found.append(each)
    if not found or not all(len(each) for each in found):
        raise ValueError(f"{name} needs one sequence or more, none of them empty.")
    return tuple(found)


@runtime_checkable
class Rule(Protocol):
    """A rule as users give it: small, printable, equal to its like."""

    def open(self, target: RuleTarget) -> OpenRule:
        """The rule for a target.

        Raises:
          ValueError: it cannot be a rule for that target.
        """
        ...


class OwnRule:
    """Base of rules that users write: a frozen dataclass with the methods of :class:`OpenRule`.

    Its fields are static: they are part of the program. It is checked when it is opened.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        jax.tree_util.register_static(cls)

    def open(self, target: RuleTarget) -> OpenRule:
        """The rule for a target: this one."""
        del target
        return self  # pyright: ignore[reportReturnType]


def cut(text: str) -> str:
    """A text short enough for a message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


Rules = tuple[OpenRule, ...]


def start(rules: Rules, prompt: Prompt, limit: Int[AnyArray, ""] | int, size: int) -> RuleStates:
    """The states of rows before their first token.

    Args:
      limit: tokens that a row may emit.
      size: see :class:`RowStart`.
    """

    def of_row(rule):
        def init(prefix, length):
            return jax.tree.map(settled, rule.init(RowStart(prefix, length, limit, size)))

        return jax.vmap(init)

    limit = jnp.asarray(limit, jnp.int32)
    prefix, lengths = jnp.asarray(prompt.prefix), jnp.asarray(prompt.prefix_lengths)
    return tuple(of_row(rule)(prefix, lengths) for rule in rules)


def allowed(rules: Rules, states: RuleStates, logits: Float[Array, "*b v"]) -> Float[Array, "*b v"]:
    """The logits as rules have them, in their order.

    Args:
      states: leaves [*b, ...].
    """
    found = logits
    for rule, state in zip(rules, states, strict=True):
        found = _mapped(rule.allow, logits.ndim - 1)(state, found).astype(logits.dtype)
    return found


def adjusted(
    rules: Rules, states: RuleStates, logits: Float[Array, "*b v"]
) -> tuple[Float[Array, "*b v"], Bool[Array, "*b"], Bool[Array, "*b"]]:
    """:func:`allowed`; where that is no token at all; and where it is :func:`unsound`.

    In both places logits are as they were: a guess that is not allowed has a distribution behind
    it, too, which no output follows.
    """
    found = allowed(rules, states, logits)
    largest = max_last(found)
    nothing, broken = largest == -jnp.inf, unsound(largest, logits)
    return jnp.where((nothing | broken)[..., None], logits, found), nothing, broken


def unsound(largest: Float[Array, "*b"], logits: Float[Array, "*b v"]) -> Bool[Array, "*b"]:
    """Where rules made NaN or +inf of logits that had neither.

    Args:
      largest: of what they made of ``logits``.
    """
    return ~(largest < jnp.inf) & (max_last(logits) < jnp.inf)  # NaN is not less.


def advanced(rules: Rules, states: RuleStates, tokens: Int[Array, "*b"]) -> RuleStates:
    """The states one token on; leaves are [*b, ...]."""

    def of_row(rule):
        def advance(state, token):
            return jax.tree.map(settled, rule.advance(state, token), state)

        return _mapped(advance, tokens.ndim)

    return tuple(of_row(rule)(state, tokens) for rule, state in zip(rules, states, strict=True))


def settled(leaf: Any, before: Array | None = None) -> Array:
    """A leaf of a state as an array of a dtype that stays: a loop carries it.

    Args:
      before: the same leaf one token before; a Python number takes its dtype where that holds it.
    """
    array = jnp.asarray(leaf)
    if before is not None and array.weak_type and jnp.result_type(array, before) == before.dtype:
        return jnp.asarray(array, before.dtype)
    return jnp.asarray(array, array.dtype)


def at(states: RuleStates, nodes: AnyArray | int) -> RuleStates:
    """States of some nodes, [B, N, ...], or of one node, out of [B, M, ...]."""
    return jax.tree.map(lambda leaf: leaf[:, nodes], states)


def taken(states: RuleStates, index: Int[Array, "b ..."]) -> RuleStates:
    """States at ``index``, [B] or [B, N], out of [B, M, ...]. No row looks into another's."""
    if index.ndim == 1:
        return jax.tree.map(lambda leaf: take_position(leaf, index), states)
    return jax.tree.map(
        lambda leaf: jnp.take_along_axis(
            leaf, index.reshape(*index.shape, *[1] * (leaf.ndim - 2)), axis=1,
            mode="promise_in_bounds",
        ), states,
    )  # fmt: skip


def where(rows: Bool[Array, " b"], new: RuleStates, old: RuleStates) -> RuleStates:
    """``new`` for some rows, ``old`` for all others."""
    return jax.tree.map(
        lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
    )


def at_nodes(
    rules: Rules, states: RuleStates, tokens: Int[Array, "b n"], topology: AnyTopology
) -> RuleStates:
    """The states of a block: before its first guess, and behind each guess, [B, N + 1, ...].

    Args:
      states: before the block.
    """
    root = jax.tree.map(lambda leaf: leaf[:, None], states)
    if not rules or not tokens.shape[1]:
        return root
    if topology.is_chain:

        def step(state, token):
            state = advanced(rules, state, token)
            return state, state

        _, behind = jax.lax.scan(step, states, tokens.T)
        return _joined(root, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), behind))
    # Behind pass i all nodes of the first i levels are right, for their parents were before.
    parents = jnp.broadcast_to(jnp.asarray(topology.parents) + 1, tokens.shape)
    found = jax.tree.map(lambda leaf: jnp.repeat(leaf, tokens.shape[1] + 1, axis=1), root)
    for _ in range(topology.depth):
        behind = advanced(rules, taken(found, parents), tokens)
        found = _joined(root, behind)
    return found


def _joined(root: RuleStates, behind: RuleStates) -> RuleStates:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), root, behind)


def _mapped(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    for _ in range(axes):
        function = jax.vmap(function)
    return function
