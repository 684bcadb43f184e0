"""The n-gram drafter: a lookup in tables of counts, at almost no cost."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.randomness import draw
from specdec.drafters.base import Chain, OpenDraft, Opening, Sampled, never_stopping
from specdec.drafters.ngram_tables import distribution, likeliest, of_order
from specdec.types import (
    Draft,
    Encoded,
    Prompt,
    Purpose,
    RandomSource,
    SamplingConfig,
    Verdict,
)

_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


@dataclasses.dataclass(frozen=True)
class NgramDrafter(Chain):
    """Drafts from an n-gram model of the decoder's tokens alone.

    Source: Leviathan et al. 2023, section 3.6 (negligible-cost approximation models). Parameters
    are :class:`~specdec.drafters.base.Sampled` tables. Its state is the last n - 1 tokens,
    [B, n - 1]; a prefix that is shorter is preceded by its first token. At temperature 0 guesses
    are point masses on the likeliest token; else they are drawn from the tables' distribution,
    which is returned as q.
    """

    gamma: int
    order: int  # n, that of the tables.

    def init(self, params: Sampled, prompt: Prompt, max_len: int, target: Encoded) -> Array:
        del params, max_len, target
        at = prompt.prefix_lengths[:, None] + jnp.arange(1 - self.order, 0)
        return jnp.take_along_axis(prompt.prefix, jnp.maximum(at, 0), axis=1)

    def propose(self, params: Sampled, state: Array, random: RandomSource) -> tuple[Draft, Array]:
        context, tokens, probs = state, [], []
        tables, greedy = params.weights, params.sampling.greedy
        if not greedy:
            uniforms = random.uniforms(Purpose.PROPOSAL, self.gamma)
        for i in range(self.gamma):
            if greedy:
                token = likeliest(tables, context)
            else:
                probs.append(distribution(tables, context))
                token = draw(probs[-1], uniforms[:, i])
            tokens.append(token)
            context = jnp.concatenate([context, token[:, None]], axis=1)[:, 1:]
        q = jnp.stack(probs, axis=1) if probs else None
        return Draft(jnp.stack(tokens, axis=1), q, self.topology), state

    def observe(self, state: Array, verdict: Verdict, hidden: Float[Array, "b n1 d"]) -> Array:
        del hidden
        history = jnp.concatenate([state, verdict.tokens], axis=1)
        at = verdict.num_emitted[:, None] + jnp.arange(state.shape[1])
        return jnp.take_along_axis(history, at, axis=1)


@dataclasses.dataclass(frozen=True)
class Ngram:
    """N-gram tables that ``scripts/train.py`` made of a task's outputs; see ``configs/training``.

    Attributes:
      path: a file, a directory that holds ngrams.safetensors, or a bundled pair's name.
      order: use contexts of at most ``order - 1`` tokens (1: unigram, 2: bigram); None for all
        that the tables have.
    """

    path: str
    order: int | None = None

    def __str__(self) -> str:
        name = "n-gram" if self.order is None else _NAMES.get(self.order, f"{self.order}-gram")
        return f"{name} of {self.path}"

    def open(self, opening: Opening) -> OpenDraft:
        tables = opening.ngrams(self.path)
        if self.order is not None:
            tables = of_order(tables, self.order)

        def params(sampling: SamplingConfig) -> Sampled:
            if sampling not in (SamplingConfig(0.0), SamplingConfig(1.0)):
                raise ValueError(
                    "n-gram drafts are drawn at temperature 0 or 1 without top-k and top-p, not "
                    f"with {sampling}; set the draft's own temperature to 0 or 1 (the output's law "
                    "is the target's all the same)."
                )
            return Sampled(tables, sampling.traced())

        make = never_stopping("An n-gram", lambda gamma: NgramDrafter(gamma, tables.order))
        return OpenDraft(make, params, tables)
