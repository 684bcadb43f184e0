"""Hugging Face transformers: ``generate``, greedy, with the draft as assistant, or by beams."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec.reproduce.benchmarks.contract import Workload


class System:
    """``method`` is greedy, beams, or assisted (its own schedule) or assisted_constant (gamma).

    Also greedy_bfloat16, weights and arithmetic; and greedy_int8, by torch's dynamic quantization
    of linear layers.
    """

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        import torch
        import transformers

        torch.set_num_threads(options["threads"])
        transformers.logging.set_verbosity_error()
        self._torch = torch
        self.workload = workload
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

        dtype = torch.bfloat16 if method == "greedy_bfloat16" else getattr(torch, workload.dtype)

        config = transformers.AutoConfig.from_pretrained(str(workload.target))
        self._encodes = bool(config.is_encoder_decoder)
        kind: Any = transformers.AutoModelForCausalLM
        if self._encodes:
            kind = transformers.AutoModelForSeq2SeqLM

        def read(checkpoint: Any) -> Any:
            model = kind.from_pretrained(checkpoint, dtype=dtype).eval()
            if workload.beam is None:  # Rows get prescribed lengths.
                model.generation_config.eos_token_id = None
            if "num_decoder_layers" in model.config.to_dict():
                # transformers gives T5's cache as many layers as the encoder has.
                model.config.num_layers = model.config.num_decoder_layers
            return model

        self._model = read(workload.target)
        if method == "greedy_int8":
            self._model = self._quantized(self._model, transformers.pytorch_utils.Conv1D)
        self._assistant: Any = None
        if method.startswith("assisted"):
            # Not above: plain decoding starts without JAX.
            from specdec.checkpoints import read_config

            self._assistant = read(workload.draft)
            if read_config(str(workload.draft)).encoding_width is not None:
                self._start_from_encoding()
        if method == "assisted_constant":
            settings = self._assistant.generation_config
            settings.num_assistant_tokens = workload.gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0

    def _quantized(self, model: Any, transposed: type) -> Any:
        """A model with linear layers in 8 bits; torch knows no ``transposed`` ones, as in GPT-2."""
        linear = self._torch.nn.Linear
        found = [(n, layer) for n, layer in model.named_modules() if isinstance(layer, transposed)]
        for name, layer in found:
            replaced = linear(*layer.weight.shape)
            replaced.weight, replaced.bias = self._torch.nn.Parameter(layer.weight.T), layer.bias
            model.set_submodule(name, replaced)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It is to move out of torch.
            return self._torch.ao.quantization.quantize_dynamic(model, {linear})

    def _start_from_encoding(self) -> None:
        """Lets the assistant's encoder add the target's latest encoding."""
        from specdec.checkpoints import open_huggingface

        _, params = open_huggingface(str(self.workload.draft), self.workload.dtype)
        kernel = np.asarray(params["encoder"]["input_projection"]["kernel"], np.float32)
        projection = self._torch.tensor(kernel, dtype=self._model.dtype)
        latest = {}

        def keep(module, arguments, output):
            latest["encoding"] = output.last_hidden_state

        self._model.encoder.register_forward_hook(keep)
        encode, embed = self._assistant.encoder.forward, self._assistant.shared

        def forward(input_ids=None, **kwargs):
            embedded = embed(input_ids) + latest["encoding"] @ projection
            return encode(inputs_embeds=embedded, **kwargs)

        self._assistant.encoder.forward = forward

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        torch, beam = self._torch, self.workload.beam
        options: dict[str, Any] = {"num_beams": 1, "assistant_model": self._assistant}
        if beam is not None:
            options = {
                "num_beams": beam.num_beams, "length_penalty": beam.length_penalty,
                "early_stopping": beam.early_stopping,
            }  # fmt: skip
        inputs = torch.tensor([self.workload.inputs[row] for row in rows])
        with torch.inference_mode():
            output = self._model.generate(
                inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                max_new_tokens=max(lengths or [self.workload.max_decode_len]), **options,
            )  # fmt: skip
        before = 1 if self._encodes else inputs.shape[1]  # The start token, or the prompt.
        return output[:, before:].tolist()
