"""Several drafts at once: their trees side by side, joined at the last emitted token."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.residuals import take_position
from specdec.core.topology import MOST_NODES, AnyTopology, Topology, TracedTopology
from specdec.drafters.base import Drafter, DraftSpec, OpenDraft, Opening, TreeShapes
from specdec.drafters.model import draft_spec
from specdec.drafters.shape import Chain, Shape
from specdec.types import (
    Draft,
    DrafterState,
    Params,
    Prompt,
    Purpose,
    RandomSource,
    RuleStates,
    SamplingConfig,
    Start,
    Verdict,
)


@dataclasses.dataclass(frozen=True)
class _Share:
    """A part of the numbers, so that no two drafts have any in common."""

    whole: RandomSource
    total: int
    first: int

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        uniforms = self.whole.uniforms(purpose, self.total)
        return uniforms[:, self.first : self.first + count]


@dataclasses.dataclass(frozen=True)
class MergedDrafter:
    """The trees of several drafters as one; the first drafter's guesses are judged first.

    Drafts are independent of each other, so each node's q given its earlier siblings is its own
    drafter's. A point mass beside guesses that were drawn is q = one-hot. Parameters are a tuple of
    the drafters'. A drafter whose guesses are not the accepted ones observes what was emitted
    as if it had guessed nothing right, so it has to take in any number of tokens.

    Source: Miao et al. 2024, "SpecInfer", section 3 (merge-based trees).
    """

    drafters: tuple[Drafter, ...]
    vocab_size: int

    @property
    def topology(self) -> AnyTopology:
        shapes = [drafter.topology for drafter in self.drafters]
        fixed = [shape.parents for shape in shapes if isinstance(shape, Topology)]
        if len(fixed) == len(shapes):
            return Topology(_joined(fixed))
        nowhere = jnp.zeros((0, sum(shape.size for shape in shapes)), jnp.int32)
        return self._traced(nowhere)

    def _traced(self, parents: Array) -> TracedTopology:
        shapes = [drafter.topology for drafter in self.drafters]
        siblings = max(sum(_roots(shape) for shape in shapes), *(s.siblings for s in shapes))
        return TracedTopology(parents, max(shape.depth for shape in shapes), siblings)

    @property
    def _firsts(self) -> list[int]:
        """Each drafter's first node."""
        sizes = [drafter.topology.size for drafter in self.drafters]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def init(
        self, params: tuple[Params, ...], prompt: Prompt, max_len: int, target: Start
    ) -> tuple[DrafterState, ...]:
        pairs = zip(self.drafters, params, strict=True)
        return tuple(drafter.init(own, prompt, max_len, target) for drafter, own in pairs)

    def propose(
        self, params: tuple[Params, ...], state: tuple[DrafterState, ...], random: RandomSource,
        rules: RuleStates,
    ) -> tuple[Draft, tuple[DrafterState, ...]]:  # fmt: skip
        total = self.topology.size
        proposed = [
            drafter.propose(own, each, self._share(random, total, first), rules)
            for drafter, own, each, first in zip(
                self.drafters, params, state, self._firsts, strict=True
            )
        ]
        drafts = [draft for draft, _ in proposed]
        tokens = jnp.concatenate([draft.tokens for draft in drafts], axis=1)
        topology = self.topology
        if isinstance(topology, TracedTopology):
            parents = [
                jnp.where(rows >= 0, rows + first, -1)
                for draft, first in zip(drafts, self._firsts, strict=True)
                for rows in [
                    jnp.broadcast_to(jnp.asarray(draft.topology.parents), draft.tokens.shape)
                ]
            ]
            topology = self._traced(jnp.concatenate(parents, axis=1))
        probs = None
        if any(draft.probs is not None for draft in drafts):
            probs = jnp.concatenate([self._dense(draft) for draft in drafts], axis=1)
        # A draft without guesses in this block has filler: known tokens, as good as point masses.
        return Draft(tokens, probs, topology), tuple(after for _, after in proposed)

    def _share(self, random: RandomSource, total: int, first: int) -> RandomSource:
        return _Share(random, total, first)

    def _dense(self, draft: Draft) -> Float[Array, "b n v"]:
        if draft.probs is not None:
            return draft.probs
        return jax.nn.one_hot(draft.tokens, self.vocab_size, dtype=jnp.float32)

    def observe(
        self, state: tuple[DrafterState, ...], verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> tuple[DrafterState, ...]:
        first_node = take_position(verdict.path, jnp.minimum(verdict.num_accepted, 1))
        after: list[Any] = []
        for drafter, each, first in zip(self.drafters, state, self._firsts, strict=True):
            size, depth = drafter.topology.size, drafter.topology.depth
            own = (first_node > first) & (first_node <= first + size)
            path = jnp.where(verdict.path > 0, verdict.path - first, 0)[:, : depth + 1]
            own_verdict = dataclasses.replace(
                verdict, path=path, num_accepted=jnp.where(own, verdict.num_accepted, 0)
            )
            after.append(drafter.observe(each, own_verdict, states))
        return tuple(after)


def _joined(parents: list[tuple[int, ...]]) -> tuple[int, ...]:
    found: list[int] = []
    for each in parents:
        first = len(found)
        found += [parent + first if parent >= 0 else -1 for parent in each]
    return tuple(found)


def _roots(shape: AnyTopology) -> int:
    """Guesses that follow the last emitted token, at most."""
    return shape.parents.count(-1) if isinstance(shape, Topology) else shape.siblings


@dataclasses.dataclass(frozen=True)
class Merged:
    """Several drafts, each of which grows the whole tree; all trees are verified as one.

    Attributes:
      drafts: two or more; a draft model by its name, as in :func:`specdec.load_pair`.
    """

    drafts: Sequence[str | os.PathLike | DraftSpec]

    def __post_init__(self):
        if not isinstance(self.drafts, list | tuple) or len(self.drafts) < 2:
            raise ValueError(f"Merged needs two drafts or more, got {self.drafts!r}.")
        for each in self.drafts:
            draft_spec("Each draft of Merged", each)
        object.__setattr__(self, "drafts", tuple(self.drafts))

    def __str__(self) -> str:
        return " + ".join(map(str, self.drafts))

    def open(self, opening: Opening) -> OpenDraft:
        opened = [draft_spec("draft", each).open(opening) for each in self.drafts]
        shapes: list[TreeShapes] = []
        for spec, each in zip(self.drafts, opened, strict=True):
            if each.trees is None:
                raise ValueError(f"{spec} drafts chains only; it cannot be a part of {self}.")
            shapes.append(each.trees)
        vocab_size = opening.target.model.vocab_size

        def make(shape: Shape, catch_up: int) -> Drafter:
            del catch_up
            if isinstance(shape, Chain):
                raise ValueError(
                    f"{self} is a tree: give tree=(1, 1, 1) for a chain of three from each draft, "
                    "instead of gamma."
                )
            if len(opened) * shape.size > MOST_NODES:
                raise ValueError(
                    f"A tree has at most {MOST_NODES} nodes; {len(opened)} drafts with a {shape} "
                    f"each have {len(opened) * shape.size}."
                )
            every = tuple(each.make(shape, shape.levels + 1) for each in opened)
            return MergedDrafter(every, vocab_size)

        def params(sampling: SamplingConfig) -> tuple[Params, ...]:
            return tuple(each.params(sampling) for each in opened)

        model = next((each.model for each in opened if each.model is not None), None)
        weights = tuple(each.weights for each in opened)
        most = min(each.most_guesses for each in opened)
        fewest = min(shapes, key=get_args(TreeShapes).index)
        return OpenDraft(
            make, params, weights, model, most, chain=False, trees=fewest, independent=False,
            encodes=any(each.encodes for each in opened),
            follows=any(each.follows for each in opened),
        )  # fmt: skip
