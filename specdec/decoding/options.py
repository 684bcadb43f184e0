"""How to decode: all that a user can choose, as one value."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from specdec.core.arguments import whole
from specdec.core.fields import ABOVE_0, Count, Natural, Real, Share, Whole, checked
from specdec.core.topology import MOST_NODES
from specdec.decoding.beam_rules import BeamConfig
from specdec.drafters.shape import Chain, Shape, Tree, as_tree
from specdec.rules.base import Rule
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier

Method = Literal["speculative", "autoregressive", "beam", "speculative_beam"]
AutoName = Literal["gamma", "tree", "beams"]  # The shape that "auto" chooses.
GREEDY = SamplingConfig(temperature=0.0)
DEFAULT_GAMMA = 4
_OF_CHAINS, _OF_TREES = TokenVerifier(), RecursiveVerifier()
_OF_GUESSES = ("tree", "verifier", "draft_sampling", "stop_below", "draft_follows_rules")
_NOT_OF_BEAMS = {
    "stop": "Beams end with EOS or at their limit",
    "time_limit": "Beams are whole at their end only",
    "top_log_probs": "Beams have no alternatives to their tokens",
    "audit": "Margins between beams are in their scores",
    "exact": "Beams share what they have in common, in an order that changes",
}
_PLAIN: dict[str, Method] = {"speculative": "autoregressive", "speculative_beam": "beam"}


@checked()
class Decoding:
    """How to decode. Checked when it is made; equal values decode alike.

    With ``method="speculative"`` outputs follow the same distribution as with "autoregressive": the
    same tokens at temperature 0, the same distribution above it, unless the verifier is a lossy one
    (see ``verifier.lossless``).

    Attributes:
      method: "speculative"; "autoregressive", which is plain decoding; "beam", which takes no
        options of a draft; or "speculative_beam": the same beams in fewer calls of the target.
      gamma: guesses a block, in 1..max_decode_len - 1; None for 4, or as many as the draft can make
        and fit into an output; or "auto": the fastest by measurement (as for a draft that
        never stops), plain decoding where speculation does not pay. Of speculative beams: levels
        that the draft guesses.
      stop_below: the draft ends a block's guesses after one less likely than this; see
        :class:`specdec.drafters.model.ModelDrafter`.
      tree: several guesses for one position, instead of gamma: a :class:`specdec.Tree`, or its
        branching by level, such as (3, 2, 1); or "auto": the fastest of trees, chains and plain
        decoding.
      beam: how beams are searched; :class:`specdec.BeamConfig`'s defaults if None.
      num_samples: outputs of each text, each with its own random numbers; at temperature 0, and of
        beams, only 1. A text is encoded once.
      num_return: of beam search, hypotheses to return of each row, in 1..num_beams; 1 if None.
      draft_beams: of speculative beams, those of the draft, at least num_beams; three times as many
        if None. More of them miss less and make calls longer.
      verifier: what accepts guesses. Of chains :class:`specdec.TokenVerifier`, which is the
        default, :class:`specdec.BlockVerifier`, or the lossy :class:`specdec.LenientVerifier`. Of
        trees, and of chains as well, :class:`specdec.RecursiveVerifier`, which is their default,
        :class:`specdec.TraversalVerifier`, :class:`specdec.KSeqVerifier`,
        :class:`specdec.PointMassVerifier`, or the lossy :class:`specdec.TypicalVerifier`.
      rules: rules for logits, such as ``(specdec.NoRepeatNgram(3),)``, in the order in which they
        are applied; before temperature, top-k and top-p. Outputs follow the distribution with them.
        None for those that the checkpoint's generation_config.json sets.
      stop: what ends an output beside EOS: strings, found in its text as it is shown, wherever
        tokens begin and end, and token ids. ``texts`` end before the string, ``tokens`` with the
        first token behind which the text has it. Not of beams.
      time_limit: seconds, after which ``generate`` and ``stream`` end with what there is; compiling
        counts, too. Not of beams. None for any time.
      log_probs: whether the log-probabilities of each token are returned.
      top_log_probs: how many alternatives to each token are returned with them; not of beams.
      draft_follows_rules: whether the draft follows the rules, too, which makes its guesses better
        and does not change the outputs' distribution.
      sampling: temperature (0: argmax), top-k, top-p, min-p and typical-p.
      draft_sampling: how guesses are drawn, which does not change the outputs' distribution; as
        ``sampling`` if None.
      exact: whether the target's logits are the same bits for each gamma, tree and batch, and so
        are greedy tokens, in 16 bits, too. On CPU, and not of beams. Long inputs take longer.
      audit: whether it is measured how far rounding moves the margin between a token's logit and
        the second largest, and counted how many tokens it could change; see
        :class:`specdec.Audit`. Each batch is decoded plainly once more. At temperature 0, and not
        of beams.
      max_input_len: tokens an input may have, EOS included.
      truncate: whether inputs that are longer are cut, instead of refused. An encoder's keep EOS.
      max_decode_len: tokens a row may emit, EOS included.
      seed: of the random numbers; 64 bits.
      batch_size: texts decoded together; on a mesh, a multiple of its data axis.

    Raises:
      ValueError: naming the option that has another type or is out of range, or two that do not go
        together.
    """

    method: Method = "speculative"
    gamma: int | Literal["auto"] | None = None
    stop_below: Share = 0.0
    tree: Tree | Sequence[int] | Literal["auto"] | None = None
    beam: BeamConfig | None = None
    num_samples: Count = 1
    num_return: int | None = None
    draft_beams: int | None = None
    verifier: Verifier | None = None
    rules: Sequence[Rule] | None = None
    draft_follows_rules: bool = True
    stop: Sequence[str | int] = ()
    time_limit: Annotated[float, Real("seconds, above 0", ABOVE_0)] | None = None
    log_probs: bool = False
    top_log_probs: Natural = 0
    sampling: SamplingConfig = GREEDY
    draft_sampling: SamplingConfig | None = None
    exact: bool = False
    audit: bool = False
    max_input_len: Count = 512
    truncate: bool = False
    max_decode_len: Count = 64
    seed: Annotated[int, Whole(-(2**63), 2**64 - 1)] = 0
    batch_size: Count = 1

    def __post_init__(self):
        self._check_objects()
        if self.num_samples > 1 and self.sampling.greedy:
            advice = "num_return" if self.searches else "sampling=specdec.SamplingConfig(1.0)"
            raise ValueError(
                f"num_samples is {self.num_samples}, and at temperature 0 all samples are the "
                f"same: give {advice}."
            )
        self._check_beams()
        if self.audit and not self.sampling.greedy:
            raise ValueError(
                "audit counts greedy tokens that rounding could change: set temperature 0, or "
                "leave audit out."
            )
        self._check_shape()

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # Of Python's own types, for JSON.

    def _check_objects(self) -> None:
        for name in ("sampling", "draft_sampling"):
            value = getattr(self, name)
            if not isinstance(value, SamplingConfig) and (name == "sampling" or value is not None):
                raise ValueError(
                    f"{name} must be a SamplingConfig, such as SamplingConfig(temperature=0.5), "
                    f"got {value!r}."
                )
        if self.rules is not None:
            self._set(rules=self._checked_rules())
        self._set(stop=self._checked_stop())
        given = self.verifier
        if given is not None and (not isinstance(given, Verifier) or isinstance(given, type)):
            raise ValueError(
                f"verifier must be an object such as specdec.BlockVerifier(), got {given!r}."
            )

    def _checked_rules(self) -> tuple[Rule, ...]:
        given: Any = self.rules
        rules = tuple(given) if isinstance(given, list | tuple) else (given,)
        for rule in rules:
            if not isinstance(rule, Rule) or isinstance(rule, type):
                raise ValueError(
                    "rules must be objects such as (specdec.NoRepeatNgram(3),); your own are "
                    f"subclasses of specdec.OwnRule. Got {rule!r}."
                )
        return rules

    def _checked_stop(self) -> tuple[str | int, ...]:
        given: Any = self.stop
        if isinstance(given, str) or not isinstance(given, list | tuple):
            raise ValueError(
                f'stop must be a list of strings and token ids, such as ["\\n"], got {given!r}.'
            )
        return tuple(
            each if isinstance(each, str) else whole("each of stop", each, 0) for each in given
        )

    def _check_beams(self) -> None:
        if self.draft_beams is not None and self.method != "speculative_beam":
            raise ValueError(
                'draft_beams belongs to method="speculative_beam": leave it out, got '
                f"{self.draft_beams!r}."
            )
        if not self.searches:
            if self.beam is not None or self.num_return is not None:
                raise ValueError(
                    'beam and num_return belong to method="beam" and "speculative_beam": leave '
                    f"them out with method={self.method!r}, got beam = {self.beam!r} and "
                    f"num_return = {self.num_return!r}."
                )
            return
        why, gone = "A draft of beams is one itself", _OF_GUESSES
        if self.method == "beam":
            why, gone = "Beam search has no draft", ("gamma", *_OF_GUESSES)
        for name, reason in {**dict.fromkeys(gone, why), **_NOT_OF_BEAMS}.items():
            if (given := getattr(self, name)) != getattr(Decoding, name):
                raise ValueError(f"{reason}: leave {name} out, got {given!r}.")
        beam = BeamConfig() if self.beam is None else self.beam
        if not isinstance(beam, BeamConfig):
            raise ValueError(
                f"beam must be a BeamConfig, such as specdec.BeamConfig(num_beams=4), got {beam!r}."
            )
        if self.sampling != GREEDY:
            raise ValueError(
                "Beam search draws nothing: sampling must have temperature 0 and nothing else, got "
                f"{self.sampling}."
            )
        number = 1 if self.num_return is None else self.num_return
        self._set(beam=beam, num_return=whole("num_return", number, 1, beam.num_beams))
        if self.draft_beams is not None:
            least = beam.num_beams
            self._set(draft_beams=whole("draft_beams", self.draft_beams, least))

    def _check_shape(self) -> None:
        plain = _PLAIN.get(self.method)
        if self.tree is not None:
            self._check_tree()
        elif plain and self.gamma is not None and self.gamma != "auto":
            self._check_gamma(plain)
        # One token leaves nothing to guess.
        if plain and self.max_decode_len == 1 and (self.gamma in (None, "auto") or self.tree):
            self._set(method=plain, gamma=None, tree=None, draft_beams=None)

    def _check_gamma(self, plain: str) -> None:
        if isinstance(self.gamma, str):
            raise ValueError(f'gamma must be a whole number or "auto", got {self.gamma!r}.')
        gamma, most = whole("gamma", self.gamma, -sys.maxsize), self.max_decode_len - 1
        if not 1 <= gamma <= most:
            raise ValueError(
                f"gamma must be in [1, max_decode_len - 1] = [1, {most}], got {gamma}; "
                f'for plain decoding use method="{plain}".'
            )
        if gamma > MOST_NODES:
            raise ValueError(
                f"gamma must be at most {MOST_NODES}, got {gamma}: the target scores gamma + 1 "
                "tokens in one call, and what they attend to is the square of it. Good values are "
                "below 20."
            )
        self._set(gamma=gamma)

    def _check_tree(self) -> None:
        if self.method == "autoregressive":
            raise ValueError(
                f"Plain decoding has no guesses: tree must be None, got {self.tree!r}."
            )
        if self.gamma is not None:
            raise ValueError(
                "Give gamma, which is a chain, or tree (in gin with GAMMA = None), not both; got "
                f"gamma = {self.gamma!r} and tree = {self.tree!r}."
            )
        if self.stop_below:
            raise ValueError(
                f"A tree cannot stop early: stop_below must be 0, got {self.stop_below}."
            )
        if isinstance(self.tree, str) and self.tree == "auto":
            return
        tree, most = as_tree(self.tree), self.max_decode_len
        if tree.levels >= most:
            raise ValueError(
                f"{tree} has {tree.levels} guesses in a row; an output of max_decode_len = {most} "
                f"tokens has room for {most - 1}."
            )
        self._set(tree=tree)

    @property
    def alternatives(self) -> int | None:
        """Number of alternatives to keep of each token; None to keep no log-probabilities."""
        kept = self.log_probs or self.top_log_probs or self.audit
        return self.top_log_probs if kept else None

    @property
    def searches(self) -> bool:
        """Whether it is beam search."""
        return self.method in ("beam", "speculative_beam")

    @property
    def num_outputs(self) -> int:
        """Outputs of each row: samples, or hypotheses to return."""
        return self.num_return or self.num_samples

    @property
    def guesses(self) -> bool:
        """Whether a draft guesses."""
        return self.method in _PLAIN

    @property
    def to_choose(self) -> AutoName | None:
        """The shape that "auto" is to choose; None if nothing is "auto"."""
        if not self.guesses or "auto" not in (self.gamma, self.tree):
            return None
        return "beams" if self.searches else "tree" if self.tree else "gamma"

    @property
    def shape(self) -> Shape | None:
        """The guesses of a block, once nothing is "auto"; None without a draft."""
        if not self.guesses:
            return None
        if self.tree is not None:
            assert isinstance(self.tree, Tree)
            return self.tree
        gamma = min(DEFAULT_GAMMA, self.max_decode_len - 1) if self.gamma is None else self.gamma
        assert isinstance(gamma, int)
        return Chain(gamma, self.stop_below)

    @property
    def depth(self) -> int:
        """Guesses in a row; 0 without a draft."""
        return self.shape.levels if self.shape else 0

    @property
    def accepts(self) -> Verifier:
        """The verifier, or the default of chains or of trees."""
        return self.verifier or (_OF_CHAINS if self.tree is None else _OF_TREES)

    def fitted(self, most_guesses: int) -> Decoding:
        """These options with a number for a gamma that was not given.

        Args:
          most_guesses: the most guesses in a row that the draft can make.
        """
        if not self.guesses or self.gamma is not None or self.tree is not None:
            return self
        return dataclasses.replace(self, gamma=min(self.depth, most_guesses))

    def with_shape(self, shape: Shape | None) -> Decoding:
        """These options with this shape of a block; plain decoding if None."""
        changes: dict[str, Any] = {"gamma": None, "tree": None, "stop_below": 0.0}
        if shape is None:
            changes |= {"method": _PLAIN.get(self.method, self.method), "draft_beams": None}
        else:
            changes["method"] = "speculative_beam" if self.searches else "speculative"
            changes |= {"tree": shape} if isinstance(shape, Tree) else vars(shape)
        return dataclasses.replace(self, **changes)


def decoding_of(given: Decoding | None, options: Mapping[str, Any]) -> Decoding:
    """``given``, or the defaults, with these options."""
    if given is None:
        return Decoding(**options)
    if not isinstance(given, Decoding):
        raise ValueError(f"decoding must be a specdec.Decoding, got {given!r}.")
    return dataclasses.replace(given, **options)
