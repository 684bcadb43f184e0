"""The engine: draft, score, verify, commit; plain and speculative decoding of a batch.

One block, for each row:
  1. the drafter proposes guesses and the exact q each was drawn from;
  2. the target scores the last token and all guesses in one call;
  3. the verifier keeps a prefix of the guesses and adds one token of its own;
  4. what lies past EOS or the length limit is dropped, target cache and drafter are rolled back to
     what was kept.
The last token emitted is never in the target's cache: it opens the next call. An engine without a
drafter is plain decoding: its blocks have no guesses.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", Algorithm 1.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.fields import Count, checked
from specdec.core.pytrees import pytree
from specdec.core.randomness import BlockRandom
from specdec.core.reductions import log_sum_exp, max_last
from specdec.core.residuals import guess_counts, take, take_position
from specdec.core.standardize import argmax, has_nan, standardize
from specdec.core.topology import CHAIN, AnyTopology, Topology
from specdec.decoding import state as st
from specdec.decoding.samples import by_text, sampled
from specdec.drafters.base import Drafter
from specdec.drafters.guessing import over_vocabulary
from specdec.models.base import Model
from specdec.rules import base as rules
from specdec.rules.stops import Stops
from specdec.types import (
    NAN_OF_MODELS,
    NAN_OF_RULES,
    NO_TOKEN,
    AnyArray,
    BlockInfo,
    Cache,
    DecodeResult,
    DecodeState,
    Distribution,
    Draft,
    Encoded,
    LogProbs,
    Params,
    PointMass,
    Prompt,
    RandomSource,
    RuleStates,
    Sampling,
    Seed,
    Verdict,
)
from specdec.verifiers.base import Verifier
from specdec.verifiers.token import TokenVerifier

TOKEN_VERIFIER = TokenVerifier()


@pytree
class EngineParams:
    """The arrays an engine works with."""

    target: Params  # The target's packed parameters.
    sampling: Sampling  # How the target's logits become the distribution of the output.
    drafter: Params = ()  # The drafter's own; () for plain decoding.
    stops: Stops | None = None  # Strings and tokens that end rows beside EOS.


@pytree
class Scored:
    """A target call."""

    distribution: Distribution  # p after the last token and after every guess, N + 1.
    hidden: Float[Array, "b n1 d"]  # The target's last hidden states there.
    nan: Bool[Array, " b"]  # Whether the models' logits were NaN anywhere in the block.
    cache: Cache  # The target's, with the whole block written and nothing committed.
    rules: RuleStates  # The rules' states there, [B, N + 1, ...].
    # Where rules leave no token, and where they make NaN or +inf; None without rules.
    nothing: Bool[Array, "b n1"] | None
    broken: Bool[Array, "b n1"] | None
    # There, the target's logits and what the rules made of them; None unless they are kept.
    logits: tuple[Float[Array, "b n1 v"], Float[Array, "b n1 v"]] | None


@checked()
class Engine:
    """A target, a drafter and a verifier. Everything is pure, and an engine is static.

    Attributes:
      target: the model whose distribution outputs follow.
      drafter: None for plain decoding.
      verifier: accepts guesses; plain decoding has none.
      alternatives: of each token, the likeliest ones whose log-probabilities are kept with its own;
        None to keep nothing.
      audit: whether the margin of each token is kept, too; see :class:`specdec.types.LogProbs`.
      samples: of each text; above 1, results are of texts and their samples, [B, samples, ...].
      width: of plain decoding, tokens in each target call; all but the last token are padding.
        With gamma + 1 it is the width-matched reference: the speculative loop's own arithmetic.

    Raises:
      ValueError: a width below 1, or one above 1 with a drafter, whose blocks have their own.
    """

    target: Model
    drafter: Drafter | None = None
    verifier: Verifier = TOKEN_VERIFIER
    width: Count = 1
    alternatives: int | None = None
    audit: bool = False
    samples: Count = 1

    def __post_init__(self):
        if self.drafter is not None and self.width != 1:
            raise ValueError(f"width is of plain decoding: leave it out, got {self.width}.")

    @property
    def topology(self) -> AnyTopology:
        """Topology of each draft; the chain of no guesses in plain decoding."""
        return self.drafter.topology if self.drafter else CHAIN

    @property
    def depth(self) -> int:
        """Levels of a draft; a block emits 1..depth + 1 tokens."""
        return self.topology.depth

    @property
    def nodes(self) -> int:
        """Guesses of a draft."""
        return self.topology.size

    def start(
        self, params: EngineParams, prompt: Prompt, row_ids: Int[AnyArray, " b"],
        limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
        encoded: Encoded | None = None,
    ) -> DecodeState:  # fmt: skip
        """The state before the first block: the prompt is encoded and prefilled.

        Args:
          row_ids: [B] ids that key each row's random numbers; a negative id marks a padding row,
            which is finished from the start.
          limit: tokens a row may emit, EOS included. More than ``output_bucket`` only for a loop
            that moves to larger arrays; see :mod:`specdec.decoding.loop`.
          seed: of all random numbers; see :func:`specdec.core.randomness.row_keys`.
          output_bucket: L, size of the output buffer.
          trace: whether every block's diagnostics are kept.
          encoded: the target's encoding of the inputs, where a draft decodes alone.
        """
        capacity = output_bucket + max(self.nodes + 1, self.width)
        start = self.target.start(params.target, prompt, capacity, encoded)
        # A block may begin within the bucket and end beyond it.
        size = output_bucket + self.depth + 1
        drafter_state = None
        if self.drafter:
            drafter_state = self.drafter.init(params.drafter, prompt, output_bucket, start)
        state = st.initial_state(
            start, drafter_state, row_ids=row_ids, limit=limit, seed=seed,
            output_bucket=output_bucket, pad_id=self.target.pad_id, topology=self.topology,
            rules=rules.start(params.sampling.rules, prompt, limit, size),
            stop=params.stops and params.stops.start(prompt), alternatives=self.alternatives,
            audit=self.audit, trace=trace,
        )  # fmt: skip
        return state if self.samples == 1 else sampled(state, self.samples)

    def step(
        self, params: EngineParams, state: DecodeState, random: RandomSource | None = None
    ) -> tuple[DecodeState, BlockInfo]:
        """Runs one block: each unfinished row emits 1..depth + 1 tokens.

        Who times a phase, looks at what it gives or replaces it composes the four as this does.

        Args:
          random: this block's numbers; those of the rows' keys if None.
        """
        random = random or BlockRandom.of(state.row_keys, state.block)
        draft, state = self.propose(params, state, random)
        scored = self.score(params, state, draft)
        return self.commit(params, state, draft, scored, self.verify(scored, draft, random))

    @jax.named_scope("draft")
    def propose(
        self, params: EngineParams, state: DecodeState, random: RandomSource
    ) -> tuple[Draft, DecodeState]:
        """A block's guesses; none without a drafter."""
        if self.drafter is None:
            none = jnp.zeros((len(state.last_token), 0), jnp.int32)
            return Draft(none, None, CHAIN), state
        draft, drafter_state = self.drafter.propose(
            params.drafter, state.drafter_state, random, state.rules
        )
        return draft, dataclasses.replace(state, drafter_state=drafter_state)

    @jax.named_scope("target")
    def score(self, params: EngineParams, state: DecodeState, draft: Draft) -> Scored:
        """p at the last token and at every guess."""
        tokens = jnp.concatenate([state.last_token[:, None], draft.tokens], axis=1)
        size, topology = tokens.shape[1], draft.topology.rooted()
        if self.width > size:
            tokens = jnp.pad(tokens, ((0, 0), (0, self.width - size)))
            topology = Topology.chain(self.width)
        hidden, cache = self.target.extend(
            params.target, state.encoded, state.cache, tokens, topology
        )
        return self.scored(params, state, draft, hidden, cache)

    def scored(
        self, params: EngineParams, state: DecodeState, draft: Draft,
        hidden: Float[Array, "b t d"], cache: Cache,
    ) -> Scored:  # fmt: skip
        """p at the last token and at every guess, the first of those that have been extended."""
        hidden = hidden[:, : draft.tokens.shape[1] + 1]
        logits = own = self.target.logits(params.target, hidden)
        states, nothing, broken = state.rules, None, None
        if params.sampling.rules:
            # A draft vocabulary's own: hierarchical drafts have one as their target.
            logits = over_vocabulary(self.target, params.target, logits)
            states = self._behind(params, state, draft)
            logits, nothing, broken = rules.adjusted(params.sampling.rules, states, logits)
        keep = self.verifier.needs_probs
        distribution = standardize(logits, params.sampling, keep_probs=keep)
        nan = jnp.any(has_nan(logits, distribution), axis=1)
        if not params.sampling.rules:
            distribution = self.target.over_vocabulary(params.target, distribution)
        kept = None if self.alternatives is None else (own, logits)
        return Scored(distribution, hidden, nan, cache, states, nothing, broken, kept)

    @jax.named_scope("verify")
    def verify(self, scored: Scored, draft: Draft, random: RandomSource) -> Verdict:
        """Verdict on a draft; with no guess at all one token is drawn from p."""
        verifier = self.verifier if self.drafter else TOKEN_VERIFIER
        return verifier(random, scored.distribution, draft)

    @jax.named_scope("commit")
    def commit(
        self, params: EngineParams, state: DecodeState, draft: Draft, scored: Scored,
        verdict: Verdict,
    ) -> tuple[DecodeState, BlockInfo]:  # fmt: skip
        """Takes in the kept tokens of a verdict."""
        eos_ids = self.target.eos_ids
        stop = None
        if params.stops is not None:
            assert state.stop is not None
            stop = params.stops.along(state.stop, verdict.tokens)
        verdict, dropped = st.cut_at_end(verdict, state, eos_ids, stop and stop[1])
        path = None if draft.topology.is_chain else verdict.path
        cache = self.target.commit(scored.cache, path, verdict.num_emitted)
        drafter_state = None
        if self.drafter:
            # Emitted token i was drawn where path[i] is; what follows the emitted ones is filler.
            states = jnp.take_along_axis(
                scored.hidden, verdict.path[..., None], axis=1, mode="clip"
            )
            drafter_state = self.drafter.observe(state.drafter_state, verdict, states)
        info = BlockInfo(
            draft_tokens=draft.tokens,
            parents=jnp.broadcast_to(_parents(draft), draft.tokens.shape),
            num_guesses=guess_counts(draft), tokens=verdict.tokens, path=verdict.path,
            num_accepted=verdict.num_accepted, num_emitted=verdict.num_emitted,
        )  # fmt: skip
        state = st.advance(
            state, verdict, cache=cache, drafter_state=drafter_state, eos_ids=eos_ids,
            failed=_failed(scored, verdict), stop=stop,
            rules=self._followed(params, state, scored, verdict),
            log_probs=self._log_probs(params, scored, verdict),
            stats=st.count_block(state.stats, verdict, dropped, draft),
        )  # fmt: skip
        return state, info

    def _behind(self, params: EngineParams, state: DecodeState, draft: Draft) -> RuleStates:
        """The rules' states behind the last token and behind each guess, [B, N + 1, ...]."""
        return rules.at_nodes(params.sampling.rules, state.rules, draft.tokens, draft.topology)

    def _followed(
        self, params: EngineParams, state: DecodeState, scored: Scored, verdict: Verdict
    ) -> RuleStates:
        """The rules' states behind a cut verdict."""
        if not params.sampling.rules:
            return state.rules
        active = verdict.num_emitted > 0
        last = jnp.maximum(verdict.num_emitted - 1, 0)
        # The newest token was drawn behind the last node that is kept.
        before = rules.taken(scored.rules, take_position(verdict.path, last))
        newest = take_position(verdict.tokens, last)
        after = rules.advanced(params.sampling.rules, before, newest)
        return rules.where(active, after, state.rules)

    def _log_probs(self, params: EngineParams, scored: Scored, verdict: Verdict) -> LogProbs | None:
        """Log-probabilities of a verdict's tokens, if they are kept."""
        if scored.logits is None:
            return None

        def at(values):
            """Where each token was drawn."""
            return jnp.take_along_axis(values, verdict.path[..., None], axis=1, mode="clip")

        logits, with_rules = (at(each) for each in scored.logits)
        total = log_sum_exp(logits)
        plain = take(logits, verdict.tokens) - total
        ruled = take(with_rules, verdict.tokens) - log_sum_exp(with_rules)
        distribution, adjusted = scored.distribution, ruled
        if not isinstance(distribution, PointMass):
            adjusted = jnp.log(take(at(distribution), verdict.tokens))
        top, top_tokens = jax.lax.top_k(logits, self.alternatives or 0)
        margins = _margins(with_rules) if self.audit else None
        return LogProbs(plain, adjusted, ruled, top_tokens, top - total[..., None], margins)

    # A :class:`specdec.decoding.loop.Loop`:

    def block(self, params: EngineParams, state: DecodeState) -> DecodeState:
        """One more block of every unfinished row."""
        return st.record(*self.step(params, state))

    def finished(self, state: DecodeState) -> Bool[Array, " b"]:
        """Which rows have ended; those with all their samples."""
        if self.samples == 1:
            return state.finished
        return jnp.all(by_text(state.finished, self.samples), axis=1)

    def all_finished(self, state: DecodeState) -> DecodeState:
        """The state with all rows ended."""
        return dataclasses.replace(state, finished=jnp.ones_like(state.finished))

    def needs(self, state: DecodeState) -> Int[Array, " b"]:
        """The least output bucket for the tokens so far and a next block.

        A block begins inside the bucket and is written whole, so arrays hold depth + 1 tokens more.
        A sample that has ended has had no more blocks than its text's other samples have tokens, so
        that these need the trace that it has.
        """
        held = jnp.maximum(state.num_tokens - self.depth - 1, 1)
        goes_on = jnp.minimum(state.num_tokens + 1, state.limit)
        needed = jnp.where(state.finished, held, goes_on)
        return needed if self.samples == 1 else jnp.max(by_text(needed, self.samples), axis=1)

    def result(self, params: EngineParams, state: DecodeState, size: int) -> DecodeResult:
        """Results of the rows, with outputs of ``size`` tokens."""
        del params
        found = st.result(state, size, self.target.pad_id)
        return found if self.samples == 1 else by_text(found, self.samples)


def _failed(scored: Scored, verdict: Verdict) -> Int[Array, " b"]:
    """Codes of :class:`DecodeState`, 0 where nothing failed."""
    # A draft's NaN, too, is in what of it is accepted.
    models = scored.nan | jnp.any(jnp.isnan(verdict.acceptance_prob), axis=1)
    failed = jnp.where(models, NAN_OF_MODELS, 0)
    for nodes, code in ((scored.broken, NAN_OF_RULES), (scored.nothing, NO_TOKEN)):
        if nodes is not None:
            failed = jnp.where((failed == 0) & _any_emitted(nodes, verdict), code, failed)
    return failed.astype(jnp.int32)


def _any_emitted(nodes: Bool[Array, "b n1"], verdict: Verdict) -> Bool[Array, " b"]:
    """Whether an emitted token was drawn at one of these nodes."""
    emitted = jnp.arange(verdict.path.shape[1]) < verdict.num_emitted[:, None]
    at = jnp.take_along_axis(nodes, verdict.path, axis=1, mode="clip")
    return jnp.any(at & emitted, axis=1)


def _parents(draft: Draft) -> Int[Array, "*b n"]:
    return jnp.asarray(draft.topology.parents, jnp.int32)


def _margins(logits: Float[Array, "b t v"]) -> Float[Array, "b t"]:
    """The largest logit minus the second largest."""
    first = jnp.arange(logits.shape[-1]) == argmax(logits)[..., None]
    return max_last(logits) - max_last(jnp.where(first, -jnp.inf, logits))
