"""faster-whisper, which is CTranslate2's Whisper: ``transcribe``, greedy, once a window."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.systems.recordings import samples, shortened


class System:
    """``method`` is the type of weights and arithmetic."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        from faster_whisper import WhisperModel

        self.versions = {each: metadata.version(each) for each in ("faster-whisper", "ctranslate2")}
        with tempfile.TemporaryDirectory() as directory:
            converted = Path(options.get("kept") or directory) / f"whisper_{method}"
            if not converted.is_dir():
                from ctranslate2.converters import TransformersConverter

                beside = ["tokenizer.json", "preprocessor_config.json"]
                source = TransformersConverter(str(workload.target), copy_files=beside)
                source.convert(str(converted))
            self._model = WhisperModel(
                str(converted), device="cpu", compute_type=method, local_files_only=True,
                cpu_threads=options["threads"],
            )  # fmt: skip
        end = self._model.hf_tokenizer.token_to_id("<|endoftext|>")
        assert end is not None
        self._end = end
        self._heard = [samples(workload, row) for row in range(len(workload.recordings))]

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        """Tokens of text of each recording."""
        found = []
        for row in rows:
            heard, first = shortened(self._heard[row], lengths)
            segments, _ = self._model.transcribe(
                heard, language="en", beam_size=1, temperature=0.0,
                condition_on_previous_text=False, compression_ratio_threshold=None,
                log_prob_threshold=None, no_speech_threshold=None,
                max_new_tokens=1 if first else None,
            )  # fmt: skip
            tokens = [token for each in segments for token in each.tokens if token < self._end]
            found.append(tokens or [0])
        return found
