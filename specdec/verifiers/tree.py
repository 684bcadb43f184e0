"""Parts that verifiers of trees share: siblings, walking down a tree, and the verdict.

Nodes are counted as in the scored block: 0 is the token before the draft, i + 1 is guess i.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.reductions import sum_last
from specdec.core.residuals import guess_counts, residual_weights, take_position
from specdec.types import Distribution, Draft, PointMass, RandomSource, Verdict


@pytree
class Siblings:
    """The guesses that follow one node of each row, in order; K of them, or fewer."""

    guesses: Int[Array, "b k"]  # Their indices in the draft.
    exist: Bool[Array, "b k"]


@pytree
class Path:
    """A row's way down the tree."""

    nodes: Int[Array, "b d1"]  # Of the scored block; the first ``length`` + 1 are on the way.
    length: Int[Array, " b"]  # Guesses on it.

    @property
    def end(self) -> Int[Array, " b"]:
        """[B] the last node on it."""
        return take_position(self.nodes, self.length)

    def then(self, guess: Int[Array, " b"], found: Bool[Array, " b"]) -> Path:
        """This path with one guess more in the rows where it was found."""
        slots = jnp.arange(self.nodes.shape[1])
        new = found[:, None] & (slots == self.length[:, None] + 1)
        nodes = jnp.where(new, guess[:, None] + 1, self.nodes)
        return Path(nodes, self.length + found)


def start_of(draft: Draft) -> Path:
    """The token before the draft, and no guess."""
    batch = len(draft.tokens)
    nodes = jnp.zeros((batch, draft.topology.depth + 1), jnp.int32)
    return Path(nodes, jnp.zeros((batch,), jnp.int32))


def siblings_after(draft: Draft, node: Int[Array, " b"]) -> Siblings:
    """The guesses whose parent is ``node``; filler is no guess."""
    size = draft.tokens.shape[1]
    parents = jnp.asarray(draft.topology.parents) + 1
    child = parents == node[:, None]
    if draft.num_guesses is not None:
        child &= jnp.arange(size) < guess_counts(draft)[:, None]
    ranks = jnp.asarray(draft.topology.ranks())[..., None, :]
    each = child[:, None] & (ranks == jnp.arange(draft.topology.siblings)[:, None])  # [B, K, N]
    return Siblings(jnp.argmax(each, axis=2), jnp.any(each, axis=2))


def tokens_of(draft: Draft, siblings: Siblings) -> Int[Array, "b k"]:
    """[B, K]; of a sibling that does not exist, anything."""
    return jnp.take_along_axis(draft.tokens, siblings.guesses, axis=1)


def follow(draft: Draft, wanted: Callable[[Path, int], Int[Array, " b"]]) -> Path:
    """Path down the tree while the token that is wanted behind it is among the guesses.

    Args:
      wanted: (path, level) -> the token that is to follow the path's end.
    """
    path = start_of(draft)
    going = jnp.ones((len(draft.tokens),), bool)
    for level in range(draft.topology.depth):
        siblings = siblings_after(draft, path.end)
        same = tokens_of(draft, siblings) == wanted(path, level)[:, None]
        same &= siblings.exist
        going &= jnp.any(same, axis=1)
        path = path.then(take_position(siblings.guesses, jnp.argmax(same, axis=1)), going)
    return path


def path_to(draft: Draft, guess: Int[Array, " b"]) -> Path:
    """Path from the token before the draft to a guess; -1 for that token itself."""
    batch, size = draft.tokens.shape
    family = jnp.broadcast_to(jnp.asarray(draft.topology.ancestors()), (batch, size, size))
    depths = jnp.broadcast_to(jnp.asarray(draft.topology.depths()), (batch, size))
    on_path = take_position(family, jnp.maximum(guess, 0)) & (guess >= 0)[:, None]
    at_level = on_path[:, None] & (depths[:, None] == jnp.arange(draft.topology.depth)[:, None])
    nodes = jnp.where(jnp.any(at_level, axis=2), jnp.argmax(at_level, axis=2) + 1, 0)
    return Path(jnp.pad(nodes, ((0, 0), (1, 0))), jnp.sum(on_path, axis=1))


@pytree
class Judged:
    """Recursive rejection of one node's siblings."""

    # Probability that none of the first k + 1 is accepted, given their tokens.
    survival: Float[Array, "b k"]
    residual: Float[Array, "b v"]  # The distribution of the next token if none is.
    # Probability that one is accepted, each one's expected over its own token.
    acceptance: Float[Array, " b"]


def judge(p: Float[Array, "b v"], draft: Draft, siblings: Siblings) -> Judged:
    """Accepts sibling x with min(1, p(x) / q(x)), else p becomes norm(max(p - q, 0)); and so on.

    q of each is what it was drawn from given the earlier ones, so siblings may be independent,
    without replacement or from several drafts, and what comes out follows p. Source: SpecInfer
    (Miao et al. 2024); Sequoia (Chen et al. 2024).
    """
    tokens = tokens_of(draft, siblings)
    none = jnp.ones((len(p),))
    accepted, survival = jnp.zeros((len(p),)), []
    for k in range(tokens.shape[1]):
        exists, x = siblings.exist[:, k], tokens[:, k]
        q = None if draft.probs is None else take_position(draft.probs, siblings.guesses[:, k])
        p_x, q_x = _at(p, x), 1.0 if q is None else _at(q, x)
        overlap = p_x if q is None else sum_last(jnp.minimum(p, q))
        accepted += jnp.where(exists, none * overlap, 0.0)
        ratio = jnp.where(q_x > 0, p_x / jnp.where(q_x > 0, q_x, 1.0), 0.0)
        none = none * jnp.where(exists, 1 - jnp.minimum(1.0, ratio), 1.0)
        survival.append(none)
        weights = residual_weights(p, q, x)
        p = jnp.where(exists[:, None], weights / sum_last(weights)[:, None], p)
    return Judged(jnp.stack(survival, axis=1), p, accepted)


def _at(weights: Float[Array, "b v"], token: Int[Array, " b"]) -> Float[Array, " b"]:
    return jnp.take_along_axis(weights, token[:, None], axis=1)[:, 0]


def first_accepted(
    survival: Float[Array, "b k"], uniform: Float[Array, " b"]
) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
    """The first of a row of tests that is passed, and whether one is, from one uniform in [0, 1).

    Test k is passed with probability 1 - survival[k] / survival[k - 1], independently of the
    others. As 1 - uniform is in (0, 1], probability 1 always accepts and probability 0 never does.
    """
    passed = survival < 1 - uniform[:, None]
    return jnp.argmax(passed, axis=1), jnp.any(passed, axis=1)


def levels(
    target: Distribution, draft: Draft, path: Path
) -> tuple[Float[Array, "b d"], Int[Array, " b"]]:
    """Probability that recursive verification accepts a guess at each level of a path.

    So that alpha means the same under all verifiers. A level is examined if its node has guesses.

    Returns:
      the probabilities [B, D], and how many levels of a row were examined.
    """
    probs = []
    for level in range(draft.topology.depth):
        node = path.nodes[:, level]
        siblings = siblings_after(draft, node)
        probs.append(_acceptance(target, draft, node, siblings))
    examined = path.length + jnp.any(siblings_after(draft, path.end).exist, axis=1)
    return jnp.stack(probs, axis=1), examined


def _acceptance(
    target: Distribution, draft: Draft, node: Int[Array, " b"], siblings: Siblings
) -> Float[Array, " b"]:
    if not isinstance(target, PointMass):
        p = take_position(target, node)
        if draft.probs is not None:
            return judge(p, draft, siblings).acceptance
        tokens = tokens_of(draft, siblings)
        before = jnp.tril(tokens[:, :, None] == tokens[:, None, :], -1)  # Repeated ones.
        counts = siblings.exist & ~jnp.any(before, axis=2)
        return jnp.sum(jnp.where(counts, jnp.take_along_axis(p, tokens, axis=1), 0.0), axis=1)
    wanted = take_position(target.tokens, node)
    same = siblings.exist & (tokens_of(draft, siblings) == wanted[:, None])
    if draft.probs is None:
        return jnp.any(same, axis=1).astype(jnp.float32)
    # Of each sibling, if none before it is the token.
    first = jnp.cumsum(same, axis=1) - same == 0
    q = jax.vmap(lambda probs, guesses, token: probs[guesses, token])(
        draft.probs, siblings.guesses, wanted
    )
    return jnp.sum(jnp.where(siblings.exist & first, q, 0.0), axis=1)


def tree_verdict(
    draft: Draft, path: Path, final: Int[Array, " b"], acceptance: Float[Array, "b d"],
    examined: Int[Array, " b"],
) -> Verdict:  # fmt: skip
    """The guesses on a path, and then ``final``."""
    guesses = jnp.maximum(path.nodes[:, 1:] - 1, 0)
    tokens = jnp.take_along_axis(draft.tokens, guesses, axis=1)
    tokens = jnp.pad(tokens, ((0, 0), (0, 1)))
    slots = jnp.arange(tokens.shape[1])
    tokens = jnp.where(slots == path.length[:, None], final[:, None], tokens)
    return Verdict(tokens, path.length + 1, path.length, path.nodes, acceptance, examined)


class TreeVerifier(abc.ABC):
    """Base of verifiers of trees, and so of chains as well.

    At temperature 0 the target's own tokens are followed, as far down the tree as they are among
    the guesses.
    """

    lossless = True
    needs_probs = False
    trees = True

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        """See :meth:`specdec.verifiers.base.Verifier.__call__`."""
        if not isinstance(target, PointMass):
            return self.sampled(random, target, draft)

        def own(path, level=0):
            return take_position(target.tokens, path.end)

        path = follow(draft, own)
        return tree_verdict(draft, path, own(path), *levels(target, draft, path))

    @abc.abstractmethod
    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        """The same above temperature 0."""
