"""Rows of speech: windows of recordings, and what a target that listens makes of each.

The target does not change while a draft on its hidden states is trained, and its encoder is most of
what a window costs. So a row is computed once and kept in a file: what the encoder made of the
window, the tokens that the target wrote, and the state that each was drawn from.

Source: Gandhi et al. 2023, "Distil-Whisper", section 3, for training on the target's transcripts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from specdec.api import Pair
from specdec.core.files import written
from specdec.core.progress import Progress, say
from specdec.data.text import existing_file
from specdec.decoding.options import Decoding
from specdec.drafters.copying import Copying
from specdec.load import load_pair
from specdec.models.transformer.model import TransformerModel
from specdec.speech.audio import read_audio
from specdec.speech.following import tokens_behind_start
from specdec.speech.options import Transcription
from specdec.speech.windows import Window, Windows
from specdec.training import teacher_forcing
from specdec.training.speech_rows import size_of
from specdec.types import Params

# Greedy, and no window again: a draft is to guess what the target writes first.
_PLAIN = {"temperatures": (0.0,), "compression_ratio": None, "log_prob": None, "no_speech": None}


def write_rows(
    directory: str | os.PathLike, *, target: str, data: str | os.PathLike,
    batch_size: int = 4, most_tokens: int = 200, most_repeated: float = 1.35,
) -> None:  # fmt: skip
    """Writes ``<directory>/<split>/<number>.safetensors``, one for each window of the recordings.

    Recordings are cut into windows of the model's length, one behind the other; every third is
    written without timestamps. A window whose output does not end within ``most_tokens``, or
    repeats itself, has a file without tokens. Files that are there are not made again.

    Args:
      target: a checkpoint that listens: a directory or a hub id.
      data: a folder with ``train.jsonl`` and ``validation.jsonl``, whose lines are such as
        ``{"audio": "a.wav", "language": "en"}``. Paths are relative to the folder; an English-only
        model needs no language.
      batch_size: windows that are decoded together.
      most_tokens: of an output, EOS included.
      most_repeated: the most bytes of tokens over those that zlib makes of them.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data or target; sound that cannot be read.
    """
    pair = load_pair(target=target, draft=Copying())
    if pair.listening is None:
        raise ValueError(f"{target} reads texts and does not listen: use generate.")
    decoding = Decoding(method="autoregressive", batch_size=batch_size)
    for split in ("train", "validation"):
        folder, manifest = Path(directory) / split, Path(data) / f"{split}.jsonl"
        cuts = [each for each in _cuts(pair, manifest) if not (folder / each.name).exists()]
        with Progress(len(cuts), "windows") as progress:
            for times in (True, False):
                some = [each for each in cuts if each.with_times == times]
                how = Transcription(**_PLAIN, max_window_tokens=most_tokens)
                windows = Windows(
                    pair.target, pair.draft, pair.listening, how, decoding, with_times=times
                )
                for begin in range(0, len(some), batch_size):
                    chosen = some[begin : begin + batch_size]
                    rows = _rows(pair, windows, chosen, batch_size, most_tokens, most_repeated)
                    for each, row in zip(chosen, rows, strict=True):
                        with written(folder / each.name) as partial:
                            save_file(row, partial)
                    progress.add(len(chosen))
        sizes = [size_of(path) for path in folder.glob("*.safetensors")]
        say(f"{split}: {len(sizes)} windows, {sizes.count(0)} left out")


@dataclasses.dataclass(frozen=True)
class _Cut:
    """A window of a recording: its number among all, its place in its own, what it begins with."""

    number: int
    audio: Path
    place: int
    prefix: tuple[int, ...]
    with_times: bool

    @property
    def name(self) -> str:
        return f"{self.number}.safetensors"


def _cuts(pair: Pair, manifest: Path) -> Iterator[_Cut]:
    """All windows of a manifest's recordings; their lengths are read, and no more."""
    import soundfile

    assert pair.listening is not None
    tokens, number = pair.listening.tokens, 0
    seconds = pair.listening.frames * pair.listening.frame
    for index, line in enumerate(existing_file(manifest).read_text("utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            audio, name = manifest.parent / fields["audio"], fields.get("language")
            if (name is None) != (not tokens.languages):
                raise ValueError("a language is of multilingual models, and they need it")
            language = name and tokens.language(name)
            duration = soundfile.info(audio).duration
        except (ValueError, KeyError, TypeError, soundfile.LibsndfileError) as error:
            raise ValueError(f"{manifest}:{index}: {error}") from None
        for place in range(max(1, round(duration / seconds))):
            times = number % 3 > 0
            prefix = tokens_behind_start(tokens, language, "transcribe", with_times=times)
            yield _Cut(number, audio, place, prefix, times)
            number += 1


def _rows(
    pair: Pair, windows: Windows, cuts: Sequence[_Cut], batch_size: int, most: int, repeated: float
) -> Iterator[dict[str, np.ndarray]]:
    """The target's transcripts of a batch of windows, as arrays by name."""
    listening, model = pair.listening, pair.target.model
    assert listening is not None
    assert isinstance(model, TransformerModel)
    size, features = listening.extractor.n_samples, []
    for each in cuts:
        samples = read_audio(each.audio, None, listening.rate)
        features.append(listening.features(samples[each.place * size :][:size]))
    prompts = windows.encoded(features)
    heard = windows.decode([Window((), each.prefix, each.number) for each in cuts], prompts)
    first = len(cuts[0].prefix) - 1
    targets = np.full((batch_size, first + most), model.config.start_id, np.int32)
    outputs = [each.encoding.output[0] for each in prompts if each.encoding is not None]
    inputs = np.zeros((batch_size, *outputs[0].shape), np.float16)
    sizes = []
    for row, (each, found, output) in enumerate(zip(cuts, heard, outputs, strict=True)):
        bad = len(found.tokens) >= most or found.compression_ratio > repeated
        ids = [] if bad else [*each.prefix[1:], *found.tokens, model.eos_ids[0]]
        targets[row, : len(ids)] = ids
        inputs[row] = output
        sizes.append(len(ids))
    states, sums = jax.device_get(_read(model, pair.target.params, inputs, targets))
    for row, count in enumerate(sizes):
        yield {
            "encoding": inputs[row] if count else inputs[row, :0], "tokens": targets[row, :count],
            "states": states[row, :count], "log_sums": sums[row, :count],
        }  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _read(model: TransformerModel, params: Params, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """States along the targets, float16, and logs of the sums of exp of their logits."""
    _, _, hidden = teacher_forcing.states_along(model, params, inputs, targets)
    hidden = hidden.astype(jnp.float16)  # As they will be read.

    def log_sum(states):
        logits = model.logits(params, states[None].astype(jnp.float32))
        return jax.nn.logsumexp(logits[0], axis=-1)

    return hidden, jax.lax.map(log_sum, hidden)
