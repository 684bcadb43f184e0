"""Hugging Face transformers: greedy ``generate``, alone or with the draft as assistant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.benchmarks.systems import Options
from specdec.benchmarks.workload import Workload


def load(workload: Workload, method: str, options: Options) -> Transformers:
    """See :mod:`specdec.benchmarks.systems`."""
    return Transformers(workload, method, options["threads"])


class Transformers:
    """``method`` is greedy, assisted (its own schedule) or assisted_constant (gamma guesses)."""

    def __init__(self, workload: Workload, method: str, threads: int):
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self._torch = torch
        self.workload = workload
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

        def read(checkpoint: str | None) -> Any:
            model: Any = transformers.T5ForConditionalGeneration.from_pretrained(
                checkpoint, dtype=getattr(torch, workload.dtype)
            ).eval()
            # Rows get the lengths they are told.
            model.generation_config.eos_token_id = None
            # transformers gives the decoder's cache as many layers as the encoder has.
            model.config.num_layers = model.config.num_decoder_layers
            return model

        self._model = read(workload.target.checkpoint)
        self._assistant: Any = None
        if method != "greedy":
            self._assistant = read(workload.draft.checkpoint)
        if method == "assisted_constant":
            settings = self._assistant.generation_config
            settings.num_assistant_tokens = workload.gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0

    def decode(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        torch = self._torch
        inputs = torch.tensor([self.workload.inputs[row] for row in rows])
        with torch.inference_mode():
            output = self._model.generate(
                inputs, attention_mask=torch.ones_like(inputs), do_sample=False, num_beams=1,
                max_new_tokens=max(lengths), assistant_model=self._assistant,
            )  # fmt: skip
        return output[:, 1:].tolist()
