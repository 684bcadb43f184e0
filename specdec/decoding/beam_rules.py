"""The rules of beam search: which hypotheses live on, which have ended, and when a row is done.

No model is in here. :func:`step` takes what may follow each live hypothesis and gives the next
state, so whoever has the same log-probabilities, from whatever calls, gets the same beams.

Two rules, in one implementation:

* ``"t5x"``: a hypothesis of n tokens scores log p / ((5 + n) / 6)^alpha. All candidates that end
  enter the pool. A row is done when the worst hypothesis of a full pool beats what the best live
  one could reach at full length. Hypotheses that the limit cuts off are returned only if none
  ended, with log p as their score.
  Source: T5X, t5x/decoding.py, ``beam_search``; its "full length" is one token more than the limit.
* ``"huggingface"``: it scores log p / n^length_penalty. Only candidates among the best W enter the
  pool; at the limit they end as they are. ``early_stopping`` says when a full pool is done: True,
  at once; False, when the best live hypothesis does not beat the worst of the pool as if it ended
  now; "never", as if it ended at the limit where long ones are favoured (length_penalty > 0).
  Source: transformers 5, ``GenerationMixin._beam_search``.

In both, n counts EOS and no token of the prefix. Both look at (1 + EOS tokens) W candidates, at
least 2 W: enough for W to live on. Of equal scores the one of the better parent comes first, then
the lower token; in the pool the one that ended earlier. (The libraries leave this order open.)
Rules for logits (:mod:`specdec.rules`) are applied to log p, as transformers does it for beams, and
what they make of it is summed.

Shapes: B batch, W beams, V vocabulary, C continuations of each beam, L output bucket.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from specdec.core.arguments import real
from specdec.core.fields import Count, checked
from specdec.core.pytrees import pytree, static_field
from specdec.core.reductions import max_last, sum_last
from specdec.core.residuals import one_of
from specdec.rules.base import Rules, advanced, allowed, start, unsound
from specdec.types import NAN_OF_MODELS, NAN_OF_RULES, AnyArray, Prompt, RuleStates

Rule = Literal["t5x", "huggingface"]
_OWN: dict[str, dict[str, Any]] = {
    "t5x": {"alpha": 0.6},
    "huggingface": {"length_penalty": 1.0, "early_stopping": False},
}


_TITLES: dict[str, str] = {"t5x": "T5X", "huggingface": "Hugging Face"}


@checked()
class BeamConfig:
    """Options of beam search; see :mod:`specdec.decoding.beam_rules` for the two rules.

    Attributes:
      num_beams: W, hypotheses that are kept.
      rule: "t5x" or "huggingface".
      alpha: T5X's brevity penalty, >= 0; 0.6 by default.
      length_penalty: Hugging Face's power of the length; 1.0 by default.
      early_stopping: Hugging Face's: False (the default), True or "never".

    Raises:
      ValueError: a value out of its range, or one that belongs to the other rule.
    """

    num_beams: Count = 4
    rule: Rule = "t5x"
    alpha: float | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None

    def __post_init__(self):
        for rule, defaults in _OWN.items():
            for name, default in defaults.items():
                given = getattr(self, name)
                if rule != self.rule and given is not None:
                    raise ValueError(
                        f"{name} belongs to rule={rule!r}: leave it out with rule={self.rule!r}, "
                        f"got {given!r}."
                    )
                if rule == self.rule and given is None:
                    object.__setattr__(self, name, default)
        if self.rule == "t5x":
            alpha = real("alpha", self.alpha, "finite and >= 0", 0)
            object.__setattr__(self, "alpha", alpha)
            return
        power = real("length_penalty", self.length_penalty, "finite")
        object.__setattr__(self, "length_penalty", power)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(
                f'early_stopping must be False, True or "never", got {self.early_stopping!r}.'
            )

    def __str__(self) -> str:
        own = ", ".join(f"{name} {getattr(self, name)}" for name in _OWN[self.rule])
        return f"{self.num_beams} beams by the rule of {_TITLES[self.rule]} ({own})"

    def traced(self, output_bucket: int, logits: Rules = (), log_probs: bool = False) -> BeamRules:
        """These rules for a compiled program, whose penalties may change without another compile.

        Args:
          logits, log_probs: see :class:`BeamRules`.
        """
        length = np.arange(output_bucket + 2, dtype=np.float64)
        if self.rule == "t5x":
            assert self.alpha is not None
            penalties = ((5 + length) / 6) ** self.alpha
        else:
            assert self.length_penalty is not None
            penalties = np.maximum(length, 1) ** self.length_penalty
        far = self.early_stopping == "never" and penalties[2] > 1
        return BeamRules(
            penalties.astype(np.float32), np.asarray(self.early_stopping is True), np.asarray(far),
            logits, self.num_beams, self.rule, log_probs,
        )  # fmt: skip


@pytree
class BeamRules:
    """A :class:`BeamConfig` inside a program.

    Attributes:
      penalties: [L + 2] what log p of a hypothesis of 0..L + 1 tokens is divided by.
      at_once: scalar, whether a full pool ends a Hugging Face row.
      far: scalar, whether a live hypothesis is judged there as if it ended at the limit.
      logits: rules for the logits, () for none.
      num_beams, rule: see :class:`BeamConfig`.
      log_probs: whether those of each token are kept.
    """

    penalties: Float[AnyArray, " n"]
    at_once: Bool[AnyArray, ""]
    far: Bool[AnyArray, ""]
    logits: Rules
    num_beams: int = static_field()
    rule: Rule = static_field()
    log_probs: bool = static_field()

    def num_candidates(self, eos_ids: tuple[int, ...]) -> int:
        """Number of continuations that are looked at: of all beams, and at most of each one."""
        return max(2, 1 + len(eos_ids)) * self.num_beams


@pytree
class BeamState:
    """The hypotheses of each row, best first. A score of -inf: there is none at this index.

    Attributes:
      live_log_probs: [B, W] sums of log p.
      live_tokens: [B, W, L]; the first ``length[b]`` count.
      pool_scores: [B, W] penalised, of hypotheses that have ended.
      pool_log_probs: [B, W] their sums of log p.
      pool_tokens: [B, W, L] EOS included; the first ``pool_lengths`` count.
      pool_lengths: [B, W].
      live_token_log_probs, pool_token_log_probs: [B, W, L, 2] log p of each of their tokens, as
        the model has it and as
        rules for logits made it; None unless they are kept.
      length: [B] tokens of the live hypotheses.
      rules: states of the rules for logits, of each live hypothesis; () without rules.
      finished: [B] rows that :func:`step` no longer changes.
      limit: scalar, tokens a hypothesis may have, EOS included.
    """

    live_log_probs: Float[Array, "b w"]
    live_tokens: Int[Array, "b w l"]
    pool_scores: Float[Array, "b w"]
    pool_log_probs: Float[Array, "b w"]
    pool_tokens: Int[Array, "b w l"]
    pool_lengths: Int[Array, "b w"]
    live_token_log_probs: Float[Array, "b w l 2"] | None
    pool_token_log_probs: Float[Array, "b w l 2"] | None
    length: Int[Array, " b"]
    rules: RuleStates
    finished: Bool[Array, " b"]
    limit: Int[Array, ""]


@pytree
class Continuations:
    """The likeliest tokens after each hypothesis, best first; the lower token among equals.

    Attributes:
      tokens: [..., C].
      log_probs: [..., C] of each, normalised over the vocabulary, and then as rules have it.
      plain: [..., C] without the rules.
      broken: [...] where rules made NaN or +inf, and are left out; None without rules.
    """

    tokens: Int[Array, "*shape c"]
    log_probs: Float[Array, "*shape c"]
    plain: Float[Array, "*shape c"]
    broken: Bool[Array, "*shape"] | None


def initial_state(
    rules: BeamRules, prompt: Prompt, limit: Int[Array, ""] | int, output_bucket: int, pad_id: int
) -> BeamState:
    """State before the first step: one live hypothesis a row, of no tokens.

    Args:
      limit: tokens a hypothesis may have, at most ``output_bucket``.
    """
    num_rows = prompt.batch_size
    nothing = jnp.full((num_rows, rules.num_beams), -jnp.inf)
    tokens = jnp.full((*nothing.shape, output_bucket), pad_id, jnp.int32)
    token_log_probs = jnp.zeros((*tokens.shape, 2)) if rules.log_probs else None
    limit = jnp.asarray(limit, jnp.int32)
    return BeamState(
        live_log_probs=nothing.at[:, 0].set(0.0),
        live_tokens=tokens,
        pool_scores=nothing,
        pool_log_probs=nothing,
        pool_tokens=tokens,
        pool_lengths=jnp.zeros(nothing.shape, jnp.int32),
        live_token_log_probs=token_log_probs,
        pool_token_log_probs=token_log_probs,
        length=jnp.zeros((num_rows,), jnp.int32),
        rules=jax.tree.map(
            lambda leaf: jnp.repeat(leaf[:, None], rules.num_beams, axis=1),
            start(rules.logits, prompt, limit, output_bucket + 1),
        ),
        finished=jnp.broadcast_to(limit <= 0, (num_rows,)),
        limit=limit,
    )


def continuations(
    logits: Float[Array, "*shape v"], count: int, rules: Rules, states: RuleStates
) -> Continuations:
    """The ``count`` likeliest tokens, all of them where the vocabulary is smaller.

    log p = (logit - max) - log sum exp(logit - max), in float32.

    Args:
      rules, states: those for logits, leaves [*shape, ...].
    """
    logits = logits.astype(jnp.float32)
    largest = max_last(logits)[..., None]
    normalizer = jnp.log(sum_last(jnp.exp(logits - largest)))[..., None]
    if rules:
        own = (logits - largest) - normalizer
        log_probs = allowed(rules, states, own)
        broken = unsound(max_last(log_probs), own)
        log_probs = jnp.where(broken[..., None], own, log_probs)
        best, tokens = jax.lax.top_k(log_probs, min(count, logits.shape[-1]))
        plain = jnp.take_along_axis(own, tokens, axis=-1)
        return Continuations(tokens.astype(jnp.int32), best, plain, broken)
    best, tokens = jax.lax.top_k(logits, min(count, logits.shape[-1]))
    log_probs = (best - largest) - normalizer
    return Continuations(tokens.astype(jnp.int32), log_probs, log_probs, None)


def nan_of(best: Continuations, state: BeamState) -> Int[Array, " b"]:
    """0, or whose logits were NaN: :data:`NAN_OF_MODELS`, or :data:`NAN_OF_RULES` of a hypothesis
    that is live.
    """
    of_rules = 0
    if best.broken is not None:
        live = state.live_log_probs > -jnp.inf
        of_rules = jnp.where(jnp.any(best.broken & live, axis=1), NAN_OF_RULES, 0)
    models = jnp.any(jnp.isnan(best.log_probs), axis=(1, 2))
    return jnp.where(models, NAN_OF_MODELS, of_rules).astype(jnp.int32)


def step(
    rules: BeamRules, eos_ids: tuple[int, ...], state: BeamState, best: Continuations
) -> tuple[BeamState, Int[Array, "b w"], Int[Array, "b w"]]:
    """Every live hypothesis of unfinished rows grows by a token.

    Args:
      eos_ids: the tokens of which each ends a hypothesis.
      best: [B, W, C], C = :meth:`BeamRules.num_candidates` or V if that is less, after each live
        hypothesis.

    Returns:
      the next state; parents [B, W], the index in the old state of what each live hypothesis
      continues; and tokens [B, W], what it continues it with. Finished rows stay as they are:
      their parents are 0..W-1.
    """
    width, each = rules.num_beams, best.tokens.shape[2]
    total = (state.live_log_probs[..., None] + best.log_probs).reshape(len(state.length), -1)
    total, indices = jax.lax.top_k(total, min(rules.num_candidates(eos_ids), total.shape[1]))
    tokens = take_rows(best.tokens.reshape(len(indices), -1), indices)
    parents, ends = indices // each, one_of(tokens, eos_ids)
    length = state.length + 1

    live_log_probs, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, total), width)
    live_parents, live_tokens = take_rows(parents, chosen), take_rows(tokens, chosen)
    token_log_probs = None
    if rules.log_probs:
        both = jnp.stack([best.plain, best.log_probs], axis=-1)
        token_log_probs = take_rows(both.reshape(len(indices), -1, 2), indices)
    added = tokens, token_log_probs
    live = jax.tree.map(
        lambda rows, new: _appended(
            take_rows(rows, live_parents), take_rows(new, chosen), state.length
        ),
        (state.live_tokens, state.live_token_log_probs), added,
    )  # fmt: skip
    states = jax.tree.map(lambda leaf: take_rows(leaf, live_parents), state.rules)
    new = dataclasses.replace(
        state, live_log_probs=live_log_probs, live_tokens=live[0], live_token_log_probs=live[1],
        length=length, rules=advanced(rules.logits, states, live_tokens),
        **_pooled(rules, state, total, parents, ends, added),
    )  # fmt: skip
    done = _done(rules, new)
    if rules.logits:  # They may leave no hypothesis alive.
        done |= live_log_probs[:, 0] == -jnp.inf
    new = dataclasses.replace(new, finished=done)
    # A limit that is a number fits every row.
    new = jax.tree.map(
        lambda old, new: old if old.ndim == 0 else where_rows(state.finished, old, new), state, new
    )
    same = jnp.broadcast_to(jnp.arange(width), live_parents.shape)
    return new, where_rows(state.finished, same, live_parents), live_tokens


def _pooled(
    rules: BeamRules, state: BeamState, total: Float[Array, "b k"], parents: Int[Array, "b k"],
    ends: Bool[Array, "b k"], added: tuple[Int[Array, "b k"], Float[Array, "b k 2"] | None],
) -> dict[str, Array | None]:  # fmt: skip
    """The pool's fields, with the candidates that end now.

    Args:
      added: the candidates' tokens, and log p of them if these are kept.
    """
    width, length = rules.num_beams, state.length + 1
    if rules.rule == "huggingface":
        ends = (ends | (length >= state.limit)[:, None]) & (jnp.arange(ends.shape[1]) < width)
    scores = total / rules.penalties[length][:, None]
    scores = jnp.concatenate([state.pool_scores, jnp.where(ends, scores, -jnp.inf)], axis=1)
    scores, chosen = jax.lax.top_k(scores, width)
    is_new, at = chosen >= width, jnp.maximum(chosen - width, 0)
    # Rows of old pool and old live hypotheses; the new ones are these with a token more.
    where = jnp.where(is_new, width + take_rows(parents, at), chosen)

    def grown(pool, live, new):
        rows = take_rows(jnp.concatenate([pool, live], axis=1), where)
        longer = _appended(rows, take_rows(new, at), state.length)
        return jnp.where(is_new.reshape(*is_new.shape, *[1] * (rows.ndim - 2)), longer, rows)

    tokens, token_log_probs = jax.tree.map(
        grown, (state.pool_tokens, state.pool_token_log_probs),
        (state.live_tokens, state.live_token_log_probs), added,
    )  # fmt: skip
    lengths = jnp.broadcast_to(length[:, None], ends.shape)
    lengths = take_rows(jnp.concatenate([state.pool_lengths, lengths], axis=1), chosen)
    log_probs = take_rows(jnp.concatenate([state.pool_log_probs, total], axis=1), chosen)
    return {
        "pool_scores": scores, "pool_log_probs": log_probs, "pool_tokens": tokens,
        "pool_token_log_probs": token_log_probs,
        "pool_lengths": jnp.where(scores > -jnp.inf, lengths, 0),
    }  # fmt: skip


def _done(rules: BeamRules, state: BeamState) -> Bool[Array, " b"]:
    """Rows at their limit, and those whose pool is full and, by the rule, good enough."""
    worst = state.pool_scores[:, -1]
    full = worst > -jnp.inf

    def reachable(length):
        """The score of the best live hypothesis as if it had so many tokens."""
        return state.live_log_probs[:, 0] / rules.penalties[length]

    if rules.rule == "t5x":
        good = worst > reachable(state.limit + 1)
    else:
        length = jnp.where(rules.far, state.limit, state.length)
        good = rules.at_once | (worst >= reachable(length))
    return (full & good) | (state.length >= state.limit)


def best_hypotheses(
    rules: BeamRules, state: BeamState
) -> tuple[
    Int[Array, "b w l"], Int[Array, "b w"], Float[Array, "b w"], Float[Array, "b w"],
    Float[Array, "b w l 2"] | None,
]:  # fmt: skip
    """The n-best list of each row, best first: tokens, lengths, scores, sums of log p; and of each
    token, if they were kept.

    By T5X's rule a row of which nothing ended has its live hypotheses, and sums of log p for
    scores. A length of 0: fewer than W ended.
    """
    pool = (
        state.pool_tokens, state.pool_lengths, state.pool_scores, state.pool_log_probs,
        state.pool_token_log_probs,
    )  # fmt: skip
    if rules.rule == "huggingface":
        return pool
    none = state.pool_scores[:, 0] == -jnp.inf
    log_probs = state.live_log_probs
    lengths = jnp.where(log_probs > -jnp.inf, state.length[:, None], 0)
    live = state.live_tokens, lengths, log_probs, log_probs, state.live_token_log_probs
    return jax.tree.map(lambda a, b: where_rows(none, a, b), live, pool)


def where_rows(rows: Bool[Array, " b"], a: Array, b: Array) -> Array:
    """The rows of a [B, ...] where ``rows`` is True, else of b."""
    return jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b)


def take_rows(values: Array, indices: Int[Array, "b n"]) -> Array:
    """values[b, indices[b, n]], without a row looking into another's."""
    indices = indices.reshape(*indices.shape, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, indices, axis=1, mode="promise_in_bounds")


def _appended(
    rows: Shaped[Array, "b w l ..."], new: Shaped[Array, "b w ..."], at: Int[Array, " b"]
) -> Shaped[Array, "b w l ..."]:
    """The rows with a token, or its log-probabilities, set at index at[b]."""
    here = (jnp.arange(rows.shape[2]) == at[:, None])[:, None]
    return jnp.where(here.reshape(*here.shape, *[1] * (rows.ndim - 3)), new[:, :, None], rows)
