"""The model drafter: a smaller language model run gamma steps."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.arguments import path_name
from specdec.core.fields import Share, checked
from specdec.core.pytrees import pytree
from specdec.core.randomness import draw_from
from specdec.core.reductions import softmax_parts
from specdec.core.residuals import guess_counts, one_of, take
from specdec.drafters.base import ChainDrafter, Drafter, DraftParams, DraftSpec, OpenDraft, Opening
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.guessing import adjusted, distribution_of, known
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.pending import Pending
from specdec.drafters.shape import Chain, Shape
from specdec.models.base import LoadedModel, Model
from specdec.rules.base import advanced
from specdec.types import (
    Cache,
    Distribution,
    Draft,
    Encoded,
    PointMass,
    Prompt,
    Purpose,
    RandomSource,
    RuleStates,
    Start,
    Verdict,
)


@pytree
class ModelDrafterState:
    """A model drafter between blocks."""

    encoded: Encoded  # The draft model's view of the inputs.
    cache: Cache  # Holds every emitted token but the pending ones.
    pending: Pending  # After a fully accepted block two: the last guess was never fed.
    # Guesses of the block under way; its cache holds all of them but the last.
    num_guesses: Int[Array, " b"]
    # Whether the row emitted anything in the last block; one that did not is finished.
    active: Bool[Array, " b"]


@checked()
class ModelDrafter(ChainDrafter):
    """Drafts gamma tokens autoregressively from a model.

    The block's first call always feeds two tokens, of which one or two count: after a fully
    accepted block the cache lacks the last guess, and a static T = 2 call costs less than one
    more draft step each block. Parameters are ``DraftParams`` of the
    model; how guesses are drawn may differ from the target's sampling and stay lossless.

    Raises:
      ValueError: gamma is not in 1..MOST_NODES, or stop_below not in [0, 1].
    """

    model: Model  # The draft model.
    gamma: int
    # A row stops guessing after a guess whose own probability (of the model's most likely token,
    # when greedy) is below this. That unlikely guess is KEPT and verified: dropping it would make
    # likely tokens likelier than the target has them. A row also stops after EOS then. 0 never
    # stops: each block has gamma guesses.
    stop_below: Share = 0.0

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> ModelDrafterState:
        # gamma + 1: the block that crosses the limit is drafted whole.
        start = self.model.start(params.weights, prompt, max_len + self.gamma + 1, target.encoded)
        ones = jnp.ones((prompt.batch_size,), jnp.int32)
        return ModelDrafterState(
            start.encoded, start.cache, Pending.of(start.last_token, 2), num_guesses=ones,
            active=ones > 0,
        )  # fmt: skip

    def propose(
        self, params: DraftParams, state: ModelDrafterState, random: RandomSource,
        rules: RuleStates,
    ) -> tuple[Draft, ModelDrafterState]:  # fmt: skip
        model, weights, sampling = self.model, params.weights, params.sampling
        batch = len(state.active)
        if sampling.greedy:
            uniforms = jnp.zeros((batch, self.gamma))
        else:
            uniforms = random.uniforms(Purpose.PROPOSAL, self.gamma)

        def put(i, guesses, states, logits):
            """Draws and keeps guess i with its q, if dense; also which rows go on behind it."""
            before = jax.tree.map(lambda leaf: leaf[:, None], states)
            logits = adjusted(model, params, logits, before)
            distribution = distribution_of(model, params, logits)
            uniform = jax.lax.dynamic_slice_in_dim(uniforms, i, 1, axis=1)
            token = draw_from(distribution, uniform)
            states = advanced(sampling.rules, states, token[:, 0])
            guesses = jax.tree.map(
                lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one, i, axis=1),
                guesses, (token, distribution)[: len(guesses)],
            )  # fmt: skip
            return guesses, states, self._goes_on(logits, distribution, token)

        guesses = (jnp.zeros((batch, self.gamma), jnp.int32),)
        if not sampling.greedy:
            guesses += (jnp.zeros((batch, self.gamma, model.vocab_size)),)
        fed = model.extend(weights, state.encoded, state.cache, state.pending.tokens)
        newest, cache = state.pending.feed(fed, model.commit)
        logits = model.logits(weights, newest)
        guesses, states, going = put(0, guesses, known(params, rules), logits)
        ones = jnp.ones((batch,), jnp.int32)

        def step(i, cache, guesses, states):
            token = jax.lax.dynamic_slice_in_dim(guesses[0], i - 1, 1, axis=1)
            hidden, cache = model.extend(weights, state.encoded, cache, token)
            cache = model.commit(cache, None, ones)
            return cache, *put(i, guesses, states, model.logits(weights, hidden))

        # A loop, not unrolled: the target's weights have flushed the processor's caches, and code
        # that repeats is fetched once.
        if not self.stop_below:
            cache, guesses, _ = jax.lax.fori_loop(
                1, self.gamma, lambda i, carry: step(i, *carry)[:3], (cache, guesses, states)
            )
            num_guesses = None
        else:

            def step_or_wait(carry):
                i, going, count, *rest = carry
                *rest, likely = step(i, *rest)
                return i + 1, going & likely, count + going, *rest

            fed, _, num_guesses, cache, guesses, _ = jax.lax.while_loop(
                lambda carry: (carry[0] < self.gamma) & jnp.any(carry[1]),
                step_or_wait,
                (jnp.int32(1), going & state.active, ones, cache, guesses, states),
            )
            # A row that stopped before its neighbours forgets what it was fed since.
            cache = model.commit(cache, None, num_guesses - fed)
        tokens, probs = guesses if len(guesses) == 2 else (guesses[0], None)
        draft = Draft(tokens, probs, self.topology, num_guesses)
        return draft, dataclasses.replace(state, cache=cache, num_guesses=guess_counts(draft))

    def _goes_on(
        self, logits: Array, distribution: Distribution, token: Int[Array, "b 1"]
    ) -> Bool[Array, " b"]:
        """Which rows guess on after ``token``, drawn from ``distribution``."""
        if not self.stop_below:
            return jnp.ones((len(token),), bool)
        if isinstance(distribution, PointMass):
            _, total = softmax_parts(logits)
            probability = 1 / total[:, 0, 0]  # The largest numerator is 1.
        else:
            probability = take(distribution, token)[:, 0]
        return (probability >= self.stop_below) & ~one_of(token[:, 0], self.model.eos_ids)

    def observe(
        self, state: ModelDrafterState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> ModelDrafterState:
        del states
        active = verdict.num_emitted > 0
        # Committed so far: the pending tokens and all guesses but the last. Keep the accepted ones.
        fed = state.num_guesses - 1
        kept = jnp.where(active, jnp.minimum(verdict.num_accepted, fed), 0)
        pending, forgotten = state.pending.observe(verdict, kept)
        cache = self.model.commit(state.cache, None, kept - fed - forgotten)
        return dataclasses.replace(state, cache=cache, pending=pending, active=active)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A draft model: a directory, a hub id or a bundled pair's name; see `specdec.load_pair`."""

    source: str

    def __post_init__(self):
        path_name("draft", self.source)

    def __str__(self) -> str:
        return self.source

    def open(self, opening: Opening) -> OpenDraft:
        return model_draft(opening.model(self.source))


def draft_spec(name: str, given: Any) -> DraftSpec:
    """A spec as users give it: an object, or a draft model's path or name.

    Args:
      name: of the argument, for the message.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(given, str | os.PathLike):
        return Checkpoint(os.fspath(given))
    if not isinstance(given, DraftSpec) or isinstance(given, type):
        raise ValueError(
            f"{name} must be a checkpoint's path or name, or an object such as specdec.Copying(), "
            f"got {given!r}."
        )
    return given


def model_draft(loaded: LoadedModel) -> OpenDraft:
    """A draft model that was loaded."""

    def make(shape: Shape, catch_up: int) -> Drafter:
        model = loaded.model
        if isinstance(shape, Chain):
            return ModelDrafter(model, shape.gamma, shape.stop_below)
        if shape.topology is None:
            return BestFirstDrafter(model, shape.size, shape.levels, shape.most_siblings, catch_up)
        return ModelTreeDrafter(model, shape.topology, shape.independent, catch_up)

    return OpenDraft(
        make, lambda sampling: DraftParams(loaded.params, sampling.traced()), loaded.params, loaded,
        trees="best-first", encodes=loaded.model.encodes(loaded.params),
    )  # fmt: skip
