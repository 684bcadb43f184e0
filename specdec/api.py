"""The Python interface: load a pair of models, generate text."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec.checkpoints.generation_options import advice_on
from specdec.data.inputs import Given, Prefix, Text, encodings, given_ids, prefix_ids, text_ids
from specdec.decoding.batch_decoder import BatchDecoder, LoopDecoder
from specdec.decoding.batches import make_batches
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.build import build, build_decoder, build_search
from specdec.decoding.options import DEFAULT_GAMMA, Decoding, decoding_of
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.measure.auto import choose
from specdec.measure.choice import Choice
from specdec.measure.lossless import Audit
from specdec.outputs import GenerateOutput, Texts, pieces_of
from specdec.speech.audio import Audio
from specdec.speech.listening import Listening
from specdec.speech.options import Transcription
from specdec.speech.transcribing import Transcriber, read_all
from specdec.speech.transcript import Transcript
from specdec.text.base import Tokenizer
from specdec.text.streaming import Piece


class Pair:
    """A target, a draft and the vocabulary they share. Make one with :func:`load_pair`.

    Attributes:
      target: the model whose distribution outputs follow.
      draft: the draft that guesses.
      vocabulary: None if the checkpoints have none; then texts are token ids.
      texts: makes the texts of outputs.
      name: for results and tables.
      listening: how the target's checkpoint listens; None for one that reads, or that has no
        vocabulary.
    """

    def __init__(
        self,
        target: LoadedTarget,
        draft: OpenDraft,
        vocabulary: Tokenizer | None,
        name: str = "custom",
        listening: Listening | None = None,
    ):
        self.listening = listening
        self.target = dataclasses.replace(target, vocabulary=vocabulary)
        self.draft = draft
        self.vocabulary = vocabulary
        self.texts = Texts(target.model, vocabulary)
        self.name = name

    def __str__(self) -> str:
        rules = ", ".join(map(str, self.target.rules))
        return f"{self.name}: {self.target.source}" + (f", rules: {rules}" if rules else "")

    def generate(
        self,
        texts: Iterable[Text] = (),
        decoding: Decoding | None = None,
        *,
        prefix: Prefix | None = None,
        given: Sequence[Given] | None = None,
        encoded: Sequence[np.ndarray] | None = None,
        trace: bool = False,
        **options: Any,
    ) -> GenerateOutput:
        """Generates an output for each text.

        A row's output depends on the seed and on its index in ``texts``, not on the rows it shares
        a batch with.

        Args:
          texts: strings, or token ids as the model reads them: nothing is put around these, so an
            encoder's end with EOS where its tokenizer ends texts so; any iterable of them. Of a
            model that listens, features of sound [frames, mel bins].
          decoding: how to decode; the defaults of :class:`specdec.Decoding` if None.
          prefix: forced beginning of the outputs of an encoder-decoder, which its decoder reads
            before it generates: a string or token ids without EOS, for all texts or in a list with
            one for each. It is not part of the output and has at most max_input_len tokens.
          given: for each text what its output may be, which a draft with :class:`specdec.Given`
            follows: a string as the output would have it, token ids, a list of several of these, or
            None. It may be wrong in any way; outputs do not depend on it. Plain decoding does not
            read it.
          encoded: the output of the target's encoder for each text, [S, D], or what another encoder
            made in its place. Then ``texts`` may be left out, unless the draft has an encoder.
          trace: return the blocks of every row.
          options: fields of :class:`specdec.Decoding`, such as ``gamma=4``; they replace those of
            ``decoding``: method, gamma, stop_below, tree, beam, num_samples, num_return,
            draft_beams, verifier, rules, draft_follows_rules, stop, time_limit, log_probs,
            top_log_probs, sampling, draft_sampling, exact, audit, max_input_len, truncate,
            max_decode_len, seed, batch_size.

        Raises:
          ValueError: an option out of range; an empty text, or one longer than max_input_len; a
            prefix for a decoder-only model, whose text is the prefix; a given text for a draft that
            follows none, or none for one that does.
          TypeError: an unknown option; for one of transformers' it says what to give instead.
        """
        refuse_unknown(options)
        decoding = decoding_of(decoding, options).fitted(self.draft.most_guesses)
        if trace and decoding.method == "beam":
            raise ValueError("Beam search has no blocks: leave trace out.")
        sizes = {name: getattr(decoding, name) for name in ("max_input_len", "max_decode_len")}
        ids = self.token_ids(texts, **sizes, truncate=decoding.truncate)
        if encoded is not None:
            ids = ids or self._not_read(len(encoded), decoding)
            encoded = encodings(encoded, len(ids), self.target.encoding_width)
        prefixes = self.prefix_ids(prefix, len(ids), **sizes)
        followed = self._followed(given, len(ids), decoding)
        choice = None
        if decoding.to_choose:
            if ids:
                choice = choose(self.target, self.draft, decoding, ids, prefixes, followed)
            decoding = decoding.with_shape(choice and choice.shape)

        def decoded(decoder: LoopDecoder[Any], trace: bool = False) -> GenerateOutput:
            size, model = decoding.batch_size, self.target.model
            batches = make_batches(ids, size, model, prefixes, encoded, followed)
            results = decoder.decode_all(batches, trace=trace, seconds=decoding.time_limit)
            return GenerateOutput.of(self.texts, decoding, decoder, len(ids), results)

        found, audit = decoded(build(self.target, self.draft, decoding), trace), None
        if decoding.audit:  # Beside calls of another width.
            width = 1 if decoding.guesses else DEFAULT_GAMMA + 1
            other = decoded(self.decoder(decoding.with_shape(None), width=width))
            outputs = zip(found.hypotheses, other.hypotheses, strict=True)
            audit = Audit.of((ours[0], theirs[0]) for ours, theirs in outputs)
        return dataclasses.replace(found, choice=choice, audit=audit)

    def _not_read(self, count: int, decoding: Decoding) -> list[np.ndarray]:
        """Inputs in whose place encodings are given.

        Raises:
          ValueError: the draft would have to read them, or "auto" would.
        """
        if decoding.to_choose:
            raise ValueError('"auto" decodes some of the texts: give texts beside encoded.')
        if decoding.guesses and self.draft.encodes:
            raise ValueError("The draft has an encoder of its own: give texts beside encoded.")
        shape = self.target.model.input_shape
        nothing = np.zeros(0, np.int32) if shape is None else np.zeros((0, shape[1]), np.float32)
        return [nothing] * count

    def stream(
        self, text: Text, decoding: Decoding | None = None, *, prefix: Prefix | None = None,
        given: Given = None, **options: Any,
    ) -> Iterator[Piece]:  # fmt: skip
        """Generates an output for one text, block by block: ``for piece in pair.stream(text)``.

        A piece prints as its text. Blocks that take less than a tenth of a second come several at a
        time. All pieces together have the tokens and the text that
        :meth:`generate` gives for this text alone. Closing the generator ends the work.

        Args:
          text, decoding, prefix, options: as in :meth:`generate`; not beams, and nothing "auto".
          given: the entry for this text alone; see :meth:`generate`.

        Yields:
          what each block adds.

        Raises:
          ValueError, TypeError: as :meth:`generate`.
        """
        refuse_unknown(options, "stream", ("prefix", "given"))
        decoding = decoding_of(decoding, options).fitted(self.draft.most_guesses)
        if decoding.searches or decoding.to_choose or decoding.num_samples > 1 or decoding.audit:
            raise ValueError(
                "Only one output that is emitted for good can be streamed, and at once: no beams, "
                'no "auto", no audit, and num_samples = 1.'
            )
        sizes = {name: getattr(decoding, name) for name in ("max_input_len", "max_decode_len")}
        ids = self.token_ids([text], **sizes, truncate=decoding.truncate)
        prefixes = self.prefix_ids(prefix, 1, **sizes)
        followed = self._followed(None if given is None else [given], 1, decoding)
        (batch,) = make_batches(ids, 1, self.target.model, prefixes, given=followed)
        decoder = build_decoder(self.target, self.draft, decoding)
        pauses = decoder.pauses(batch, often=True, seconds=decoding.time_limit, trace=True)
        return pieces_of(self.texts, decoding, decoder, batch, pauses)

    def transcribe(
        self, audio: Audio | Sequence[Audio], rate: int | None = None, *,
        decoding: Decoding | None = None, progress: bool = False, **options: Any,
    ) -> Transcript | list[Transcript]:  # fmt: skip
        """Transcribes a recording, or each of several.

        Args:
          audio: a file's path or samples, [samples] or [samples, channels]; or a list of these,
            which are decoded together.
          rate: samples a second of arrays; files say it.
          decoding: how to decode; the defaults of :class:`specdec.Decoding` if None. Its limit of
            tokens is that of the model, and its temperature that of the transcription.
          progress: show the seconds of sound that are done.
          options: fields of :class:`specdec.Transcription`, such as ``language="de"``, and of
            :class:`specdec.Decoding`, such as ``gamma=6``.

        Raises:
          ValueError: the model does not listen, or does not know the language or the task; sound
            that cannot be read (AudioError); an option out of range.
          TypeError: an unknown option.
        """
        transcriber = self.transcriber(decoding, **options)
        samples, is_one = read_all(audio, rate, transcriber.listening)
        found = transcriber.transcribe(samples, progress=progress)
        return found.transcripts[0] if is_one else found.transcripts

    def transcriber(self, decoding: Decoding | None = None, **options: Any) -> Transcriber:
        """The transcriber that :meth:`transcribe` uses; its result has counts, too.

        Raises:
          ValueError, TypeError: as :meth:`transcribe`.
        """
        listening, vocabulary = self._listens()
        known = {field.name for field in dataclasses.fields(Transcription)}
        how = Transcription(**{name: options.pop(name) for name in known & options.keys()})
        for name in ("max_decode_len", "max_input_len"):
            if name in options:
                raise ValueError(f"transcribe has no {name}: max_window_tokens limits its outputs.")
        refuse_unknown(options, "transcribe", ("rate", "progress", *known))
        decoding = decoding_of(decoding, options).fitted(self.draft.most_guesses)
        limited = decoding.stop or decoding.time_limit is not None
        if limited or decoding.to_choose or decoding.num_samples > 1 or decoding.audit:
            raise ValueError(
                "A window has one output, which is decoded to its end: transcribe has no stop, no "
                'time_limit, no "auto", no audit, and num_samples = 1.'
            )
        return Transcriber(self.target, self.draft, vocabulary, listening, how, decoding)

    def _listens(self) -> tuple[Listening, Tokenizer]:
        """How the target listens, and its vocabulary.

        Raises:
          ValueError: it does not listen, or has no vocabulary.
        """
        source = self.target.source
        if self.target.model.input_shape is None:
            raise ValueError(f"{source} reads texts and does not listen: use generate.")
        if self.listening is None or self.vocabulary is None:
            raise ValueError(
                f"{source} has no vocabulary, whose special tokens transcribe needs: put its "
                "tokenizer.json beside its weights."
            )
        return self.listening, self.vocabulary

    def decoder(
        self, decoding: Decoding | None = None, *, width: int = 1, **options: Any
    ) -> BatchDecoder:
        """A decoder of batches; see :func:`specdec.decoding.build.build_decoder`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        decoding = decoding_of(decoding, options)
        return build_decoder(self.target, self.draft, decoding, width=width)

    def searcher(self, decoding: Decoding | None = None, **options: Any) -> BeamDecoder:
        """A beam search of batches; see :func:`specdec.decoding.build.build_search`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        return build_search(self.target, self.draft, decoding_of(decoding, options))

    def choose(
        self, ids: Sequence[np.ndarray], decoding: Decoding | None = None, *,
        prefixes: Sequence[np.ndarray] | None = None, given: Sequence[np.ndarray] | None = None,
        remember: bool = True, **options: Any,
    ) -> Choice:  # fmt: skip
        """The choice of "auto" for these rows; see :func:`specdec.measure.auto.choose`.

        Args:
          decoding, options: as in :meth:`generate`.
        """
        decoding = decoding_of(decoding, options)
        return choose(self.target, self.draft, decoding, ids, prefixes, given, remember=remember)

    def token_ids(
        self, texts: Iterable[Text], *, max_input_len: int, names: Sequence[str] | None = None,
        max_decode_len: int = 0, truncate: bool = False,
    ) -> list[np.ndarray]:  # fmt: skip
        """Token ids of each text, with EOS where an encoder reads them.

        Args:
          names: of the texts in messages; their indices by default.
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
        """Token ids that each of ``count`` outputs is made to begin with; see :meth:`generate`.

        Raises:
          ValueError: see :func:`specdec.data.inputs.prefix_ids`.
        """
        model, first = self.target.model, self.target.first_token
        limits = max_input_len, max_decode_len
        found = prefix_ids(prefix, count, self.vocabulary, model, *limits)
        if first is None:  # Else it is before a prefix; without one a rule makes it.
            return found
        return [np.insert(ids, 0, first) if len(ids) else ids for ids in found]

    def given_ids(
        self, given: Sequence[Given], count: int, names: Sequence[str] | None = None
    ) -> list[np.ndarray]:
        """The texts that a draft follows in each of ``count`` rows; see :meth:`generate`.

        Args:
          names: of the rows in messages; "given 0" and so on by default.

        Raises:
          ValueError: see :func:`specdec.data.inputs.given_ids`.
        """
        model, first = self.target.model, self.target.first_token
        return given_ids(given, count, self.vocabulary, model, first, names)

    def follows(self, decoding: Decoding) -> bool:
        """Whether the draft follows given texts in this way of decoding."""
        return self.draft.follows and decoding.guesses and not decoding.searches

    def _followed(
        self, given: Sequence[Given] | None, count: int, decoding: Decoding
    ) -> list[np.ndarray] | None:
        """:meth:`given_ids` for a draft that reads them, None for one that does not.

        Raises:
          ValueError: texts for a draft that follows none, or for beams; none for one that does.
        """
        follows = self.follows(decoding)
        if given is None:
            if follows:
                raise ValueError(
                    "The draft follows given texts: give one for each text, given=[...], with None "
                    "where there is none."
                )
            return None
        if decoding.searches or not self.draft.follows:
            raise ValueError(
                "given is for a draft that follows it, and not for beams: leave given out, or load "
                "the pair with draft=specdec.Given()."
            )
        found = self.given_ids(given, count)
        return found if follows else None


def refuse_unknown(
    options: Mapping[str, Any],
    method: str = "generate",
    own: Sequence[str] = ("prefix", "given", "trace"),
) -> None:
    """Raises TypeError for unknown options, with what to give instead.

    Args:
      method: the method that they were given to.
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


__all__ = ["GenerateOutput", "LoadedTarget", "Pair"]
