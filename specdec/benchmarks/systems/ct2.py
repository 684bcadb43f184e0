"""CTranslate2: greedy ``translate_batch`` of the converted checkpoint, float32 or int8."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from specdec.benchmarks.systems import Options
from specdec.benchmarks.workload import Workload


def load(workload: Workload, method: str, options: Options) -> CTranslate2:
    """See :mod:`specdec.benchmarks.systems`."""
    return CTranslate2(workload, method, options["threads"])


class _Numbers:
    """What the converter asks of a tokenizer: a vocabulary, here of numbers as strings."""

    bos_token = None

    def __init__(self, size: int, pad_id: int, eos_id: int):
        self.pad_token, self.eos_token = str(pad_id), str(eos_id)
        self.unk_token = str(2)
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(self._size)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


class CTranslate2:
    """``method`` is the type of weights and arithmetic."""

    def __init__(self, workload: Workload, method: str, threads: int):
        import ctranslate2
        import transformers
        from ctranslate2.converters import TransformersConverter

        class Converter(TransformersConverter):
            def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs):
                del tokenizer_class, kwargs
                config = transformers.AutoConfig.from_pretrained(model_name_or_path)
                return _Numbers(config.vocab_size, config.pad_token_id, config.eos_token_id)

        self.versions = {"ctranslate2": ctranslate2.__version__}
        self._tokens = [[str(token) for token in row] for row in workload.inputs]
        with tempfile.TemporaryDirectory() as directory:
            converted = str(Path(directory) / "model")
            quantization = None if method == "float32" else method
            Converter(str(workload.target.checkpoint)).convert(converted, quantization=quantization)
            self._translator = ctranslate2.Translator(
                converted, device="cpu", compute_type=method, inter_threads=1,
                intra_threads=threads,
            )  # fmt: skip

    def decode(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        results = self._translator.translate_batch(
            [self._tokens[row] for row in rows], beam_size=1,
            min_decoding_length=max(lengths), max_decoding_length=max(lengths),
        )  # fmt: skip
        return [[int(token) for token in result.hypotheses[0]] for result in results]
