"""What decodes with a target and a draft, and which way of it is fastest here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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
from specdec.measure import beam_choice, tree_choice
from specdec.measure import gamma as gamma_choice
from specdec.measure.beam_choice import BeamChoice
from specdec.measure.gamma import GammaChoice
from specdec.measure.tree_choice import TreeChoice
from specdec.models.base import LoadedModel
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier

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
    ) -> GammaChoice:
        """The gamma for these rows on this machine, 0 where plain decoding is faster.

        Decodes the first rows to measure alpha and times the parts of a block; half a minute, most
        of it compilation. The choice is kept in the user's cache directory and found there the
        next time for this pair, device, sampling and shapes.

        Args:
          ids: see :meth:`specdec.Pair.token_ids`; a few rows are enough.
          remember: whether to look for a choice made before, and to keep this one.
          prefixes: of each row; see :meth:`specdec.Pair.prefix_ids`.

        Raises:
          ValueError: no row, or max_decode_len below 2, which leaves nothing to guess.
        """
        batches, key, decoder = self._to_choose(
            ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
            batch_size=batch_size, draft_sampling=draft_sampling, stop_below=stop_below,
            verifier=verifier, typical=(1, None), prefixes=prefixes,
        )  # fmt: skip
        known = gamma_choice.remembered(cache_directory(), key) if remember else None
        if known is not None and known.gamma < max_decode_len:
            return known
        choice = gamma_choice.choose_by_measurement(
            lambda gamma: decoder(gamma, None), batches, max_gamma=max_decode_len - 1
        )
        if remember:
            gamma_choice.remember(cache_directory(), key, choice)
        return choice

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
    ) -> TreeChoice:
        """A tree, a chain or plain decoding for these rows on this machine.

        Measures acceptance by rank and what blocks cost by size, then times the most promising
        shapes on the first rows (:mod:`specdec.measure.tree_choice`); one to three minutes, most of
        it compilation. The choice is kept as :meth:`choose_gamma` keeps its own.

        Raises:
          ValueError: no row, or max_decode_len below 2; a draft or verifier of chains only, or
            stop_below above 0.
        """
        if stop_below:
            raise ValueError(f"A tree cannot stop early: stop_below must be 0, got {stop_below}.")
        batches, key, decoder = self._to_choose(
            ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
            batch_size=batch_size, draft_sampling=draft_sampling, stop_below=0.0,
            verifier=verifier, typical=(0, Tree((2,))), prefixes=prefixes,
        )  # fmt: skip
        known = tree_choice.remembered(cache_directory(), key) if remember else None
        longest = max_decode_len - 1
        if known and max(known.gamma, known.tree.levels if known.tree else 0) <= longest:
            return known
        choice = tree_choice.choose_by_measurement(
            decoder, batches, longest=longest, model=self.draft.model is not None
        )
        if remember:
            tree_choice.remember(cache_directory(), key, choice)
        return choice

    def choose_beams(
        self, ids: Sequence[np.ndarray], beam: BeamConfig, *, draft_beams: int | None = None,
        max_decode_len: int = 64, batch_size: int = 1, remember: bool = True,
        prefixes: Sequence[np.ndarray] | None = None,
    ) -> BeamChoice:  # fmt: skip
        """The gamma of speculative beams for these rows on this machine, 0 for plain beams.

        Measures levels a call and what calls cost, then times the best two on the first rows
        (:mod:`specdec.measure.beam_choice`); one to two minutes, most of it compilation. The choice
        is kept as :meth:`choose_gamma` keeps its own.

        Raises:
          ValueError: no row, or max_decode_len below 2; see also :meth:`beam_decoder`.
        """
        _check_choosable(ids, max_decode_len)
        decoder = self.beam_decoder(beam, draft_beams=draft_beams, max_decode_len=max_decode_len)
        batches = commonest(list(make_batches(ids, batch_size, self.target.model, prefixes)))
        key = " ".join(
            map(str, (device_name(), jax.__version__, fingerprint(self.target.params),
                      fingerprint(self.draft.weights), decoder.engine, beam, batches[0].shape))
        )  # fmt: skip
        known = beam_choice.remembered(cache_directory(), key) if remember else None
        if known and known.gamma < max_decode_len:
            return known
        choice = beam_choice.choose_by_measurement(
            BeamDecoder(self.target, beam, max_decode_len),
            lambda gamma: dataclasses.replace(decoder, gamma=gamma),
            batches[:_PROBED_BATCHES], longest=max_decode_len - 1,
        )  # fmt: skip
        if remember:
            beam_choice.remember(cache_directory(), key, choice)
        return choice

    def _to_choose(
        self, ids: Sequence[np.ndarray], *, sampling: SamplingConfig, max_decode_len: int,
        seed: int, batch_size: int, draft_sampling: SamplingConfig | None, stop_below: float,
        verifier: Verifier | None, typical: tuple[int, Tree | None],
        prefixes: Sequence[np.ndarray] | None,
    ) -> tuple[list[Batch], str, Callable[[int, Tree | None], BatchDecoder]]:  # fmt: skip
        """Batches to measure on, a key that names all that matters, and decoders by shape."""
        _check_choosable(ids, max_decode_len)
        batches = commonest(list(make_batches(ids, batch_size, self.target.model, prefixes)))

        def decoder(gamma: int, tree: Tree | None) -> BatchDecoder:
            return self.decoder(
                method="speculative" if gamma or tree else "autoregressive", gamma=gamma,
                tree=tree, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
                draft_sampling=draft_sampling, stop_below=stop_below, verifier=verifier,
            )  # fmt: skip

        weights = (fingerprint(self.target.params), fingerprint(self.draft.weights))
        key = " ".join(
            map(str, (device_name(), jax.__version__, *weights, decoder(*typical).engine, sampling,
                      draft_sampling or sampling, batches[0].shape, bucket(max_decode_len)))
        )  # fmt: skip
        return batches[:_PROBED_BATCHES], key, decoder


def _check_choosable(ids: Sequence[np.ndarray], max_decode_len: int) -> None:
    if not ids or max_decode_len < 2:
        raise ValueError(
            "gamma or a tree is chosen for at least one row and max_decode_len >= 2, got "
            f"{len(ids)} rows and {max_decode_len}."
        )
