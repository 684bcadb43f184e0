"""CTranslate2: ``translate_batch`` of the converted checkpoint, greedy or by beams."""

from __future__ import annotations

import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.benchmarks.workload import Workload


class System:
    """``method`` is the type of weights and arithmetic."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        import ctranslate2
        import transformers
        from ctranslate2.converters import TransformersConverter

        class Converter(TransformersConverter):
            def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs):
                """What the converter asks of a tokenizer; tokens are numbers as strings."""
                del tokenizer_class, kwargs
                config = transformers.AutoConfig.from_pretrained(model_name_or_path)
                return types.SimpleNamespace(
                    bos_token=None, pad_token=str(config.pad_token_id), unk_token="2",
                    eos_token=str(config.eos_token_id), convert_ids_to_tokens=str,
                    get_vocab=lambda: {str(i): i for i in range(config.vocab_size)},
                )  # fmt: skip

        self.workload = workload
        self.versions = {"ctranslate2": ctranslate2.__version__}
        self._tokens = [[str(token) for token in row] for row in workload.inputs]
        with tempfile.TemporaryDirectory() as directory:
            converted = str(Path(directory) / "model")
            quantization = None if method == "float32" else method
            if workload.beam:
                workload.require(
                    workload.beam.early_stopping is True, "CTranslate2 knows early_stopping=True"
                )
            Converter(str(workload.target)).convert(converted, quantization=quantization)
            self._translator = ctranslate2.Translator(
                converted, device="cpu", compute_type=method, inter_threads=1,
                intra_threads=options["threads"],
            )  # fmt: skip

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        given = [self._tokens[row] for row in rows]
        most, beam = max(lengths or [self.workload.max_decode_len]), self.workload.beam
        if beam is None:
            results = self._translator.translate_batch(
                given, beam_size=1, min_decoding_length=most, max_decoding_length=most
            )
        else:
            # Lengths in scores have EOS if it is returned, as transformers' have. A row ends when
            # as many hypotheses ended as there are beams: early_stopping=True.
            results = self._translator.translate_batch(
                given, beam_size=beam.num_beams, length_penalty=beam.length_penalty,
                max_decoding_length=most, return_end_token=True,
            )  # fmt: skip
        return [[int(token) for token in result.hypotheses[0]] for result in results]
