"""The data that passes between the parts. No logic beyond checking one's own fields.

Shapes: B batch, N drafted nodes, D depth of the draft (N = D = gamma for a chain), V vocabulary,
L output bucket, S input length, P prefix length.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from specdec.core.fields import ABOVE_0, Real, Whole, checked
from specdec.core.pytrees import pytree, static_field
from specdec.core.topology import AnyTopology

AnyArray = Any  # A JAX array, or on the host a NumPy array.
Seed = Any  # An int of 32 bits, a scalar array, or a uint32 array of two words.
Params = Any  # A model's or a drafter's own pytree; only that one looks inside.
Cache = Any
Encoded = Any
DrafterState = Any
_Kept = Annotated[float, Real("in (0, 1] (1 keeps all)", ABOVE_0, 1)]
RuleStates = Any  # See :mod:`specdec.rules.base`.


@checked()
class SamplingConfig:
    """Options of sampling, from logits to a distribution; see :func:`specdec.core.standardize`.

    Attributes:
      temperature: divides the logits; 0 means argmax. Must be >= 0.
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: then keep the smallest set with at least this probability; in (0, 1].
      min_p: then keep tokens at least this often as likely as the likeliest; in [0, 1], 0 keeps all
        (Nguyen et al. 2024, "Turning Up the Heat").
      typical_p: then keep the smallest set with at least this probability of the tokens whose
        surprise, -log p, is nearest to the entropy; in (0, 1] (Meister et al. 2023, "Locally
        Typical Sampling").

    Raises:
      ValueError: for a value outside its range.
    """

    temperature: Annotated[float, Real("finite and >= 0 (0 means argmax)", 0)] = 1.0
    top_k: Annotated[int, Whole(0, note=" (0 keeps all)")] = 0
    top_p: _Kept = 1.0
    min_p: Annotated[float, Real("in [0, 1] (0 keeps all)", 0, 1)] = 0.0
    typical_p: _Kept = 1.0

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a point mass on the most likely token."""
        return self.temperature == 0

    def traced(self, rules: tuple[Any, ...] = ()) -> Sampling:
        """These settings with traced numbers, which may change between calls of one program.

        A temperature that float32 would round to 0 becomes its smallest number.

        Args:
          rules: see :class:`Sampling`.
        """
        temperature = max(self.temperature, float(np.finfo(np.float32).tiny))
        return Sampling(
            np.asarray(temperature, np.float32), np.asarray(self.top_k, np.int32),
            np.asarray(self.top_p, np.float32),
            np.asarray(self.min_p, np.float32) if self.min_p > 0 else None,
            np.asarray(self.typical_p, np.float32) if self.typical_p < 1 else None,
            rules, self.greedy,
        )  # fmt: skip


@pytree
class Sampling:
    """A :class:`SamplingConfig` inside a program. Its numbers are traced, ``greedy`` is static.

    Attributes:
      temperature, top_k, top_p: scalars; not looked at where ``greedy``.
      min_p, typical_p: the same; None where they keep all.
      rules: of :class:`specdec.rules.base.OpenRule`, what is made of logits before all else.
      greedy: whether this is argmax.
    """

    temperature: Float[AnyArray, ""]
    top_k: Int[AnyArray, ""]
    top_p: Float[AnyArray, ""]
    min_p: Float[AnyArray, ""] | None
    typical_p: Float[AnyArray, ""] | None
    rules: tuple[Any, ...]
    greedy: bool = static_field()


@pytree
class Encoding:
    """An encoder's output, computed before.

    Attributes:
      output: [B, S, D].
      lengths: [B] how many of the states a row has; the rest is filler.
    """

    output: Float[AnyArray, "b s d"]
    lengths: Int[AnyArray, " b"]


@pytree
class Prompt:
    """Start of a batch of rows: an encoder's inputs, and the decoder's first tokens.

    Lengths are given, never found by comparing with a padding id: some models pad with EOS.

    Attributes:
      inputs: [B, S] the encoder's tokens, S = 0 for a decoder-only model; or [B, S, M] features.
      input_lengths: [B] how many of them a row has; the rest is filler.
      prefix: [B, P] the decoder's first tokens, P >= 1: a start token, or a decoder-only model's
        prompt. None of them is output.
      prefix_lengths: [B], in 1..P.
      encoding: the target's, which then does not encode; None to encode ``inputs``. A draft with an
        encoder of its own reads ``inputs`` all the same.
      given: [B, G] texts that a draft may follow, of output tokens: a 0, a text's ids plus 1, a 0,
        the next text's, and so on, and a 0 behind the last; then zeros. None without any.
    """

    inputs: Shaped[AnyArray, "b s ..."]
    input_lengths: Int[AnyArray, " b"]
    prefix: Int[AnyArray, "b p"]
    prefix_lengths: Int[AnyArray, " b"]
    encoding: Encoding | None = None
    given: Int[AnyArray, "b g"] | None = None

    @property
    def tokens(self) -> Int[AnyArray, "b s"]:
        """The inputs that are tokens; [B, 0] where they are features."""
        return self.inputs if self.inputs.ndim == 2 else self.inputs[:, :0, 0].astype(np.int32)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.prefix.shape[0]

    @property
    def input_mask(self) -> Bool[Array, "b s"]:
        """Which inputs are not filler."""
        return jnp.arange(self.inputs.shape[1]) < self.input_lengths[:, None]

    @property
    def last_token(self) -> Int[Array, " b"]:
        """[B] each row's last prefix token, which the first output token follows."""
        last = self.prefix_lengths[:, None] - 1
        return jnp.take_along_axis(self.prefix, last, axis=1)[:, 0]


@pytree
class Start:
    """A model's state after a prompt.

    Attributes:
      encoded: all that does not change while decoding (cross-attention K/V), computed once.
      cache: holds every prefix token but the last.
      last_token: [B] each row's last prefix token, not yet in the cache.
      states: [B, P - 1, D] the last hidden states of the tokens in the cache; what is behind a
        row's own is filler.
    """

    encoded: Encoded
    cache: Cache
    last_token: Int[Array, " b"]
    states: Float[Array, "b p d"]


@pytree
class PointMass:
    """Distributions that put all mass on one token each.

    Attributes:
      tokens: [B, N].
      relative: [B, N, V], p(x) / max p of the distributions whose argmax they are, for a verifier
        that asks for it; else None.
    """

    tokens: Int[Array, "b n"]
    relative: Float[Array, "b n v"] | None = None


# Dense probabilities [B, N, V] in float32, or point masses.
Distribution = Array | PointMass


@pytree
class Draft:
    """Guesses of a drafter for one block.

    Attributes:
      tokens: [B, N] guesses, a node each.
      probs: [B, N, V], the exact q each token was drawn from given its earlier siblings, or None
        for point masses.
      topology: each node's parent; a chain is the tree with one branch.
      num_guesses: [B], in 0..N: how many of a row's nodes are guesses, the rest being filler; None
        when all are. It may depend on the guesses themselves and on what came before, for those
        guesses are all verified.
      independent: whether siblings were drawn independently from one q, so that they may repeat.
    """

    tokens: Int[Array, "b n"]
    probs: Float[Array, "b n v"] | None
    topology: AnyTopology
    num_guesses: Int[Array, " b"] | None = None
    independent: bool = static_field(default=False)


@pytree
class Verdict:
    """Outcome of verifying a draft.

    Attributes:
      tokens: [B, D+1]; the first ``num_emitted[b]`` of row b are its next tokens: the accepted
        guesses and then one correction (from the residual) or bonus token (from p).
      num_emitted: [B], in 1..D+1; 0 for a row that is finished.
      num_accepted: [B], in 0..D: how many of them are guesses.
      path: [B, D+1], nodes of the scored block (0 is the token before the draft) whose cache
        entries are kept, in order; only the first ``num_emitted[b]`` count.
      acceptance_prob: [B, D] the probability with which this verifier could have accepted a guess
        at each level; for token verification sum_x min(p(x), q(x)).
      examined: [B], in 0..D: the levels it looked at, of which ``acceptance_prob`` is counted.
    """

    tokens: Int[Array, "b d1"]
    num_emitted: Int[Array, " b"]
    num_accepted: Int[Array, " b"]
    path: Int[Array, "b d1"]
    acceptance_prob: Float[Array, "b d"]
    examined: Int[Array, " b"]


class Purpose(enum.IntEnum):
    """Purpose of a random number. No two purposes ever share one."""

    PROPOSAL = 0
    ACCEPTANCE = 1
    FINAL = 2
    # The same for a drafter that is a speculative pair itself.
    INNER_PROPOSAL = 3
    INNER_ACCEPTANCE = 4
    INNER_FINAL = 5


class RandomSource(Protocol):
    """One block's random numbers; see :mod:`specdec.core.randomness` for the real one."""

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """``count`` numbers in [0, 1) a row."""
        ...


@pytree
class Stats:
    """Counts for each row, accumulated inside the loop; dropped tokens enter none but ``dropped``.

    Attributes:
      target_calls: [B] blocks run while the row was unfinished.
      proposed: [B] guesses made, all nodes of a tree.
      examined: [B] levels looked at: up to the first rejection, or the row's end.
      accepted: [B] guesses emitted.
      emitted: [B] tokens emitted, EOS included.
      dropped: [B] tokens verified but past EOS or the length limit.
      accepted_histogram: [B, D+1] blocks by the number of guesses accepted.
      accepted_by_rank: [B, K] guesses emitted, by their index among their siblings.
      acceptance_prob_sum: [B] sum of the verifier's acceptance probabilities at the examined
        levels; divided by ``examined`` it estimates alpha (Leviathan et al. 2023, Corollary 3.6).
    """

    target_calls: Int[Array, " b"]
    proposed: Int[Array, " b"]
    examined: Int[Array, " b"]
    accepted: Int[Array, " b"]
    emitted: Int[Array, " b"]
    dropped: Int[Array, " b"]
    accepted_histogram: Int[Array, "b d1"]
    accepted_by_rank: Int[Array, "b k"]
    acceptance_prob_sum: Float[Array, " b"]


@pytree
class BlockInfo:
    """One block's diagnostics.

    Attributes:
      draft_tokens: [B, N] the guesses.
      parents: [B, N] the guess that each follows, -1 for the token before the draft.
      num_guesses: [B] how many of them are guesses.
      tokens: [B, D+1] the verdict's tokens.
      num_accepted: [B] guesses emitted (after EOS and the length limit).
      num_emitted: [B] tokens emitted; 0 for a finished row.
      path: [B, D+1] see :class:`Verdict`.
    """

    draft_tokens: Int[Array, "b n"]
    parents: Int[Array, "b n"]
    num_guesses: Int[Array, " b"]
    tokens: Int[Array, "b d1"]
    path: Int[Array, "b d1"]
    num_accepted: Int[Array, " b"]
    num_emitted: Int[Array, " b"]


@pytree
class LogProbs:
    """The logarithms of the target's probabilities of some tokens, in float32.

    Attributes:
      plain: [B, T] by the model's own distribution, softmax(logits).
      adjusted: [B, T] by the one that was followed: with rules, and above temperature 0 with
        temperature, top-k and top-p.
      ruled: [B, T] by that with rules alone, at temperature 1.
      top_tokens, top: [B, T, n] the n likeliest tokens of the model's own, best first.
      margins: [B, T] the largest logit there, after rules, minus the second largest; None without
        an audit.
    """

    plain: Float[Array, "b t"]
    adjusted: Float[Array, "b t"]
    ruled: Float[Array, "b t"]
    top_tokens: Int[Array, "b t n"]
    top: Float[Array, "b t n"]
    margins: Float[Array, "b t"] | None


# In ``failed`` of what is decoded: a distribution of the target or the draft was NaN; rules made
# NaN or +inf of logits that were neither; rules left no token.
NAN_OF_MODELS, NAN_OF_RULES, NO_TOKEN = 1, 2, 3


@pytree
class DecodeState:
    """State between two steps.

    Attributes:
      tokens: [B, L + slack] output so far; beyond ``num_tokens`` is garbage.
      num_tokens: [B] tokens emitted, EOS included.
      last_token: [B] emitted but not yet in the target's cache.
      finished: [B] EOS emitted, limit reached, ``stopped`` or ``failed``.
      failed: [B] 0, or why: :data:`NAN_OF_MODELS`, :data:`NAN_OF_RULES` or :data:`NO_TOKEN`.
      stop: [B] how much of a stop string the text ends with, a state of
        :class:`specdec.rules.stops.Stops`; None without any.
      stopped: [B] rows that such a string, or a stop token, has ended; None without any.
      block: [B] how many blocks each row has run.
      limit: scalar, tokens a row may emit, EOS included.
      row_keys: [B] one key a row.
      rules: the states of the rules for logits, behind the last token; () without rules.
      encoded, cache: the target's.
      drafter_state: the drafter's own; None for plain decoding.
      log_probs: of the output, [B, L + slack]; None unless asked for.
      stats: accumulated counts.
      trace: BlockInfo whose second axis is of blocks, L and one for finished rows, or None.
    """

    tokens: Int[Array, "b l"]
    num_tokens: Int[Array, " b"]
    last_token: Int[Array, " b"]
    finished: Bool[Array, " b"]
    failed: Int[Array, " b"]
    stop: Int[Array, " b"] | None
    stopped: Bool[Array, " b"] | None
    block: Int[Array, " b"]
    limit: Int[Array, ""]
    row_keys: Array
    rules: RuleStates
    encoded: Encoded
    cache: Cache
    drafter_state: DrafterState
    log_probs: LogProbs | None
    stats: Stats
    trace: BlockInfo | None


@pytree
class DecodeResult:
    """A finished decode.

    Attributes:
      tokens: [B, L] with ``pad_id`` after the end.
      num_tokens: [B] EOS included.
      failed: [B] see :class:`DecodeState`; such a row's last block is garbage.
      stopped: [B] see :class:`DecodeState`.
      log_probs: of ``tokens``, 0 behind the end; None unless asked for.
      stats: see :class:`Stats`.
      trace: see :class:`BlockInfo`, with a second axis of blocks; a row's end with its first one of
        no tokens. None unless asked for.
    """

    tokens: Int[Array, "b l"]
    num_tokens: Int[Array, " b"]
    failed: Int[Array, " b"]
    stopped: Bool[Array, " b"] | None
    log_probs: LogProbs | None
    stats: Stats
    trace: BlockInfo | None
