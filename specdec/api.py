"""The Python interface: load a pair of models, generate text."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specdec.checkpoints.generation_options import advice_on
from specdec.core.stats import RunStats
from specdec.data.inputs import Prefix, Text, prefix_ids, text_ids
from specdec.decoding.batch_decoder import BatchDecoder, within
from specdec.decoding.batches import Batch, Block, make_batches
from specdec.decoding.beam import BeamDecoder, Hypothesis
from specdec.decoding.build import build_decoder, build_search
from specdec.decoding.options import Decoding, decoding_of
from specdec.decoding.samples import rows_of, samples_of
from specdec.decoding.speculative_beam import (
    BeamCounts,
    SearchedBlock,
    SpeculativeBeamDecoder,
    SpeculativeBeamResult,
    searched_blocks,
)
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.measure.auto import choose
from specdec.measure.choice import Choice
from specdec.models.placing import agreed
from specdec.outputs import GenerateOutput, Sample
from specdec.rules.stops import cut_before
from specdec.text.base import Tokenizer, added_text
from specdec.text.streaming import End, Piece, pieces, sure
from specdec.types import DecodeResult

_PART = 0.1  # Seconds between looks at what there is, unless a block takes longer.


class Pair:
    """A target, a draft and the vocabulary they share. Make one with :func:`load_pair`.

    Attributes:
      target: the model whose distribution outputs follow.
      draft: what guesses.
      vocabulary: None if the checkpoints have none; then texts are token ids.
      name: for results and tables.
    """

    def __init__(
        self,
        target: LoadedTarget,
        draft: OpenDraft,
        vocabulary: Tokenizer | None,
        name: str = "custom",
    ):
        self.target = dataclasses.replace(target, vocabulary=vocabulary)
        self.draft = draft
        self.vocabulary = vocabulary
        self.name = name

    def __str__(self) -> str:
        rules = ", ".join(map(str, self.target.rules))
        return f"{self.name}: {self.target.source}" + (f", rules: {rules}" if rules else "")

    def generate(
        self,
        texts: Iterable[Text],
        decoding: Decoding | None = None,
        *,
        prefix: Prefix | None = None,
        trace: bool = False,
        **options: Any,
    ) -> GenerateOutput:
        """Generates an output for each text.

        A row's output depends on the seed and on its index in ``texts``, not on the rows it shares
        a batch with.

        Args:
          texts: strings, or token ids as the model reads them: nothing is put around these, so an
            encoder's end with EOS where its tokenizer ends texts so; any iterable of them.
          decoding: how to decode; the defaults of :class:`specdec.Decoding` if None.
          prefix: forced beginning of the outputs of an encoder-decoder, which its decoder reads
            before it generates: a string or token ids without EOS, for all texts or in a list with
            one for each. It is not part of the output and has at most max_input_len tokens.
          trace: return the blocks of every row.
          options: fields of :class:`specdec.Decoding`, such as ``gamma=4``; they replace those of
            ``decoding``: method, gamma, stop_below, tree, beam, num_samples, num_return,
            draft_beams, verifier, rules, draft_follows_rules, stop, time_limit, log_probs,
            top_log_probs, sampling, draft_sampling, max_input_len, truncate, max_decode_len, seed,
            batch_size.

        Raises:
          ValueError: an option out of range; an empty text, or one longer than max_input_len; a
            prefix for a decoder-only model, whose text is the prefix.
          TypeError: an unknown option; for one of transformers' it says what to give instead.
        """
        refuse_unknown(options)
        decoding = decoding_of(decoding, options).fitted(self.draft.most_guesses)
        if trace and decoding.method == "beam":
            raise ValueError("Beam search has no blocks: leave trace out.")
        sizes = {name: getattr(decoding, name) for name in ("max_input_len", "max_decode_len")}
        ids = self.token_ids(texts, **sizes, truncate=decoding.truncate)
        prefixes = self.prefix_ids(prefix, len(ids), **sizes)
        choice = None
        if decoding.to_choose:
            if ids:
                choice = self.choose(ids, decoding, prefixes=prefixes)
            decoding = decoding.with_shape(choice and choice.shape)
        batches = list(make_batches(ids, decoding.batch_size, self.target.model, prefixes))
        if decoding.searches:
            found = self._searched(len(ids), batches, decoding, trace)
        else:
            found = self._decoded(len(ids), batches, decoding, trace)
        return dataclasses.replace(found, choice=choice)

    def stream(
        self, text: Text, decoding: Decoding | None = None, *, prefix: Prefix | None = None,
        **options: Any,
    ) -> Iterator[Piece]:  # fmt: skip
        """Generates an output for one text, block by block: ``for piece in pair.stream(text)``.

        A piece prints as its text. Blocks that take less than a tenth of a second come several at a
        time. All pieces together have the tokens and the text that
        :meth:`generate` gives for this text alone. Closing the generator ends the work.

        Args:
          text, decoding, prefix, options: as in :meth:`generate`; not beams, and nothing "auto".

        Yields:
          what each block adds.

        Raises:
          ValueError, TypeError: as :meth:`generate`.
        """
        refuse_unknown(options, "stream", ("prefix",))
        decoding = decoding_of(decoding, options).fitted(self.draft.most_guesses)
        if decoding.searches or decoding.to_choose or decoding.num_samples > 1:
            raise ValueError(
                "Only one output that is emitted for good can be streamed, and at once: no beams, "
                'no "auto", and num_samples = 1.'
            )
        sizes = {name: getattr(decoding, name) for name in ("max_input_len", "max_decode_len")}
        ids = self.token_ids([text], **sizes, truncate=decoding.truncate)
        prefixes = self.prefix_ids(prefix, 1, **sizes)
        (batch,) = make_batches(ids, 1, self.target.model, prefixes)

        def shown_of(tokens: Sequence[int] | np.ndarray) -> str:
            return self.text(np.asarray(tokens), batch, 0, decoding.stop) or ""

        def parts() -> Iterator[tuple[np.ndarray, int, str, End | None]]:
            seen = count = accepted = 0
            found = self.decoder(decoding).parts(batch, _PART, trace=True)
            for result, finished, over in within(
                found, decoding.time_limit, self.target.partitioning
            ):
                (row,) = samples_of(result, 0, 1)
                sample = self._sample(row, batch, 0, decoding)
                assert sample.blocks is not None
                for number, block in enumerate(sample.blocks[seen:], start=seen + 1):
                    accepted += len(block.accepted)
                    count += len(block.accepted) + (block.correction is not None)
                    tokens = sample.tokens[:count]
                    last = number == len(sample.blocks) and (finished[0] or over)
                    if last or self.vocabulary is None:
                        shown = shown_of(tokens)
                    else:
                        shown = sure(shown_of, tokens.tolist(), self.vocabulary)
                    yield tokens, accepted, shown, sample.ended if last else None
                seen = len(sample.blocks)

        return pieces(parts(), self.vocabulary, decoding.stop)

    def decoder(
        self, decoding: Decoding | None = None, *, width: int = 1, **options: Any
    ) -> BatchDecoder:
        """A decoder of batches; see :func:`specdec.decoding.build.build_decoder`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        decoding = decoding_of(decoding, options)
        return build_decoder(self.target, self.draft, decoding, width=width)

    def searcher(
        self, decoding: Decoding | None = None, **options: Any
    ) -> BeamDecoder | SpeculativeBeamDecoder:
        """A beam search of batches; see :func:`specdec.decoding.build.build_search`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        return build_search(self.target, self.draft, decoding_of(decoding, options))

    def choose(
        self, ids: Sequence[np.ndarray], decoding: Decoding | None = None, *,
        prefixes: Sequence[np.ndarray] | None = None, remember: bool = True, **options: Any,
    ) -> Choice:  # fmt: skip
        """What "auto" chooses for these rows; see :func:`specdec.measure.auto.choose`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        decoding = decoding_of(decoding, options)
        return choose(self.target, self.draft, decoding, ids, prefixes, remember=remember)

    def _decoded(
        self, num_rows: int, batches: Sequence[Batch], decoding: Decoding, trace: bool
    ) -> GenerateOutput:
        decoder, count = self.decoder(decoding), decoding.num_samples
        results = decoder.decode_all(batches, trace=trace)
        if decoding.time_limit is not None:
            results = _in_time(decoder, batches, decoding.time_limit, trace)
        found: dict[int, list[Sample]] = {}
        stats, nothing = [], None
        for batch, result in results:
            stats.append(result.stats)
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    rows = samples_of(result, index, count)
                    found[row] = [self._sample(each, batch, index, decoding) for each in rows]
                    nothing = jax.tree.map(np.zeros_like, rows[0])
        for row in range(num_rows):
            if row not in found:  # There was no time for it.
                assert nothing is not None
                found[row] = [self._sample(nothing, batches[0], 0, decoding)] * count
        return GenerateOutput.of_samples(
            [found[row] for row in range(num_rows)],
            RunStats.total(map(rows_of, stats), num_rows * count, decoder.engine.depth),
        )

    def _sample(self, row: DecodeResult, batch: Batch, index: int, decoding: Decoding) -> Sample:
        """What a row of a result is, an output of a batch's row."""
        sample = Sample.of(row, self.target.model.eos_ids, decoding.max_decode_len)
        text = self.text(sample.tokens, batch, index, decoding.stop)
        return dataclasses.replace(sample, text=text)

    def _searched(
        self, num_rows: int, batches: Sequence[Batch], decoding: Decoding, trace: bool
    ) -> GenerateOutput:
        decoder, num_return = self.searcher(decoding), decoding.num_return
        assert num_return is not None
        beams: list[list[Hypothesis]] = [[] for _ in range(num_rows)]
        traces: list[list[SearchedBlock]] = [[] for _ in range(num_rows)]
        stats, counts = [], []
        for batch, result in decoder.decode_all(batches, trace=trace):
            if isinstance(result, SpeculativeBeamResult):
                counts.append(result.counts)
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    beams[row] = self.with_text(result.row(index, num_return), batch, index)
                    if isinstance(result, SpeculativeBeamResult) and result.trace is not None:
                        wide = decoder.config.num_beams
                        traces[row] = searched_blocks(result.trace, index, wide)
            stats.append(result.stats)
        told: dict[str, Any] = {}
        if decoding.log_probs:
            names = ("log_probs", "adjusted_log_probs")
            told = {name: [getattr(row[0], name) for row in beams] for name in names}
        texts = self._texts([row[0].text for row in beams])
        tokens = [row[0].tokens for row in beams]
        return GenerateOutput(
            texts, tokens, RunStats.total(stats, num_rows, decoding.depth),
            traces if trace and counts else None, beams=beams,
            searched=BeamCounts.total(counts) if counts else None, **told,
        )  # fmt: skip

    def with_text(self, beams: Sequence[Hypothesis], batch: Batch, index: int) -> list[Hypothesis]:
        """The hypotheses of a batch's row with their texts, where there is a vocabulary."""
        return [
            dataclasses.replace(each, text=self.text(each.tokens, batch, index)) for each in beams
        ]

    def token_ids(
        self, texts: Iterable[Text], *, max_input_len: int, names: Sequence[str] | None = None,
        max_decode_len: int = 0, truncate: bool = False,
    ) -> list[np.ndarray]:  # fmt: skip
        """Token ids of each text, with EOS where an encoder reads them.

        Args:
          names: what messages call each text; by its index unless given.
          max_decode_len: tokens for which positions of the target must be left behind them.
          truncate: cut texts that are longer than ``max_input_len`` tokens.

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
        given, limits = (self.vocabulary, self.target.model), (max_input_len, max_decode_len)
        return [
            text_ids(text, name, *given, *limits, truncate)
            for text, name in zip(texts, names, strict=True)
        ]

    def prefix_ids(
        self, prefix: Prefix | None, count: int, *, max_input_len: int, max_decode_len: int = 0
    ) -> list[np.ndarray]:
        """Token ids of what each of ``count`` outputs is made to begin with; see :meth:`generate`.

        Raises:
          ValueError: see :func:`specdec.data.inputs.prefix_ids`.
        """
        model, first = self.target.model, self.target.first_token
        limits = max_input_len, max_decode_len
        found = prefix_ids(prefix, count, self.vocabulary, model, *limits)
        if first is None:  # Else it is before a prefix; without one a rule makes it.
            return found
        return [np.insert(ids, 0, first) if len(ids) else ids for ids in found]

    def text(
        self, tokens: np.ndarray, batch: Batch, index: int, stop: Sequence[str | int] = ()
    ) -> str | None:
        """What an output adds to the text that a batch's row begins with; None: no vocabulary.

        The EOS that ends it has no text.

        Args:
          stop: the text ends before the first of these strings.
        """
        if self.vocabulary is None:
            return None
        model, prompt = self.target.model, batch.prompt
        start = 0 if model.reads_prefix else 1  # The start token is no text.
        before = prompt.prefix[index, start : prompt.prefix_lengths[index]].tolist()
        ended = len(tokens) and tokens[-1] in model.eos_ids
        text = added_text(self.vocabulary, before, tokens[: -1 if ended else None].tolist())
        return cut_before(text, stop)

    def _texts(self, found: Sequence[str | None]) -> list[str] | None:
        return None if self.vocabulary is None else [text or "" for text in found]


def _in_time(
    decoder: BatchDecoder, batches: Sequence[Batch], seconds: float, trace: bool
) -> Iterator[tuple[Batch, DecodeResult]]:
    """The batches that there is time for; of the last one what there is by then."""
    begun, where = time.monotonic(), decoder.target.partitioning
    for number, batch in enumerate(batches):
        left = agreed(where, seconds - (time.monotonic() - begun))
        if number and left <= 0:
            return
        parts = within(decoder.parts(batch, _PART, trace=trace), left, where)
        ((result, _, _),) = collections.deque(parts, maxlen=1)  # The last one.
        yield batch, result


def refuse_unknown(
    options: Mapping[str, Any], method: str = "generate", own: Sequence[str] = ("prefix", "trace")
) -> None:
    """Raises TypeError for unknown options, with what to give instead.

    Args:
      method: what they were given to.
      own: its keywords beside :class:`specdec.Decoding`'s fields.
    """
    known = [field.name for field in dataclasses.fields(Decoding)]
    advice = advice_on(options)
    for name in options:
        if name in known:
            continue
        close = difflib.get_close_matches(name, [*known, *own], cutoff=0.6)
        hint = advice.get(name) or (f"did you mean {close[0]}?" if close else "")
        raise TypeError(
            f"{method} has no keyword {name} (got {options[name]!r}): "
            f"{hint or 'help(specdec.Decoding) lists the options'}"
        )


__all__ = ["Block", "GenerateOutput", "LoadedTarget", "Pair"]
