"""T5X: ``t5x.decoding.temperature_sample`` over ``t5x.examples.t5.network``, from a checkout."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from specdec.benchmarks.workload import Workload
from specdec.checkpoints import load_huggingface
from specdec.decoding.batches import bucket


def import_t5x(path: str | None):
    """T5X's ``decoding`` and ``network``, which need only jax and flax.

    The package's own ``__init__`` imports much more, so an empty package stands in for it.

    Raises:
      ImportError: there is no checkout at that path.
    """
    if path is None:
        raise ImportError("give --t5x_path, a checkout of github.com/google-research/t5x")
    root = Path(path) / "t5x"
    if not (root / "decoding.py").is_file():
        raise ImportError(f"no T5X checkout at {path}: t5x/decoding.py is not there")
    package = types.ModuleType("t5x")
    package.__path__ = [str(root)]
    sys.modules["t5x"] = package
    names = ("t5x.decoding", "t5x.examples.t5.network")
    return [importlib.import_module(name) for name in names]


class System:
    """Greedy decoding, compiled for each input length; the output length is traced."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        del method
        decoding, network = import_t5x(options["t5x_path"])
        self.versions = {name: metadata.version(name) for name in ("jax", "flax")}
        self.workload = workload
        config, params = load_huggingface(str(workload.target))
        self._params = jax.tree.map(jnp.asarray, params)
        activation = config.activation
        module = network.Transformer(
            network.T5Config(
                vocab_size=config.vocab_size, dtype=workload.dtype, emb_dim=config.d_model,
                num_heads=config.num_heads, num_encoder_layers=config.num_encoder_layers,
                num_decoder_layers=config.num_decoder_layers, head_dim=config.head_dim,
                mlp_dim=config.d_ff, dropout_rate=0.0,
                mlp_activations=(activation, "linear") if config.gated else (activation,),
                logits_via_embedding=config.tied_logits,
            )
        )  # fmt: skip

        @functools.partial(jax.jit, static_argnames="room")
        def decode(params, inputs, length, room):
            targets = jnp.zeros((inputs.shape[0], room), jnp.int32)
            apply = functools.partial(module.apply, enable_dropout=False)
            _, made = apply(
                {"params": params}, inputs, targets, targets, decode=True, mutable=["cache"]
            )
            encoded = apply({"params": params}, inputs, method=module.encode)

            def logits(state):
                scores, changed = apply(
                    {"params": params, "cache": state.cache}, encoded, inputs,
                    state.cur_token, state.cur_token, decode=True, max_decode_length=room,
                    mutable=["cache"], method=module.decode,
                )  # fmt: skip
                return jnp.squeeze(scores, axis=1), changed["cache"]

            tokens, _ = decoding.temperature_sample(
                targets, made["cache"], logits, eos_id=-1, temperature=0.0, topk=1,
                max_decode_steps=length,
            )  # fmt: skip
            return tokens[:, 0]

        self._decode = decode

    def decode(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        ids = [self.workload.inputs[row] for row in rows]
        size = bucket(len(ids[0]))
        inputs = jnp.asarray([[*row, *[0] * (size - len(row))] for row in ids], jnp.int32)
        room = bucket(self.workload.max_decode_len)
        tokens = self._decode(self._params, inputs, jnp.int32(max(lengths)), room)
        return [list(map(int, row[: max(lengths)])) for row in jax.device_get(tokens)]
