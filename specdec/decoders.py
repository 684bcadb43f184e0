"""What decodes with a target and a draft, and which way of it is fastest here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from specdec.core.machine import cache_directory, device_name, fingerprint
from specdec.data.vocabulary import Tokenizer
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, bucket, commonest, make_batches
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.drafters.base import OpenDraft
from specdec.drafters.tree import Tree
from specdec.engines import speculative_beams, speculative_engine
from specdec.generate_arguments import Method
from specdec.measure import chooser
from specdec.measure.beam_choice import BeamKind
from specdec.measure.choice import Choice, Name, keep, remembered
from specdec.measure.chooser import Kind
from specdec.measure.decode_choice import DecodeKind
from specdec.models.base import LoadedModel
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.kseq import KSeqVerifier

GREEDY = SamplingConfig(temperature=0.0)
_PROBED_BATCHES = 32  # Decoded to measure acceptance, and to time what is promising.


class Decoders:
    """A target, a draft and the vocabulary they share; :class:`specdec.Pair` adds texts.

    Attributes:
      target: the model whose law outputs follow.
      draft: what guesses.
      vocabulary: None where the checkpoints have none; then texts are token ids.
      name: for results and tables.
    """

    def __init__(
        self,
        target: LoadedModel,
        draft: OpenDraft,
        vocabulary: Tokenizer | None,
        name: str = "custom",
    ):
        self.target, self.draft = target, draft
        self.vocabulary = vocabulary
        self.name = name

    def decoder(
        self,
        *,
        method: Method,
        gamma: int = 0,
        tree: Tree | None = None,
        sampling: SamplingConfig,
        max_decode_len: int,
        seed: int,
        width: int = 1,
        verifier: Verifier | None = None,
        stop_below: float = 0.0,
        draft_sampling: SamplingConfig | None = None,
    ) -> BatchDecoder:
        """What decodes batches of :func:`specdec.decoding.batches.make_batches`.

        Args:
          gamma, tree: one of them, for speculative decoding.
          width: of plain decoding's target calls; see :class:`specdec.decoding.engine.Engine`.
          verifier: None for the default of chains or of trees.

        Raises:
          ValueError: the draft cannot draw its guesses so, cannot stop early or cannot grow the
            tree, or the verifier takes chains only.
        """
        params = EngineParams(self.target.params, sampling.traced())
        engine = Engine(self.target.model, width=width)
        if method == "speculative":
            engine = speculative_engine(
                self.target.model, self.draft, gamma, tree, verifier, stop_below
            )
            drawn = self.draft.params(draft_sampling or sampling)
            params = dataclasses.replace(params, drafter=drawn)
        return BatchDecoder(engine, params, self.target, max_decode_len, seed)

    def beam_decoder(
        self, beam: BeamConfig, *, gamma: int = 1, draft_beams: int | None = None,
        max_decode_len: int = 64,
    ) -> SpeculativeBeamDecoder:  # fmt: skip
        """What searches beams that the draft guesses; see :meth:`specdec.Pair.generate`.

        Raises:
          ValueError: the draft is no model; more beams than tokens; fewer draft_beams than beams.
        """
        return speculative_beams(self.target, self.draft, beam, gamma, draft_beams, max_decode_len)

    def choose_gamma(
        self,
        ids: Sequence[np.ndarray],
        *,
        sampling: SamplingConfig = GREEDY,
        max_decode_len: int = 64,
        seed: int = 0,
        batch_size: int = 1,
        draft_sampling: SamplingConfig | None = None,
        stop_below: float = 0.0,
        verifier: Verifier | None = None,
        remember: bool = True,
        prefixes: Sequence[np.ndarray] | None = None,
    ) -> Choice:
        """The gamma for these rows on this machine, 0 where plain decoding is faster.

        Decodes the first rows to measure alpha, c and v, then times the most promising gammas on
        them (:mod:`specdec.measure.chooser`); half a minute at most. What could be measured in that
        time decides. A choice that was timed is kept in the user's cache directory, and found there
        the next time for this pair, device, sampling and shapes.

        Args:
          ids: see :meth:`specdec.Pair.token_ids`; a few rows are enough.
          remember: whether to look for a choice made before, and to keep this one.
          prefixes: of each row; see :meth:`specdec.Pair.prefix_ids`.

        Raises:
          ValueError: no row, or max_decode_len below 2, which leaves nothing to guess; a draft
            without chains, or one that the verifier cannot verify.
        """
        return self._choose_shape(
            "gamma", ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
            batch_size=batch_size, draft_sampling=draft_sampling, stop_below=stop_below,
            verifier=verifier, remember=remember, prefixes=prefixes,
        )  # fmt: skip

    def choose_tree(
        self,
        ids: Sequence[np.ndarray],
        *,
        sampling: SamplingConfig = GREEDY,
        max_decode_len: int = 64,
        seed: int = 0,
        batch_size: int = 1,
        draft_sampling: SamplingConfig | None = None,
        stop_below: float = 0.0,
        verifier: Verifier | None = None,
        remember: bool = True,
        prefixes: Sequence[np.ndarray] | None = None,
    ) -> Choice:
        """A tree, a chain or plain decoding for these rows on this machine.

        Measures acceptance by rank and what blocks cost by size, then times the most promising
        shapes that the draft can make; a minute at most. All else is as for :meth:`choose_gamma`.

        Raises:
          ValueError: no row, or max_decode_len below 2; a draft or verifier of chains only, a draft
            that the verifier cannot verify, or stop_below above 0.
        """
        if stop_below:
            raise ValueError(f"A tree cannot stop early: stop_below must be 0, got {stop_below}.")
        return self._choose_shape(
            "tree", ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
            batch_size=batch_size, draft_sampling=draft_sampling, stop_below=0.0,
            verifier=verifier, remember=remember, prefixes=prefixes,
        )  # fmt: skip

    def choose_beams(
        self, ids: Sequence[np.ndarray], beam: BeamConfig, *, draft_beams: int | None = None,
        max_decode_len: int = 64, batch_size: int = 1, remember: bool = True,
        prefixes: Sequence[np.ndarray] | None = None,
    ) -> Choice:  # fmt: skip
        """The gamma of speculative beams for these rows on this machine, 0 for plain beams.

        Measures levels a call and what calls cost, then times the best two on the first rows; a
        minute at most. All else is as for :meth:`choose_gamma`.

        Raises:
          ValueError: no row, or max_decode_len below 2; see also :meth:`beam_decoder`.
        """
        batches = self._to_choose(ids, max_decode_len, batch_size, prefixes)
        decoder = self.beam_decoder(beam, draft_beams=draft_beams, max_decode_len=max_decode_len)
        plain = BeamDecoder(self.target, beam, max_decode_len)
        kind = BeamKind(plain, decoder, max_decode_len - 1)
        key = self._key("beams", decoder.engine, beam, batches[0].shape)
        return _chosen(kind, key, batches, max_decode_len, remember)

    def _choose_shape(
        self, name: Name, ids: Sequence[np.ndarray], *, sampling: SamplingConfig,
        max_decode_len: int, seed: int, batch_size: int, draft_sampling: SamplingConfig | None,
        stop_below: float, verifier: Verifier | None, remember: bool,
        prefixes: Sequence[np.ndarray] | None,
    ) -> Choice:  # fmt: skip
        batches = self._to_choose(ids, max_decode_len, batch_size, prefixes)

        def decoder(gamma: int, tree: Tree | None) -> BatchDecoder:
            return self.decoder(
                method="speculative" if gamma or tree else "autoregressive", gamma=gamma,
                tree=tree, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
                draft_sampling=draft_sampling, stop_below=stop_below, verifier=verifier,
            )  # fmt: skip

        typical = decoder(1, None) if name == "gamma" else decoder(0, Tree((1,)))
        if name == "tree" and not typical.engine.verifier.trees:
            raise ValueError(
                f'{type(verifier).__name__} verifies chains only: give gamma="auto" instead of '
                'tree="auto", or verifier=specdec.RecursiveVerifier().'
            )
        # Only draws with replacement pass K-SEQ's test; at temperature 0 nothing is drawn.
        independent = isinstance(verifier, KSeqVerifier) and sampling.temperature > 0
        kind = DecodeKind(name, decoder, self.draft, self.target, max_decode_len - 1, independent)
        key = self._key(
            name, typical.engine, sampling, draft_sampling or sampling, batches[0].shape,
            bucket(max_decode_len),
        )  # fmt: skip
        return _chosen(kind, key, batches, max_decode_len, remember)

    def _to_choose(
        self, ids: Sequence[np.ndarray], max_decode_len: int, batch_size: int,
        prefixes: Sequence[np.ndarray] | None,
    ) -> list[Batch]:  # fmt: skip
        """Batches of one shape to measure on."""
        if not ids or max_decode_len < 2:
            raise ValueError(
                "gamma or a tree is chosen for at least one row and max_decode_len >= 2, got "
                f"{len(ids)} rows and {max_decode_len}."
            )
        batches = commonest(list(make_batches(ids, batch_size, self.target.model, prefixes)))
        return batches[:_PROBED_BATCHES]

    def _key(self, name: Name, *what: object) -> str:
        """Names all that a choice depends on."""
        weights = (fingerprint(self.target.params), fingerprint(self.draft.weights))
        return " ".join(map(str, (name, device_name(), jax.__version__, *weights, *what)))


def _chosen(
    kind: Kind, key: str, batches: Sequence[Batch], max_decode_len: int, remember: bool
) -> Choice:
    """What was chosen before, or now."""
    known = remembered(cache_directory(), key) if remember else None
    if known is not None and known.levels < max_decode_len:
        return known
    choice = chooser.choose(kind, batches, max_decode_len)
    if remember and choice.candidates[0].measured is not None:  # Else time was up too early.
        keep(cache_directory(), key, choice)
    return choice
