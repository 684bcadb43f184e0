"""Hugging Face transformers: Whisper's ``generate`` over a whole recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.systems.recordings import RATE, samples, shortened


class System:
    """``method`` is greedy."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        import torch
        import transformers

        del method
        torch.set_num_threads(options["threads"])
        transformers.logging.set_verbosity_error()
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        source, self._torch = str(workload.target), torch
        kind = transformers.WhisperForConditionalGeneration
        self._model: Any = kind.from_pretrained(source, dtype=torch.float32).eval()
        self._extract = transformers.WhisperFeatureExtractor.from_pretrained(source)
        ids = transformers.AutoTokenizer.from_pretrained(source).convert_tokens_to_ids
        settings = self._model.generation_config
        settings.lang_to_id = {"<|en|>": ids("<|en|>")}
        settings.task_to_id = {"transcribe": ids("<|transcribe|>")}
        self._heard = [samples(workload, row) for row in range(len(workload.recordings))]

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        """Tokens of text of each recording."""
        found = []
        for row in rows:
            heard, first = shortened(self._heard[row], lengths)
            inputs = self._extract(
                heard, sampling_rate=RATE, truncation=False, padding="longest",
                return_tensors="pt", return_attention_mask=True,
            )  # fmt: skip
            with self._torch.no_grad():
                (tokens,) = self._model.generate(
                    inputs.input_features, attention_mask=inputs.attention_mask, language="en",
                    task="transcribe", return_timestamps=True,
                    **({"max_new_tokens": 1} if first else {}),
                ).tolist()  # fmt: skip
            end = self._model.generation_config.eos_token_id
            found.append([token for token in tokens if token < end] or [0])
        return found
