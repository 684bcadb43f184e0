"""A block of beam search: guess, score, replay the rules, keep. See :mod:`specdec.decoding.beam`.

The hypotheses of a row lie side by side in one row of each cache, as a
:class:`~specdec.core.topology.Forest`: entry n W + w has the token that beam w had at level n. What
hypotheses have in common is there once, and no entry moves after its block. Level n has the tokens
at position n, counted from the prefix's last one, which is level 0.

Shapes: B batch, W beams, u draft beams, N = W + u gamma tokens of a call, L output bucket, M
entries of a cache.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import one_of, set_rows
from specdec.core.topology import Forest
from specdec.decoding import beam_rules
from specdec.decoding.beam_rules import (
    BeamRules,
    BeamState,
    Continuations,
    take_rows,
    where_rows,
)
from specdec.drafters.guessing import ids_of, over_vocabulary
from specdec.models.base import Model
from specdec.rules.base import Rules, advanced, taken
from specdec.types import Cache, Encoded, Params, Prompt

# Why a block ended: a survivor had not been guessed; the row was done; it met its limit; all levels
# of the draft survived.
ENDS = ("miss", "done", "limit", "depth")


@pytree
class BeamBlock:
    """One block of each row, as it is traced.

    Attributes:
      tokens: [B, N] that were scored: the W hypotheses' newest ones, then u guesses a level.
      parents: [B, N] which of these each one follows; -1 for the first W.
      kept: [B, gamma + 1, W] of each level that was taken, which token each live hypothesis had.
      num_levels: [B] how many those are; 0 for a row that was finished before.
      end: [B] why it ended, of :data:`ENDS`.
      newest: [B, W] what the survivors go on with.
      lost: [B, W] which of them had not been guessed.
    """

    tokens: Int[Array, "b n"]
    parents: Int[Array, "b n"]
    kept: Int[Array, "b g w"]
    num_levels: Int[Array, " b"]
    end: Int[Array, " b"]
    newest: Int[Array, "b w"]
    lost: Bool[Array, "b w"]


@pytree
class Live:
    """The live hypotheses between blocks.

    Attributes:
      tokens: [B, W] the newest one of each; in no cache yet.
      family: [B, W, L] the beam that each descends from at level 0, 1, ..., before
        theirs.
      parents: [B, W] the last of these; -1 before the first block.
      above: [B, W] tokens of the level before theirs, which the draft may not have been fed.
      above_family: [B, W, L] its families.
    """

    tokens: Int[Array, "b w"]
    family: Int[Array, "b w l"]
    parents: Int[Array, "b w"]
    above: Int[Array, "b w"]
    above_family: Int[Array, "b w l"]


@pytree
class Guesses:
    """Tokens that a target call scores; the first W are the hypotheses' newest ones.

    Attributes:
      tokens, parents: see :class:`BeamBlock`. A parent of -2: filler, which nothing descends from.
      ancestors: [B, N, N] whether token j is token i or before it.
      roots: [B, N] the hypothesis that each descends from.
    """

    tokens: Int[Array, "b n"]
    parents: Int[Array, "b n"]
    ancestors: Bool[Array, "b n n"]
    roots: Int[Array, "b n"]


@dataclasses.dataclass(frozen=True)
class BeamEngine:
    """A target, its draft, and the sizes of a search. Everything is pure; it is static.

    Attributes:
      num_beams: W.
      draft: a draft model; None for plain beams: each block is a level then.
      draft_beams, gamma: with a draft, its beams u, at least W, and levels of a block.
      width: tokens of each target call, at least; what is missing is filler. With that of another
        search's calls, plain beams are its width-matched reference.
    """

    target: Model
    num_beams: int
    draft: Model | None = None
    draft_beams: int = 0
    gamma: int = 0
    width: int = 0

    @property
    def nodes(self) -> int:
        """N."""
        return max(self.num_beams + self.guesses, self.width)

    @property
    def guesses(self) -> int:
        """u gamma; 0 without a draft."""
        return self.draft_beams * self.gamma

    def capacity(self, output_bucket: int) -> int:
        """Entries of a cache behind the prefix; the draft's needs less behind its last level."""
        return self.num_beams * output_bucket + self.num_beams + self.nodes

    def forest(
        self, prompt: Prompt, level: Int[Array, " b"], family: Int[Array, "b t l"],
        ancestors: Bool[Array, "b t n"], depths: Int[np.ndarray, " n"], *, ahead: int,
    ) -> Forest:  # fmt: skip
        """Places in a cache of the last T of the N tokens that a block has so far.

        Args:
          level: of the block's first token; entries of levels before it are written.
          family: [B, T, L]; see :class:`Live`.
          ancestors: [B, T, N] within the block, each token its own.
          depths: [N] levels between the block's first token and each.
          ahead: levels for which the cache has capacity before level 0.
        """
        batch, count, _ = family.shape
        wide = self.num_beams
        prefix = prompt.prefix_lengths - 1
        first = prefix + ahead * wide
        entries = jnp.arange(prompt.prefix.shape[1] - 1 + self.capacity(family.shape[2]))
        written = jnp.arange(family.shape[2])[:, None] < level[:, None, None, None]
        before = written & (family[..., None] == jnp.arange(wide))
        seen = jnp.broadcast_to((entries < prefix[:, None])[:, None], (batch, count, len(entries)))
        seen = set_rows(seen, before.reshape(batch, count, -1), first, axis=2)
        seen = set_rows(seen, ancestors, first + level * wide, axis=2)
        own = (prefix + level)[:, None] + depths
        indices = jnp.where(
            entries < prefix[:, None], entries,
            prefix[:, None] + (entries - first[:, None]) // wide,
        )  # fmt: skip
        indices = set_rows(indices, own, first + level * wide, axis=1)
        return Forest(seen, own[:, -count:], indices)

    def start(
        self, params: Params, draft_params: Params, prompt: Prompt, output_bucket: int
    ) -> tuple[tuple[Encoded, Encoded], Live, tuple[Cache, Cache]]:
        """Encodings of both models, the one hypothesis of no tokens, both caches.

        Args:
          output_bucket: L.
        """
        capacity = self.capacity(output_bucket)
        start = self.target.start(params, prompt, capacity)
        encoded = cache = ()
        if self.draft:
            drafted = self.draft.start(draft_params, prompt, capacity, start.encoded)
            encoded, cache = drafted.encoded, drafted.cache
        tokens = jnp.tile(start.last_token[:, None], (1, self.num_beams))
        family = jnp.zeros((*tokens.shape, output_bucket), jnp.int32)
        live = Live(tokens, family, jnp.full_like(tokens, -1), tokens, family)
        return (start.encoded, encoded), live, (start.cache, cache)

    def guess(
        self, params: Params, encoded: Encoded, prompt: Prompt, beams: BeamState, live: Live,
        cache: Cache, rules: Rules,
    ) -> tuple[Guesses, Cache, Bool[Array, " b"]]:  # fmt: skip
        """The draft's beams, its cache with the tokens it was fed, and rows where it gave NaN.

        Its first call is fed the hypotheses' newest tokens and the level before, which it lacks
        after a block that survived whole: an idempotent overwrite otherwise. The last guesses are
        not fed.
        """
        batch, wide, size = len(live.tokens), self.num_beams, self.nodes
        eye = jnp.broadcast_to(jnp.eye(size, dtype=bool), (batch, size, size))
        tokens = jnp.pad(live.tokens, ((0, 0), (0, size - wide)))
        parents = jnp.where(jnp.arange(size) < wide, -1, -2)
        parents = jnp.broadcast_to(parents, (batch, size))
        roots = jnp.broadcast_to(jnp.arange(size) % wide, (batch, size))
        guesses = Guesses(tokens, parents, eye, roots)
        nan = jnp.zeros((batch,), bool)
        if self.draft is None:
            return guesses, cache, nan
        model, u = self.draft, self.draft_beams
        score, first, states = beams.live_log_probs, 0, beams.rules
        for level in range(self.gamma):
            fed = slice(first, wide + u * level)
            hidden, cache = self._feed(params, encoded, prompt, beams, live, cache, guesses, fed)
            count = fed.stop - fed.start
            logits = model.logits(params, hidden[:, -count:])
            if rules:
                logits = over_vocabulary(model, params, logits)
            best = beam_rules.continuations(logits, u + len(model.eos_ids), rules, states)
            ids = best.tokens.reshape(batch, -1)
            if not rules:
                ids = ids_of(model, params, ids)
            nan |= jnp.any(jnp.isnan(best.log_probs), axis=(1, 2))
            total = (score[..., None] + best.log_probs).reshape(batch, -1)
            total = jnp.where(one_of(ids, model.eos_ids), -jnp.inf, total)
            score, chosen = jax.lax.top_k(total, u)
            of, tokens = chosen // best.tokens.shape[2], jnp.take_along_axis(ids, chosen, axis=1)
            states, parents = advanced(rules, taken(states, of), tokens), fed.start + of
            at = (slice(None), slice(fed.stop, fed.stop + u))
            own = jnp.take_along_axis(guesses.ancestors, parents[..., None], axis=1)
            guesses = Guesses(
                guesses.tokens.at[at].set(tokens),
                guesses.parents.at[at].set(parents),
                guesses.ancestors.at[at].max(own),
                guesses.roots.at[at].set(jnp.take_along_axis(guesses.roots, parents, axis=1)),
            )
            first = fed.stop
        return guesses, cache, nan

    def _feed(
        self, params: Params, encoded: Encoded, prompt: Prompt, beams: BeamState, live: Live,
        cache: Cache, guesses: Guesses, fed: slice,
    ) -> tuple[Float[Array, "b t d"], Cache]:  # fmt: skip
        """A draft call. Its block is the level before the hypotheses' newest tokens, and these."""
        assert self.draft
        wide = self.num_beams
        tokens, roots = guesses.tokens[:, fed], guesses.roots[:, fed]
        family = jnp.take_along_axis(live.family, roots[..., None], axis=1)
        above = jnp.take_along_axis(live.parents, roots, axis=1)[..., None] == jnp.arange(wide)
        ancestors = jnp.concatenate([above, guesses.ancestors[:, fed, : fed.stop]], axis=2)
        if fed.start == 0:
            tokens = jnp.concatenate([live.above, tokens], axis=1)
            family = jnp.concatenate([live.above_family, family], axis=1)
            alone = jnp.broadcast_to(jnp.eye(wide, wide + fed.stop, dtype=bool), ancestors.shape)
            ancestors = jnp.concatenate([alone, ancestors], axis=1)
        depths = np.concatenate([np.zeros(wide, int), 1 + self._depths[: fed.stop]])
        order = self.forest(prompt, beams.length - 1, family, ancestors, depths, ahead=1)
        after = 0 if fed.start == 0 else wide + fed.start
        return self.draft.extend(params, encoded, cache, tokens, order, after=after)

    @property
    def _depths(self) -> Int[np.ndarray, " n"]:
        """Levels between the hypotheses' newest tokens and each token of a call."""
        guesses = np.arange(self.nodes - self.num_beams)
        depths = 1 + guesses // self.draft_beams if self.draft else 0 * guesses
        return np.concatenate([np.zeros(self.num_beams, int), depths])

    def score(
        self, params: Params, encoded: Encoded, prompt: Prompt, beams: BeamState, live: Live,
        cache: Cache, guesses: Guesses,
    ) -> tuple[Float[Array, "b n v"], Cache]:  # fmt: skip
        """The target call."""
        family = jnp.take_along_axis(live.family, guesses.roots[..., None], axis=1)
        order = self.forest(prompt, beams.length, family, guesses.ancestors, self._depths, ahead=0)
        hidden, cache = self.target.extend(params, encoded, cache, guesses.tokens, order)
        return self.target.logits(params, hidden), cache

    def replay(
        self, rules: BeamRules, beams: BeamState, live: Live, guesses: Guesses,
        logits: Float[Array, "b n v"],
    ) -> tuple[BeamState, Live, BeamBlock, Int[Array, " b"]]:  # fmt: skip
        """The rules' own steps, level by level, and whose logits were NaN."""
        eos_ids, (batch, wide) = self.target.eos_ids, live.tokens.shape
        here = jnp.broadcast_to(jnp.arange(wide), (batch, wide))
        block = BeamBlock(
            guesses.tokens, guesses.parents,
            kept=jnp.zeros((batch, self.gamma + 1, wide), jnp.int32),
            num_levels=jnp.zeros((batch,), jnp.int32), end=jnp.zeros((batch,), jnp.int32),
            newest=live.tokens, lost=jnp.zeros((batch, wide), bool),
        )  # fmt: skip

        def take_level(carry):
            at, beams, live, block, running, nan = carry
            count = rules.num_candidates(eos_ids)
            best = beam_rules.continuations(take_rows(logits, at), count, rules.logits, beams.rules)
            held = dataclasses.replace(beams, finished=~running)
            new, parents, tokens = self.step(rules, held, best)
            bad = jnp.where(running, beam_rules.nan_of(best, beams), 0)
            finished = jnp.where(running, new.finished | (bad > 0), beams.finished)
            level = jnp.max(jnp.where(running, block.num_levels, 0))  # Of all that are running.
            index, found = self.find(guesses, take_rows(at, parents), tokens)
            lost = ~found & (new.live_log_probs > -jnp.inf)
            family = take_rows(live.family, parents)
            now = jnp.arange(family.shape[2]) == beams.length[:, None, None]
            after = Live(
                tokens, jnp.where(now, parents[..., None], family), parents,
                take_rows(guesses.tokens, at), live.family,
            )  # fmt: skip
            missed = jnp.any(lost, axis=1)
            limit = new.length >= new.limit
            why = jnp.where(limit, 2, 1)
            why = jnp.where(finished, why, jnp.where(level < self.gamma, 0, 3))
            going = running & ~finished & ~missed & (level < self.gamma)
            kept = jax.lax.dynamic_update_slice_in_dim(block.kept, at[:, None], level, axis=1)
            taken = BeamBlock(
                block.tokens, block.parents, kept, block.num_levels + 1, why, tokens, lost
            )
            live, block = jax.tree.map(
                lambda old, new: where_rows(running, new, old), (live, block), (after, taken)
            )
            new = dataclasses.replace(new, finished=finished)
            return index, new, live, block, going, jnp.maximum(nan, bad)

        carry = here, beams, live, block, ~beams.finished, jnp.zeros((batch,), jnp.int32)
        if self.draft:
            carry = jax.lax.while_loop(lambda carry: jnp.any(carry[4]), take_level, carry)
        else:
            carry = take_level(carry)
        _, beams, live, block, _, nan = carry
        return beams, live, block, nan

    def step(
        self, rules: BeamRules, beams: BeamState, best: Continuations
    ) -> tuple[BeamState, Int[Array, "b w"], Int[Array, "b w"]]:
        """:func:`specdec.decoding.beam_rules.step`."""
        return beam_rules.step(rules, self.target.eos_ids, beams, best)

    def find(
        self, guesses: Guesses, parents: Int[Array, "b w"], tokens: Int[Array, "b w"]
    ) -> tuple[Int[Array, "b w"], Bool[Array, "b w"]]:
        """Which guess each survivor goes on with, and whether there is one."""
        same = guesses.parents[:, None] == parents[..., None]
        same &= guesses.tokens[:, None] == tokens[..., None]
        return jnp.argmax(same, axis=2).astype(jnp.int32), jnp.any(same, axis=2)

    def keep(self, block: BeamBlock, caches: tuple[Cache, Cache]) -> tuple[Cache, Cache]:
        """Both caches with the entries of the levels that were taken, in the order of beams."""
        batch, wide, (cache, draft_cache) = len(block.tokens), self.num_beams, caches
        count = wide * block.num_levels
        if self.draft is None:
            return self.target.commit(cache, None, count), draft_cache
        path = block.kept.reshape(batch, -1)
        cache = self.target.commit(cache, path, count)
        # The level before comes first, and the last level taken is fed again.
        above = jnp.broadcast_to(jnp.arange(wide), (batch, wide))
        path = jnp.concatenate([above, wide + path[:, :-wide]], axis=1)
        return cache, self.draft.commit(draft_cache, path, count)
