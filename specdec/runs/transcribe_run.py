"""The description of a transcribing run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple

from specdec.api import Pair
from specdec.checkpoints.loading import GenerationConfig, check_generation_config
from specdec.core.arguments import path_name
from specdec.core.fields import OneOf, checked
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import draft_spec
from specdec.models.partitioning import DeviceMesh, check_mesh
from specdec.speech.options import Transcription
from specdec.speech.transcribing import Transcriber

# Of files of sound and of films. Those that soundfile does not read are skipped with a reason.
SUFFIXES = (
    ".aac", ".aif", ".aiff", ".amr", ".au", ".caf", ".flac", ".m4a", ".mkv", ".mov",
    ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".w64", ".wav", ".webm", ".wma",
)  # fmt: skip
SUBTITLES = ("srt", "vtt")
_MOST_TOKENS = 448  # Positions of every public Whisper.


class RecordingFile(NamedTuple):
    """A file of sound, and its name in what is written: its path in the folder that was given."""

    name: str
    path: Path


def _audio(name: str, given: Any) -> Any:
    many = isinstance(given, list | tuple) and bool(given)
    for each in given if many else (given,):
        if not isinstance(each, str | PurePath) or not str(each):
            raise ValueError(
                f"{name} must be a folder, a file of sound or a list of files, got {given!r}."
            )
    return tuple(map(str, given)) if many else str(given)


def _subtitles(name: str, given: Any) -> tuple[str, ...]:
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    if len(set(found)) < len(found) or not set(found) <= set(SUBTITLES):
        raise ValueError(f'{name} must be of "srt" and "vtt", such as ("srt",), got {given!r}.')
    return found


@checked()
class TranscribeRun:
    """Transcription of files. ``configs/runs/transcribe.gin`` binds its fields.

    Attributes:
      audio: a folder, whose files of sound are found by their suffixes, those in its folders with
        them; one file; or a list of files.
      target, draft, dtype, weights, mesh, generation_config: see :func:`specdec.load_pair`.
      decoding: see :class:`specdec.Decoding`; ``batch_size`` files are decoded together.
      transcription: see :class:`specdec.Transcription`.
      subtitles: what is written of each file beside its line: "srt", "vtt", both or none.

    Raises:
      ValueError: a value out of its range; gamma or a tree that is "auto".
    """

    audio: Annotated[str | Sequence[str], _audio]
    target: Annotated[str, path_name]
    draft: str | DraftSpec
    decoding: Decoding
    transcription: Transcription
    dtype: Annotated[str, OneOf("float32", "bfloat16", "float16")]
    subtitles: Annotated[Sequence[str], _subtitles] = ()
    weights: Literal["int8"] | None = None
    mesh: DeviceMesh | None = None
    generation_config: GenerationConfig = "follow"

    def __post_init__(self):
        for name, kind in (("decoding", Decoding), ("transcription", Transcription)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a specdec.{kind.__name__}.")
        if self.decoding.to_choose:
            raise ValueError(
                'A transcription measures nothing beforehand: give a number, not "auto".'
            )
        draft_spec("draft", self.draft)
        check_generation_config(self.generation_config)
        check_mesh(self.mesh)

    @property
    def planned(self) -> TranscribeRun:
        """This run with the decoding of its first temperature, for plans of memory."""
        how, first = self.transcription, self.transcription.temperatures[0]
        decoding = dataclasses.replace(
            self.decoding, sampling=dataclasses.replace(self.decoding.sampling, temperature=first),
            max_decode_len=how.max_window_tokens or _MOST_TOKENS,
        )  # fmt: skip
        return dataclasses.replace(self, decoding=decoding)

    def transcriber(self, pair: Pair) -> Transcriber:
        """The run's transcriber; see :meth:`specdec.Pair.transcriber`."""
        fields = dataclasses.fields(Transcription)
        options = {each.name: getattr(self.transcription, each.name) for each in fields}
        return pair.transcriber(self.decoding, **options)

    def recordings(self) -> list[RecordingFile]:
        """Files to transcribe, by name.

        Raises:
          ValueError: the folder is not there or has no file of sound, a file is given twice, or two
            would have subtitles of the same name.
        """
        if not isinstance(self.audio, str):
            found = [RecordingFile(each, Path(each)) for each in self.audio]
        elif (folder := Path(self.audio)).is_dir():
            files = (each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES)
            found = [RecordingFile(each.relative_to(folder).as_posix(), each) for each in files]
            if not found:
                known = " ".join(SUFFIXES)
                raise ValueError(f"{folder} has no file of sound, by its suffix: {known}.")
        elif folder.is_file():
            found = [RecordingFile(folder.name, folder)]
        else:
            raise ValueError(f"{folder} is no folder and no file.")
        self._check_names(found)
        return sorted(found)

    def _check_names(self, files: Sequence[RecordingFile]) -> None:
        twice = [name for name, count in Counter(each.name for each in files).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is given twice.")
        places = Counter(subtitles_of(each.name, "srt") for each in files)
        twice = [str(place) for place, count in places.items() if count > 1]
        if self.subtitles and twice:
            raise ValueError(
                f"Subtitles of two files would be {twice[0]}: rename one, or leave subtitles out."
            )


def subtitles_of(name: str, kind: str) -> PurePath:
    """Where a file's subtitles go, in the output directory."""
    parts = [part for part in PurePath(name).parts if part not in ("/", "..")]
    return PurePath("subtitles", *parts).with_suffix(f".{kind}")
