"""The Python interface: load a pair of models, generate text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from specdec.core.stats import RunStats
from specdec.data.inputs import Prefix, Text, prefix_ids, text_ids
from specdec.data.vocabulary import added_text
from specdec.decoders import GREEDY, Decoders
from specdec.decoding.batches import Batch, Block, blocks_of, make_batches
from specdec.decoding.beam import BeamDecoder, Hypothesis
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.speculative_beam import (
    BeamCounts,
    SearchedBlock,
    SpeculativeBeamDecoder,
    SpeculativeBeamResult,
    searched_blocks,
)
from specdec.drafters.tree import Tree
from specdec.generate_arguments import BEAM_METHODS, Method, check_arguments, refuse_unknown
from specdec.measure.choice import Choice
from specdec.models.base import LoadedModel
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """What :meth:`Pair.generate` returns.

    Attributes:
      texts: one string a row: what its output adds to the text of a decoder-only model, or to
        ``prefix``. So a piece that continues a word has no space in front. None for a pair without
        a vocabulary.
      tokens: one int32 array a row, EOS included, without padding.
      stats: totals over all rows.
      traces: for each row its blocks (see :func:`Pair.generate`); None unless asked for.
      choice: why this gamma or tree, where it was chosen by measurement.
      beams: of beam search, each row's ``num_return`` best hypotheses, best first (fewer where
        fewer ended); ``texts`` and ``tokens`` are the best ones. None of other methods.
      searched: of speculative beams, levels a call and why blocks ended.
    """

    texts: list[str] | None
    tokens: list[np.ndarray]
    stats: RunStats
    traces: list[list[Block]] | list[list[SearchedBlock]] | None
    choice: Choice | None = None
    beams: list[list[Hypothesis]] | None = None
    searched: BeamCounts | None = None


class Pair(Decoders):
    """A target, a draft and the vocabulary they share. Make one with :func:`load_pair`."""

    def generate(
        self,
        texts: Iterable[Text],
        *,
        method: Method = "speculative",
        gamma: int | Literal["auto"] | None = None,
        tree: Tree | Sequence[int] | Literal["auto"] | None = None,
        sampling: SamplingConfig = GREEDY,
        max_decode_len: int = 64,
        seed: int = 0,
        batch_size: int = 1,
        max_input_len: int = 512,
        trace: bool = False,
        stop_below: float = 0.0,
        draft_sampling: SamplingConfig | None = None,
        verifier: Verifier | None = None,
        beam: BeamConfig | None = None,
        num_return: int | None = None,
        draft_beams: int | None = None,
        prefix: Prefix | None = None,
        **unknown: Any,
    ) -> GenerateOutput:
        """Generates an output for each text.

        With ``method="speculative"`` outputs follow the same law as with "autoregressive": the
        same tokens at temperature 0, the same distribution above it, unless the verifier is a lossy
        one (``verifier.lossless`` tells). A row's output depends on the
        seed and on its place in ``texts``, not on the rows it shares a batch with.

        Args:
          texts: strings, or token ids with EOS at the end; any iterable of them.
          method: "speculative", "autoregressive", "beam", which takes no draft's arguments and no
            ``trace``, or "speculative_beam": the same beams in fewer calls of the target.
          gamma: guesses a block, in 1..max_decode_len - 1; unless given 4, or as many as the draft
            can make and an output has room for; or "auto": chosen by
            :meth:`choose_gamma` (as for a draft that never stops), plain decoding where speculation
            does not pay. Of beams: levels that the draft guesses; "auto" is :meth:`choose_beams`.
          tree: several guesses for one position, instead of gamma: a :class:`specdec.Tree`, or its
            branching by level, such as (3, 2, 1); or "auto": chosen by :meth:`choose_tree` among
            trees, chains and plain decoding.
          sampling: temperature (0: argmax), top-k and top-p.
          max_decode_len: tokens a row may emit, EOS included.
          seed: of the random numbers; 64 bits.
          batch_size: rows decoded together; on a mesh, a multiple of its data axis.
          max_input_len: tokens an input may have, EOS included.
          trace: return every row's blocks.
          stop_below: the draft ends a block's guesses after one less likely than this; see
            :class:`specdec.drafters.model.ModelDrafter`.
          draft_sampling: how guesses are drawn, which does not change the output's law; as
            ``sampling`` if None.
          verifier: who accepts. Of chains :class:`specdec.TokenVerifier`, which is the default,
            :class:`specdec.BlockVerifier`, or the lossy :class:`specdec.LenientVerifier`. Of trees,
            and of chains as well, :class:`specdec.RecursiveVerifier`, which is their default,
            :class:`specdec.TraversalVerifier`, :class:`specdec.KSeqVerifier`,
            :class:`specdec.PointMassVerifier`, or the lossy :class:`specdec.TypicalVerifier`.
          beam: how beams are searched; :class:`specdec.BeamConfig`'s defaults if None.
          num_return: of beam search, hypotheses to return of each row, in 1..num_beams; 1 if None.
          draft_beams: of speculative beams, those of the draft, at least num_beams; three times as
            many if None. More of them miss less and make calls longer.
          prefix: what outputs are made to begin with, which an encoder-decoder's decoder reads
            before it generates: a string or token ids without EOS, for all texts or in a list with
            one for each. No part of the output, and no more than max_input_len tokens.

        Raises:
          ValueError: an argument out of range; an empty text, or one longer than max_input_len; a
            prefix for a decoder-only model, whose text is the prefix.
          TypeError: a keyword that there is not; one of transformers' tells what to give instead.
        """
        refuse_unknown(unknown)
        checked = check_arguments(
            method=method, gamma=gamma, tree=tree, sampling=sampling,
            max_decode_len=max_decode_len, seed=seed, batch_size=batch_size,
            max_input_len=max_input_len, stop_below=stop_below, draft_sampling=draft_sampling,
            verifier=verifier, beam=beam, num_return=num_return, draft_beams=draft_beams,
            most_guesses=self.draft.most_guesses,
        )  # fmt: skip
        method = checked["method"]
        names = ("gamma", "tree", "max_decode_len", "seed", "batch_size", "max_input_len",
                 "stop_below")  # fmt: skip
        guesses, shape, max_decode_len, seed, batch_size, max_input_len, stop_below = (
            checked[name] for name in names
        )
        ids = self.token_ids(texts, max_input_len=max_input_len, max_decode_len=max_decode_len)
        prefixes = self.prefix_ids(
            prefix, len(ids), max_input_len=max_input_len, max_decode_len=max_decode_len
        )
        batches = list(make_batches(ids, batch_size, self.target.model, prefixes))
        if method in BEAM_METHODS:
            if trace and method == "beam":
                raise ValueError("Beam search has no blocks: leave trace out.")
            config: BeamConfig = checked["beam"]
            search = choice = None
            if method == "speculative_beam":
                options = {"max_decode_len": max_decode_len, "draft_beams": draft_beams}
                search = self.beam_decoder(config, **options)  # What cannot be is refused first.
                if guesses == "auto" and ids:
                    choice = self.choose_beams(
                        ids, config, batch_size=batch_size, prefixes=prefixes, **options
                    )
                    guesses = choice.gamma
                search = dataclasses.replace(search, gamma=guesses) if guesses else None
            search = search or BeamDecoder(self.target, config, max_decode_len)
            found = self._searched(len(ids), batches, search, checked["num_return"], trace)
            return dataclasses.replace(found, choice=choice)
        choice = None
        if "auto" in (guesses, shape):
            choose = self.choose_gamma if guesses == "auto" else self.choose_tree
            guesses, shape = 0, None
            if method == "speculative" and ids:
                choice = choose(
                    ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
                    batch_size=batch_size, draft_sampling=draft_sampling,
                    stop_below=stop_below, verifier=verifier, prefixes=prefixes,
                )  # fmt: skip
                guesses, shape = choice.gamma, choice.tree
            method = "speculative" if guesses or shape else "autoregressive"
        decoder = self.decoder(
            method=method, gamma=guesses, tree=shape, sampling=sampling,
            max_decode_len=max_decode_len, seed=seed, stop_below=stop_below,
            draft_sampling=draft_sampling, verifier=verifier,
        )  # fmt: skip
        tokens: list[np.ndarray] = [np.zeros(0, np.int32)] * len(ids)
        shown: list[str | None] = [None] * len(ids)
        traces: list[list[Block]] = [[] for _ in ids]
        stats = []
        for batch in batches:
            result = decoder.decode(batch, trace=trace)
            for place, row in enumerate(batch.row_ids):
                if row >= 0:
                    tokens[row] = result.tokens[place, : result.num_tokens[place]]
                    shown[row] = self.text(tokens[row], batch, place)
                    if result.trace is not None:
                        traces[row] = blocks_of(result.trace, place)
            stats.append(result.stats)
        return GenerateOutput(
            texts=self._texts(shown),
            tokens=tokens,
            stats=RunStats.total(stats, len(ids), decoder.engine.depth),
            traces=traces if trace else None,
            choice=choice,
        )

    def _searched(
        self, num_rows: int, batches: Sequence[Batch],
        decoder: BeamDecoder | SpeculativeBeamDecoder, num_return: int, trace: bool,
    ) -> GenerateOutput:  # fmt: skip
        beams: list[list[Hypothesis]] = [[] for _ in range(num_rows)]
        traces: list[list[SearchedBlock]] = [[] for _ in range(num_rows)]
        stats, counts, gamma = [], [], 0
        for batch in batches:
            if isinstance(decoder, SpeculativeBeamDecoder):
                result, gamma = decoder.search(batch, trace=trace), decoder.gamma
                counts.append(result.counts)
            else:
                result = decoder.search(batch)
            for place, row in enumerate(batch.row_ids):
                if row >= 0:
                    beams[row] = self.with_text(result.row(place, num_return), batch, place)
                    if isinstance(result, SpeculativeBeamResult) and result.trace is not None:
                        wide = decoder.config.num_beams
                        traces[row] = searched_blocks(result.trace, place, wide)
            stats.append(result.stats)
        texts = self._texts([row[0].text for row in beams])
        tokens = [row[0].tokens for row in beams]
        return GenerateOutput(
            texts, tokens, RunStats.total(stats, num_rows, gamma),
            traces if trace and counts else None, beams=beams,
            searched=BeamCounts.total(counts) if counts else None,
        )  # fmt: skip

    def with_text(self, beams: Sequence[Hypothesis], batch: Batch, place: int) -> list[Hypothesis]:
        """The hypotheses of a batch's row with their texts, where there is a vocabulary."""
        return [
            dataclasses.replace(each, text=self.text(each.tokens, batch, place)) for each in beams
        ]

    def token_ids(
        self, texts: Iterable[Text], *, max_input_len: int, names: Sequence[str] | None = None,
        max_decode_len: int = 0,
    ) -> list[np.ndarray]:  # fmt: skip
        """Token ids of each text, with EOS where an encoder reads them.

        Args:
          names: what messages call each text; by its index unless given.
          max_decode_len: tokens that the target's positions must have room for behind them.

        Raises:
          ValueError: naming the text: empty, too long, not a token of the vocabulary, or a string
            where there is no vocabulary.
        """
        if isinstance(texts, str):
            raise ValueError("texts must be a list of texts, got one string; wrap it in a list.")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise ValueError(f"texts must be a list of texts, got {type(texts).__name__}.")
        texts = list(texts)
        names = names or [f"text {i}" for i in range(len(texts))]
        return [
            text_ids(text, name, self.vocabulary, self.target.model, max_input_len, max_decode_len)
            for text, name in zip(texts, names, strict=True)
        ]

    def prefix_ids(
        self, prefix: Prefix | None, count: int, *, max_input_len: int, max_decode_len: int = 0
    ) -> list[np.ndarray]:
        """Token ids of what each of ``count`` outputs is made to begin with; see :meth:`generate`.

        Raises:
          ValueError: see :func:`specdec.data.inputs.prefix_ids`.
        """
        model = self.target.model
        return prefix_ids(prefix, count, self.vocabulary, model, max_input_len, max_decode_len)

    def text(self, tokens: np.ndarray, batch: Batch, place: int) -> str | None:
        """What an output adds to the text that a batch's row begins with; None: no vocabulary.

        The EOS that ends it has no text.
        """
        if self.vocabulary is None:
            return None
        model, prompt = self.target.model, batch.prompt
        start = 0 if model.reads_prefix else 1  # The start token is no text.
        before = prompt.prefix[place, start : prompt.prefix_lengths[place]].tolist()
        ended = len(tokens) and tokens[-1] in model.eos_ids
        return added_text(self.vocabulary, before, tokens[: -1 if ended else None].tolist())

    def _texts(self, found: Sequence[str | None]) -> list[str] | None:
        return None if self.vocabulary is None else [text or "" for text in found]


__all__ = ["Block", "GenerateOutput", "LoadedModel", "Pair"]
