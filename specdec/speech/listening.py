"""Settings of a checkpoint that listens: how sound becomes features, and special tokens."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from specdec.checkpoints.hf_files import GENERATION_CONFIG, PREPROCESSOR, PROCESSOR
from specdec.core.checkpoint_files import CheckpointError, read_json
from specdec.models.base import LoadableModel
from specdec.text.base import Tokenizer
from specdec.text.hf_library import library_errors

TASKS = ("transcribe", "translate")
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_MULTILINGUAL_ROWS = 51865  # Of the embeddings of OpenAI's models; English-only ones have fewer.


@dataclasses.dataclass(frozen=True)
class SpeechTokens:
    """Special tokens of a Whisper.

    Attributes:
      start: the first one of each output.
      tasks: by name; none for an English-only model.
      previous: before text that was said before.
      no_speech: of a window without speech, where a language would follow the start.
      no_timestamps: behind which no timestamps follow. The next one is 0.00, and each further one
        is two frames later.
      languages: by code; none for an English-only model.
      most_initial_timestamp: see :class:`specdec.rules.timestamps.Timestamps`.
    """

    start: int
    tasks: Mapping[str, int]
    previous: int
    no_speech: int
    no_timestamps: int
    languages: Mapping[str, int]
    most_initial_timestamp: int | None = None

    @property
    def first_timestamp(self) -> int:
        """The token of 0.00."""
        return self.no_timestamps + 1

    def language(self, name: str) -> str:
        """The code of a language that is given by code or English name.

        Raises:
          ValueError: the model does not have it.
        """
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        code = TO_LANGUAGE_CODE.get(name.lower(), name.lower())
        if code not in self.languages:
            known = ", ".join(sorted(self.languages))
            raise ValueError(f"language = {name!r} is none of the model's: {known}.")
        return code


@dataclasses.dataclass(frozen=True)
class Listening:
    """How a checkpoint listens.

    Attributes:
      extractor: transformers' feature extractor.
      tokens: special tokens.
    """

    extractor: Any
    tokens: SpeechTokens

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.extractor.sampling_rate

    @property
    def frames(self) -> int:
        """Frames of a window."""
        return self.extractor.nb_max_frames

    @property
    def frame(self) -> float:
        """Seconds of a frame; a timestamp is two of them."""
        return self.extractor.hop_length / self.rate

    def features(self, samples: Float[np.ndarray, " n"]) -> Float[np.ndarray, "f m"]:
        """Features of a recording. One shorter than a window is filled up with silence."""
        window = self.extractor.n_samples
        long = {"truncation": False, "padding": "longest"} if len(samples) > window else {}
        found = self.extractor(samples, sampling_rate=self.rate, return_tensors="np", **long)
        return np.ascontiguousarray(found["input_features"][0].T, np.float32)


def open_listening(directory: Path, model: LoadableModel, vocabulary: Tokenizer) -> Listening:
    """How the checkpoint of a directory listens.

    Raises:
      CheckpointError: its vocabulary lacks special tokens, or its features are of another model.
    """
    shape, (path, settings) = model.input_shape, _settings(directory)
    assert shape is not None
    settings = {"feature_size": shape[1], **settings}
    with library_errors(path):
        from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

        extractor: Any = WhisperFeatureExtractor.from_dict(settings)
    found = extractor.nb_max_frames, extractor.feature_size
    if found != shape:
        raise CheckpointError(
            f"{path} makes windows of {found[0]} frames with {found[1]} mel bins, and the model "
            f"reads {shape[0]} with {shape[1]}: it is another model's."
        )
    return Listening(extractor, _tokens(directory, model, vocabulary))


def _settings(directory: Path) -> tuple[Path, Mapping[str, Any]]:
    """How features are made, and the file that says it; nothing where there is none."""
    path = directory / PREPROCESSOR
    if path.is_file():
        return path, read_json(path)
    path = directory / PROCESSOR
    found = read_json(path).get("feature_extractor") if path.is_file() else None
    return path, found if isinstance(found, Mapping) else {}


def _tokens(directory: Path, model: LoadableModel, vocabulary: Tokenizer) -> SpeechTokens:
    known = vocabulary.tokens()

    def token(*names: str) -> int:
        for name in names:
            if name in known:
                return known[name]
        raise CheckpointError(
            f"{vocabulary.path} has no token {names[0]}, which a model that listens needs: it is "
            "another model's vocabulary."
        )

    start, translate = token("<|startoftranscript|>"), token("<|translate|>")
    file = directory / GENERATION_CONFIG
    options = read_json(file) if file.is_file() else {}
    multilingual = options.get("is_multilingual", model.vocab_size >= _MULTILINGUAL_ROWS)
    languages = {
        found[1]: each
        for name, each in known.items()
        if (found := _LANGUAGE.fullmatch(name)) and start < each < translate
    }
    return SpeechTokens(
        start=start, previous=token("<|startofprev|>"),
        tasks={name: token(f"<|{name}|>") for name in TASKS} if multilingual else {},
        no_speech=token("<|nospeech|>", "<|nocaptions|>"),
        no_timestamps=token("<|notimestamps|>"), languages=languages if multilingual else {},
        most_initial_timestamp=options.get("max_initial_timestamp_index"),
    )  # fmt: skip
