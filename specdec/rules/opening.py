"""Opens rules for a target, and checks them once, by shapes alone.

Inside a decode a rule is vmapped over rows and nodes, scanned along chains and carried by a loop,
each of which would report a mistake in words of its own. Here its methods are traced as a decode
traces them, before anything else, for two rows of different sizes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specdec.rules.base import OpenRule, Own, RowStart, Rule, RuleTarget, settled

_METHODS = ("init", "allow", "advance")
_LONGEST = 160  # Characters of what is quoted in a message.
# JAX's errors for what needs a value while only shapes are known.
_NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_ONE = jax.tree.structure(0)
_TOKEN = jax.ShapeDtypeStruct((), jnp.int32)
_Leaf = jax.ShapeDtypeStruct | str  # An array's shape; for anything else, its type's name.


def opened(rule: Rule, target: RuleTarget) -> OpenRule:
    """The rule for a target, with its arrays on the device: a trie may have millions of numbers.

    The last ones are kept, so that the next call with the same object need not open it again.

    Raises:
      ValueError: see :meth:`Rule.open`; or a method of the rule fails or gives what it must not.
    """
    return _opened(_Itself(rule), target)


class _Itself:
    """A rule, equal to itself alone: to compare tries takes as long as to open them."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __hash__(self) -> int:
        return id(self.rule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.rule is self.rule


@functools.lru_cache(maxsize=16)
def _opened(itself: _Itself, target: RuleTarget) -> OpenRule:
    name = type(itself.rule).__name__
    try:
        rule = itself.rule.open(target)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(_failed(f"{name}.open", error)) from error
    own = isinstance(rule, Own)
    methods = rule.rule if own else rule
    owner = type(methods).__name__
    for method in _METHODS:
        if not callable(getattr(methods, method, None)):
            subject = owner if own else f"{name}.open gives a {owner}, which"
            raise ValueError(
                f"{subject} has no method {method}: a rule has init(row), allow(state, logits) and "
                "advance(state, token)."
            )
    if own:
        try:
            hash(methods)  # A value that changes would leave programs of the old one.
        except TypeError as error:
            raise ValueError(
                f"{owner} must be a frozen dataclass whose fields are numbers, strings or tuples "
                f"of them: {_line(error)}."
            ) from error
    leaves, tree = jax.tree.flatten(rule)
    for i, leaf in enumerate(leaves):
        try:
            leaves[i] = settled(leaf)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}.open gives a {type(leaf).__name__}; it must give a pytree of arrays: "
                "register its class with jax.tree_util.register_dataclass."
            ) from error
    _check(owner, tree, tuple(map(_shape, leaves)), target.vocab_size, target.max_decode_len)
    return tree.unflatten(leaves)


@functools.lru_cache(maxsize=64)
def _check(
    name: str, tree: Any, leaves: tuple[_Leaf, ...], vocab_size: int, max_decode_len: int
) -> None:
    """Checks a rule of this structure; what was checked is kept, for others of the same.

    Raises:
      ValueError: naming the class and the method, what it gives and what it must give.
    """
    methods = _Methods(name, tree, leaves)
    first, other = (methods.init(size, max_decode_len + size) for size in (1, 16))
    if first.form != other.form:
        raise ValueError(
            f"{name}.init gives {first} for one row and {other} for one with a longer prefix; only "
            "sizes of arrays may differ."
        )
    logits = jax.ShapeDtypeStruct((vocab_size,), jnp.float32)
    for state in (first, other):
        found = methods.call("allow", state, logits)
        if not found.is_logits(vocab_size):
            raise ValueError(
                f"{name}.allow gives {found}; it must give the next token's logits, a float array "
                f"of shape [{vocab_size}], such as jnp.where(mask, logits, -jnp.inf)."
            )
        after = methods.call("advance", state, _TOKEN)
        if after != state:
            raise ValueError(
                f"{name}.advance gives {after}; it must give a state like init's, which is {state}:"
                " the same tree, shapes and dtypes."
            )


class _Given:
    """A method's values for a row: a pytree's structure, and its leaves as shapes."""

    def __init__(self, given: Any, like: Any = None):
        self.leaves: list[_Leaf]
        leaves, self.tree = jax.tree.flatten(given)
        if self.tree == jax.tree.structure(like):
            pairs = zip(leaves, jax.tree.leaves(like), strict=True)
            self.leaves = [_shape(leaf, before) for leaf, before in pairs]
        else:
            self.leaves = [_shape(leaf) for leaf in leaves]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Given) and self.tree == other.tree and self.leaves == other.leaves

    def __str__(self) -> str:
        leaves = iter(each if isinstance(each, str) else _array_type(each) for each in self.leaves)
        form = str(self.tree).removeprefix("PyTreeDef(").removesuffix(")")
        return _cut(re.sub(r"\*", lambda star: next(leaves, star[0]), form))

    @property
    def form(self) -> Any:
        """Structure, dtypes and numbers of axes: all but the sizes."""
        return self.tree, [
            each if isinstance(each, str) else (each.dtype, each.ndim) for each in self.leaves
        ]

    def is_logits(self, vocab_size: int) -> bool:
        """Whether it is one float array of the vocabulary's size."""
        if self.tree != _ONE:
            return False
        (leaf,) = self.leaves
        if isinstance(leaf, str):
            return False
        return leaf.shape == (vocab_size,) and jnp.issubdtype(leaf.dtype, jnp.floating)


class _Methods:
    """A rule's methods, of shapes.

    Attributes:
      name: the class's, for messages.
      tree, leaves: the rule.
    """

    def __init__(self, name: str, tree: Any, leaves: Sequence[_Leaf]):
        self.name, self.tree, self.leaves = name, tree, leaves

    def init(self, prefix: int, size: int) -> _Given:
        """The state of a row whose prefix has so many tokens."""
        tokens = jax.ShapeDtypeStruct((prefix,), jnp.int32)

        def init(rule, tokens, length, limit):
            return _Given(rule.init(RowStart(tokens, length, limit, size)))

        found = self._traced("init", init, tokens, _TOKEN, _TOKEN)
        for leaf in found.leaves:
            if isinstance(leaf, str):
                raise ValueError(
                    f"{self.name}.init gives {found}; it must give a state, a pytree of arrays and "
                    "numbers."
                )
        return found

    def call(self, method: str, state: _Given, argument: jax.ShapeDtypeStruct) -> _Given:
        """Values of another method, for a state and the token or the logits."""

        def call(rule, leaves, argument):
            before = state.tree.unflatten(leaves)
            return _Given(getattr(rule, method)(before, argument), before)

        return self._traced(method, call, state.leaves, argument)

    def _traced(self, method: str, call: Any, *given: Any) -> _Given:
        found = []

        def traced(leaves, *given):
            found.append(call(self.tree.unflatten(leaves), *given))

        for _ in range(2):  # Rows, and their nodes.
            traced = jax.vmap(traced, in_axes=(None, *[0] * len(given)), axis_size=2)
        given = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((2, 2, *leaf.shape), leaf.dtype), given
        )
        try:
            jax.eval_shape(traced, self.leaves, *given)
        except Exception as error:
            raise ValueError(_failed(f"{self.name}.{method}", error)) from error
        return found[-1]


def _shape(leaf: Any, before: Any = None) -> _Leaf:
    """Shape of an array or a number; for anything else, the name of its type."""
    try:
        array = settled(leaf, before)
    except (TypeError, ValueError):
        return f"a {type(leaf).__name__}"
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _array_type(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"


def _failed(method: str, error: Exception) -> str:
    failed = f"{method} fails with {type(error).__name__}: {_line(error)}"
    if not isinstance(error, _NEED_VALUES):
        return f"{failed}."
    return (
        f"{failed}. A rule's values are traced by JAX: use jax.numpy instead of NumPy, and "
        "jnp.where instead of if."
    )


def _line(error: Exception) -> str:
    return _cut(str(error).strip().partition("\n")[0].rstrip("."))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
