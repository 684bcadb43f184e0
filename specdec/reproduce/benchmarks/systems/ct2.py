"""CTranslate2: the converted checkpoint's ``translate_batch`` or ``generate_batch``."""

from __future__ import annotations

import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.reproduce.benchmarks.contract import Workload


def _convert(source: str, directory: str, quantization: str | None) -> None:
    """Writes a checkpoint in CTranslate2's format."""
    import transformers
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):
        def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs):
            """Stand-in for the converter's tokenizer; tokens are numbers as strings."""
            del tokenizer_class, kwargs
            config = transformers.AutoConfig.from_pretrained(model_name_or_path)
            bos = config.to_dict().get("bos_token_id")
            names = {str(i): i for i in range(config.vocab_size)}
            if config.model_type == "marian":  # The converter removes the last one by name.
                names["<pad>"] = names.pop(str(config.pad_token_id))
            return types.SimpleNamespace(
                bos_token=None if bos is None else str(bos),
                pad_token=str(config.pad_token_id), unk_token="2",
                unk_token_id=2, special_tokens_map={},
                eos_token=str(config.eos_token_id), convert_ids_to_tokens=str,
                get_vocab=lambda: names,
            )  # fmt: skip

    Converter(source).convert(directory, quantization=quantization)


class System:
    """``method`` is the type of weights and arithmetic."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        import ctranslate2

        self.workload = workload
        self.versions = {"ctranslate2": ctranslate2.__version__}
        self._tokens = [[str(token) for token in row] for row in workload.inputs]
        if workload.beam:
            workload.require(
                workload.beam.early_stopping is True, "CTranslate2 knows early_stopping=True"
            )
        with tempfile.TemporaryDirectory() as directory:
            converted = Path(options.get("kept") or directory) / f"ct2_{method}"
            if not converted.is_dir():
                quantization = None if method == "float32" else method
                _convert(str(workload.target), str(converted), quantization)
            # The vocabulary of two sides has another name.
            self._encodes = not (converted / "vocabulary.json").is_file()
            kind: Any = ctranslate2.Translator if self._encodes else ctranslate2.Generator
            self._model = kind(
                str(converted), device="cpu", compute_type=method, inter_threads=1,
                intra_threads=options["threads"],
            )  # fmt: skip

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        given = [self._tokens[row] for row in rows]
        most, beam = max(lengths or [self.workload.max_decode_len]), self.workload.beam
        search: dict[str, Any] = {"beam_size": 1}
        if beam is not None:
            # Lengths in scores have EOS if it is returned, as transformers' have. A row ends when
            # as many hypotheses ended as there are beams: early_stopping=True.
            search = {
                "beam_size": beam.num_beams, "length_penalty": beam.length_penalty,
                "return_end_token": True,
            }  # fmt: skip
        least = most if beam is None else 1
        if self._encodes:
            results = self._model.translate_batch(
                given, min_decoding_length=least, max_decoding_length=most, **search
            )
            found = [result.hypotheses[0] for result in results]
        else:
            results = self._model.generate_batch(
                given, min_length=least, max_length=most, include_prompt_in_result=False, **search
            )
            found = [result.sequences[0] for result in results]
        return [list(map(int, tokens)) for tokens in found]
