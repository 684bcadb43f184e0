"""Windows of sound, decoded by specdec's own loop, and again where the result looks wrong.

A window is encoded once. What follows the start token in it says how likely each language is, and
that nobody speaks. Then it is decoded, at the next temperature if need be.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core import platforms
from specdec.core.compilation import decode_jit
from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch, input_bucket
from specdec.decoding.build import build, rules_of
from specdec.decoding.hypotheses import Hypothesis
from specdec.decoding.options import Decoding
from specdec.decoding.samples import rows_of
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.models.placing import to_host
from specdec.models.transformer.model import TransformerModel
from specdec.rules.timestamps import Timestamps
from specdec.speech.listening import Listening
from specdec.speech.options import Transcription
from specdec.types import Encoding, Params, Prompt

_CONTINUED_BELOW = 0.5  # Temperature; text above is not continued.


@dataclasses.dataclass(frozen=True)
class Window:
    """An output of an encoded window.

    Attributes:
      before: text that was said before, behind the token for it; none for none.
      opening: the start token and those behind it that say what is asked for.
      number: of the window, by which results are found; its random numbers follow from it.
    """

    before: tuple[int, ...]
    opening: tuple[int, ...]
    number: int

    @property
    def prefix(self) -> tuple[int, ...]:
        """The decoder's first tokens."""
        return self.before + self.opening


@dataclasses.dataclass(frozen=True)
class Heard:
    """The output of a window.

    Attributes:
      tokens: [T] int32 without EOS, timestamps with them; none of silence.
      log_probs: [T] float32, log p of each by the model with its rules, at temperature 1.
      mean_log_prob: of its tokens, EOS with them.
      compression_ratio: bytes of its tokens over those that zlib makes of them.
      no_speech_prob: the probability that nobody speaks; None if it was not asked for.
      temperature: at which it was decoded.
      is_silence: whether it counts as such.
      stats: counts of its decodes, those at other temperatures with them.
    """

    tokens: Int[np.ndarray, " t"]
    log_probs: Float[np.ndarray, " t"]
    mean_log_prob: float
    compression_ratio: float
    no_speech_prob: float | None
    temperature: float
    is_silence: bool = False
    stats: RunStats | None = None

    @property
    def is_continued(self) -> bool:
        """Whether the next window may continue its text."""
        return self.temperature < _CONTINUED_BELOW


@decode_jit(what="the encoder", static_argnames="model")
def _encoded(model: TransformerModel, params: Params, prompt: Prompt) -> Encoding:
    return model.encode(params, prompt)


@decode_jit(what="the detection of languages", static_argnames="model")
def _behind_start(model: TransformerModel, params: Params, prompt: Prompt) -> Float[Array, "b v"]:
    """Log p of each token behind the start token."""
    start = model.start(params, prompt, 1)
    hidden, _ = model.extend(params, start.encoded, start.cache, start.last_token[:, None])
    return jax.nn.log_softmax(model.logits(params, hidden)[:, 0])


class Windows:
    """Decodes windows.

    Args:
      decoding: how; its temperature and limit are the transcription's.
      with_times: whether there are timestamps.
    """

    def __init__(
        self, target: LoadedTarget, draft: OpenDraft, listening: Listening, how: Transcription,
        decoding: Decoding, *, with_times: bool,
    ):  # fmt: skip
        assert isinstance(target.model, TransformerModel)  # It was read from a checkpoint.
        self._model = target.model.exactly() if decoding.exact else target.model
        self._target, self._draft = target, draft
        self._tokens, self._how, self._decoding = listening.tokens, how, decoding
        self.with_times = with_times

    @property
    def _positions(self) -> int:
        most = self._model.max_positions
        assert most is not None  # A Whisper's are learned.
        return most

    @functools.cached_property
    def rules(self) -> tuple[Any, ...]:
        """The checkpoint's rules, or those that are given, and that of timestamps."""
        given = rules_of(self._target, self._decoding)
        if not self.with_times:
            return given
        tokens = self._tokens
        times = Timestamps(
            tokens.first_timestamp, tokens.no_timestamps, tokens.most_initial_timestamp
        )
        return (*given, times)

    def encoded(self, features: Sequence[Float[np.ndarray, "f m"]]) -> list[Prompt]:
        """Windows with their encodings and the start token as prefix: a prompt of a row each."""
        size, found = self._decoding.batch_size, []
        if platforms.current() == platforms.CPU and self._target.partitioning is None:
            size = 1  # Several at once are no faster there, and filler takes as long as sound.
        for begin in range(0, len(features), size):
            some = features[begin : begin + size]
            stacked = np.stack([*some, *[np.zeros_like(some[0])] * (size - len(some))])
            lengths = np.full(size, len(some[0]), np.int32)
            prompt = self._model.prompt(stacked, lengths)
            encoding = to_host(_encoded(self._model, self._target.params, self._placed(prompt)))
            prompt = dataclasses.replace(prompt, encoding=encoding)
            found += [
                jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], prompt) for i in range(len(some))
            ]
        return found

    def behind_start(
        self, windows: Sequence[Window], prompts: Sequence[Prompt]
    ) -> Float[np.ndarray, "b v"]:
        """Probabilities of each token behind the start token, which may be behind earlier text."""
        found: dict[int, np.ndarray] = {}
        cut = [dataclasses.replace(each, opening=each.opening[:1]) for each in windows]
        for batch in self._batches(cut, prompts):
            prompt = self._placed(batch.prompt)
            log_probs = to_host(_behind_start(self._model, self._target.params, prompt))
            found.update(zip(batch.row_ids.tolist(), np.exp(log_probs), strict=True))
        return np.stack([found[each.number] for each in windows])

    def _placed(self, prompt: Prompt) -> Prompt:
        return self._target.place_rows(prompt)

    def decode(self, windows: Sequence[Window], prompts: Sequence[Prompt]) -> list[Heard]:
        """Decodes windows, whose prompts are :meth:`encoded`."""
        how, silence = self._how, [None] * len(windows)
        if how.no_speech is not None:
            silence = self.behind_start(windows, prompts)[:, self._tokens.no_speech].tolist()
        found: dict[int, Heard] = {}
        left = list(range(len(windows)))
        for number, temperature in enumerate(how.temperatures):
            is_last, again = number == len(how.temperatures) - 1, []
            results = self._decoded([windows[i] for i in left], [prompts[i] for i in left],
                                    temperature, number)  # fmt: skip
            for i, (output, stats) in zip(left, results, strict=True):
                heard = self._heard(output, silence[i], temperature)
                before = found[i].stats if i in found else None
                found[i] = heard = dataclasses.replace(heard, stats=_sum(before, stats))
                if self._looks_wrong(heard) and not heard.is_silence and not is_last:
                    again.append(i)
            left = again
            if not left:
                break
        return [found[i] for i in range(len(windows))]

    def _looks_wrong(self, heard: Heard) -> bool:
        most, least = self._how.compression_ratio, self._how.log_prob
        repeats = most is not None and heard.compression_ratio > most
        return repeats or (least is not None and heard.mean_log_prob < least)

    def _heard(self, output: Hypothesis, silence: float | None, temperature: float) -> Heard:
        tokens, log_probs = output.tokens, output.ruled_log_probs
        if log_probs is None:  # Of beams.
            log_probs = output.adjusted_log_probs
        assert log_probs is not None
        mean = float(np.mean(log_probs))
        how, ratio = self._how, _compression_ratio(tokens, self._model.vocab_size)
        low = how.log_prob is not None and mean < how.log_prob
        is_silence = bool(
            low and how.no_speech is not None and silence is not None and silence > how.no_speech
        )
        ended = len(tokens) > 0 and tokens[-1] in self._model.eos_ids
        count = 0 if is_silence else len(tokens) - ended
        return Heard(
            tokens[:count], log_probs[:count], mean, ratio, silence, temperature, is_silence
        )

    def _decoded(
        self, windows: Sequence[Window], prompts: Sequence[Prompt], temperature: float, number: int
    ) -> list[tuple[Hypothesis, RunStats]]:
        """Outputs of windows at the temperature of this number, and their counts."""
        limits = [self._limit(window) for window in windows]
        decoder, limit = self._decoder(temperature, number), min(limits)
        outputs: dict[int, tuple[Hypothesis, RunStats]] = {}
        for batch, result in decoder.decode_all(self._batches(windows, prompts), limit=limit):
            counts = rows_of(result.stats)
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    own = jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], counts)
                    stats = RunStats.total([own], 1, self._decoding.depth)
                    outputs[int(row)] = decoder.outputs(result, index)[0], stats
        found = [outputs[window.number] for window in windows]
        # One limit is for all rows: those that have room for more are decoded again.
        cut = [
            i for i, (each, _) in enumerate(found) if each.ended != "eos" and limits[i] > limit
        ]  # fmt: skip
        if cut:
            whole = self._decoded(
                [windows[i] for i in cut], [prompts[i] for i in cut], temperature, number
            )
            for i, output in zip(cut, whole, strict=True):
                found[i] = output
        return found

    def _limit(self, window: Window) -> int:
        """Tokens of an output, for which there are positions behind its prefix."""
        most = self._positions - len(window.prefix)
        return min(most, self._how.max_window_tokens or most)

    def _decoder(self, temperature: float, number: int) -> LoopDecoder[Any]:
        how = self._decoding
        sampling = dataclasses.replace(how.sampling, temperature=temperature)
        if how.searches and not sampling.greedy:  # Beams draw nothing.
            plain = how.with_shape(None)
            how = dataclasses.replace(plain, method="autoregressive", beam=None, num_return=None)
        limit = self._positions - 1
        if self._how.max_window_tokens is not None:
            limit = min(limit, self._how.max_window_tokens)
        how = dataclasses.replace(
            how, sampling=sampling, rules=self.rules, log_probs=True, max_decode_len=limit,
            seed=how.seed + number,
        )  # fmt: skip
        return build(self._target, self._draft, how)

    def _batches(self, windows: Sequence[Window], prompts: Sequence[Prompt]) -> Iterable[Batch]:
        """Windows as batches; those of prefixes of about the same length together."""
        size = self._decoding.batch_size
        by_prefix: dict[int, list[int]] = {}
        shortest = min(len(window.prefix) for window in windows)
        for i, window in enumerate(windows):
            count = len(window.prefix)
            width = count if count == shortest and count < 16 else input_bucket(count)
            by_prefix.setdefault(width, []).append(i)
        for width, members in sorted(by_prefix.items()):
            for begin in range(0, len(members), size):
                some = members[begin : begin + size]
                prefix = np.full((size, width), self._model.pad_id, np.int32)
                lengths, row_ids = np.ones(size, np.int32), np.full(size, -1, np.int32)
                for row, i in enumerate(some):
                    tokens = windows[i].prefix
                    prefix[row, : len(tokens)] = tokens
                    lengths[row], row_ids[row] = len(tokens), windows[i].number
                rows = [prompts[i] for i in some]
                prompt = _together([*rows, *[rows[-1]] * (size - len(some))])
                prompt = dataclasses.replace(prompt, prefix=prefix, prefix_lengths=lengths)
                yield Batch(prompt, row_ids)


def _sum(before: RunStats | None, stats: RunStats) -> RunStats:
    """Counts of a window's decodes; what a fallback from beams decodes is left out."""
    if before is None:
        return stats
    return before + stats if before.gamma == stats.gamma else before


def _together(prompts: Sequence[Prompt]) -> Prompt:
    if len(prompts) == 1:
        return prompts[0]
    return jax.tree.map(lambda *rows: np.concatenate(rows), *prompts)


def _compression_ratio(tokens: np.ndarray, vocab_size: int) -> float:
    """Bytes of tokens over those that zlib makes of them, as transformers counts them."""
    width = (vocab_size.bit_length() - 1) // 8 + 1
    raw = b"".join(int(token).to_bytes(width, "little") for token in tokens)
    return len(raw) / len(zlib.compress(raw))
