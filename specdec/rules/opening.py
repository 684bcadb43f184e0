"""Opens rules for a target, and checks them once, by shapes alone.

Inside a decode a rule is vmapped over rows and nodes, scanned along chains and carried by a loop,
each of which would report a mistake in words of its own. Here its methods are traced as a decode
traces them, before anything else, for two rows of different sizes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specdec.rules.base import OpenRule, OwnRule, RowStart, Rule, RuleTarget, cut, settled

_METHODS = ("init", "allow", "advance")
# JAX's errors for what needs a value while only shapes are known.
_NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


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
    own, owner = isinstance(rule, OwnRule), type(rule).__name__
    for method in _METHODS:
        if not callable(getattr(rule, method, None)):
            subject = owner if own else f"{name}.open gives a {owner}, which"
            raise ValueError(
                f"{subject} has no method {method}: a rule has init(row), allow(state, logits) and "
                "advance(state, token)."
            )
    if own:
        try:
            hash(rule)  # A value that changes would leave programs of the old one.
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
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    _check(owner, tree, shapes, target.vocab_size, target.max_decode_len)
    return tree.unflatten(leaves)


@functools.lru_cache(maxsize=64)
def _check(
    name: str, tree: Any, leaves: tuple[jax.ShapeDtypeStruct, ...], vocab_size: int,
    max_decode_len: int,
) -> None:  # fmt: skip
    """Checks a rule of this structure; what was checked is kept, for others of the same.

    Raises:
      ValueError: naming the class and the method, what it gives and what it must give.
    """
    rule = tree.unflatten(leaves)

    def init(prefix: int) -> Any:
        def call(rule, tokens, length, limit):
            return rule.init(RowStart(tokens, length, limit, max_decode_len + prefix))

        tokens = jax.ShapeDtypeStruct((prefix,), jnp.int32)
        return _shapes(f"{name}.init", call, rule, tokens, _TOKEN, _TOKEN)

    def allow(rule, state, logits):
        return rule.allow(state, logits)

    def advance(rule, state, token):
        after = rule.advance(state, token)
        if jax.tree.structure(after) == jax.tree.structure(state):
            return jax.tree.map(settled, after, state)
        return after

    first, other = init(1), init(16)
    if _form(first) != _form(other):
        raise ValueError(
            f"{name}.init gives {_shown(first)} for one row and {_shown(other)} for one with a "
            "longer prefix; only sizes of arrays may differ."
        )
    logits = jax.ShapeDtypeStruct((vocab_size,), jnp.float32)
    for state in (first, other):
        found = _shapes(f"{name}.allow", allow, rule, state, logits)
        one = isinstance(found, jax.ShapeDtypeStruct) and found.shape == (vocab_size,)
        if not one or not jnp.issubdtype(found.dtype, jnp.floating):
            raise ValueError(
                f"{name}.allow gives {_shown(found)}; it must give the next token's logits, a "
                f"float array of shape [{vocab_size}], such as jnp.where(mask, logits, -jnp.inf)."
            )
        after = _shapes(f"{name}.advance", advance, rule, state, _TOKEN)
        if jax.tree.flatten(after) != jax.tree.flatten(state):
            raise ValueError(
                f"{name}.advance gives {_shown(after)}; it must give a state like init's, which is "
                f"{_shown(state)}: the same tree, shapes and dtypes."
            )


def _shapes(method: str, call: Callable[..., Any], rule: OpenRule, *given: Any) -> Any:
    """Shapes of what a method gives for a node; it is traced for rows, and their nodes."""

    def called(*args):
        return jax.tree.map(settled, call(*args))

    for _ in range(2):
        called = jax.vmap(called, in_axes=(None, *[0] * len(given)), axis_size=2)
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, 2, *leaf.shape), leaf.dtype), given)
    try:
        found = jax.eval_shape(called, rule, *given)
    except Exception as error:
        raise ValueError(_failed(method, error)) from error
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), found)


def _form(state: Any) -> Any:
    """Structure, dtypes and numbers of axes: all but the sizes."""
    leaves, tree = jax.tree.flatten(state)
    return tree, [(leaf.dtype, leaf.ndim) for leaf in leaves]


def _shown(given: Any) -> str:
    """A pytree of shapes, such as (int32[], bool[8])."""
    leaves, tree = jax.tree.flatten(given)
    shapes = (f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" for leaf in leaves)
    form = str(tree).removeprefix("PyTreeDef(").removesuffix(")")
    return cut(re.sub(r"\*", lambda star: next(shapes, star[0]), form))


def _failed(method: str, error: Exception) -> str:
    failed = f"{method} fails with {type(error).__name__}: {_line(error)}"
    if not isinstance(error, _NEED_VALUES):
        return f"{failed}."
    return (
        f"{failed}. A rule's values are traced by JAX: use jax.numpy instead of NumPy, and "
        "jnp.where instead of if."
    )


def _line(error: Exception) -> str:
    return cut(str(error).strip().partition("\n")[0].rstrip("."))
