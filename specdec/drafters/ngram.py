"""The n-gram drafter: a lookup in tables of counts, at almost no cost."""

from __future__ import annotations

import dataclasses
import os

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec.core.fields import Count, PathName, checked
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams, OpenDraft, Opening
from specdec.drafters.growing import grow
from specdec.drafters.ngram_tables import NgramTables, distribution, likeliest, of_order
from specdec.drafters.shape import Shape, fixed_shape
from specdec.types import (
    Draft,
    Prompt,
    Purpose,
    RandomSource,
    RuleStates,
    SamplingConfig,
    Start,
    Verdict,
)

_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


@dataclasses.dataclass(frozen=True)
class NgramDrafter:
    """Drafts from an n-gram model of the decoder's tokens alone.

    Source: Leviathan et al. 2023, section 3.6 (negligible-cost approximation models). Parameters
    are :class:`~specdec.drafters.base.DraftParams` tables. Its state is the last n - 1 tokens,
    [B, n - 1]; a prefix that is shorter is preceded by its first token. At temperature 0 guesses
    are point masses on the likeliest tokens; else they are drawn from the tables' distribution,
    siblings without replacement unless ``independent``, which is returned as q.
    """

    topology: Topology
    order: int  # n, that of the tables.
    independent: bool = False

    def init(self, params: DraftParams, prompt: Prompt, max_len: int, target: Start) -> Array:
        del params, max_len, target
        at = prompt.prefix_lengths[:, None] + jnp.arange(1 - self.order, 0)
        return jnp.take_along_axis(prompt.prefix, jnp.maximum(at, 0), axis=1)

    def propose(
        self, params: DraftParams, state: Array, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, Array]:
        del rules  # Tables are no logits.
        tables, greedy, tree = params.weights, params.sampling.greedy, self.topology
        batch, size = len(state), tree.size
        uniforms = None if greedy else random.uniforms(Purpose.PROPOSAL, size)
        family = tree.ancestors()

        def distributions_after(nodes, tokens, states):
            """Distributions after each node: its context is emitted tokens, then ancestors."""
            del states
            distributions = []
            for node in nodes:
                ancestors = np.flatnonzero(family[node]) if node >= 0 else []
                context = jnp.concatenate([state, tokens[:, ancestors]], axis=1)
                distributions.append(distribution(tables, context[:, len(ancestors) :]))
            return jnp.stack(distributions, axis=1)

        if greedy and tree.is_chain:  # The tables know it without a look at all tokens.
            tokens, probs = self._likeliest_chain(tables, state), None
        else:
            tokens, probs = grow(tree, batch, distributions_after, uniforms, self.independent)
        return Draft(tokens, probs, tree, independent=self.independent and not greedy), state

    def _likeliest_chain(self, tables: NgramTables, context: Array) -> Array:
        tokens = []
        for _ in range(self.topology.size):
            tokens.append(likeliest(tables, context))
            context = jnp.concatenate([context, tokens[-1][:, None]], axis=1)[:, 1:]
        return jnp.stack(tokens, axis=1)

    def observe(self, state: Array, verdict: Verdict, states: Float[Array, "b d1 w"]) -> Array:
        del states
        history = jnp.concatenate([state, verdict.tokens], axis=1)
        at = verdict.num_emitted[:, None] + jnp.arange(state.shape[1])
        return jnp.take_along_axis(history, at, axis=1)


@checked(named=True)
class Ngram:
    """N-gram tables that ``scripts/train.py`` made of a task's outputs; see ``configs/training``.

    Attributes:
      path: a file, a directory that holds ngrams.safetensors, or a bundled pair's name.
      order: use contexts of at most ``order - 1`` tokens (1: unigram, 2: bigram); None for all
        that the tables have.
    """

    path: PathName
    order: Count | None = None

    def __str__(self) -> str:
        name = "n-gram" if self.order is None else _NAMES.get(self.order, f"{self.order}-gram")
        return f"{name} of {os.fspath(self.path)}"

    def open(self, opening: Opening) -> OpenDraft:
        tables = opening.ngrams(os.fspath(self.path))
        if self.order is not None:
            tables = of_order(tables, self.order)

        def params(sampling: SamplingConfig) -> DraftParams:
            if sampling not in (SamplingConfig(0.0), SamplingConfig(1.0)):
                raise ValueError(
                    "n-gram drafts are drawn at temperature 0 or 1 without top-k and top-p, not "
                    f"with {sampling}; set the draft's own temperature to 0 or 1 (the output's "
                    "distribution is the target's all the same)."
                )
            return DraftParams(tables, sampling.traced())

        def make(shape: Shape, catch_up: int) -> NgramDrafter:
            del catch_up
            topology = fixed_shape(shape, "n-gram tables")
            return NgramDrafter(topology, tables.order, shape.independent)

        return OpenDraft(make, params, tables)
