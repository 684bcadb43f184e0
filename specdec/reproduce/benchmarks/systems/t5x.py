"""T5X: ``t5x.decoding`` over ``t5x.examples.t5.network``, from a checkout."""

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

from specdec.checkpoints import load_huggingface
from specdec.checkpoints.architectures import is_t5
from specdec.decoding.batches import bucket, input_bucket
from specdec.reproduce.benchmarks.contract import Workload


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
    """Greedy decoding or beams, compiled for each input length.

    The output length is traced, but of beams, whose buffers have it as their size.
    """

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        decoding, network = import_t5x(options["t5x_path"])
        self.versions = {name: metadata.version(name) for name in ("jax", "flax")}
        self.workload = workload
        config, params = load_huggingface(str(workload.target))
        if not is_t5(config):
            raise ImportError("T5X's example network is a T5")
        self._eos_id = config.eos_id
        self._params = jax.tree.map(jnp.asarray, params)
        activation = config.decoder.activation
        module = network.Transformer(
            network.T5Config(
                vocab_size=config.vocab_size, dtype=workload.dtype, emb_dim=config.d_model,
                num_heads=config.num_heads, num_encoder_layers=config.num_encoder_layers,
                num_decoder_layers=config.num_decoder_layers, head_dim=config.head_dim,
                mlp_dim=config.d_ff, dropout_rate=0.0,
                mlp_activations=(activation, "linear") if config.decoder.gated else (activation,),
                logits_via_embedding=config.tied_logits,
            )
        )  # fmt: skip

        width = workload.beam.num_beams if workload.beam else 1
        search: dict[str, Any] = {"temperature": 0.0, "topk": 1}
        if workload.beam:
            search = {"num_decodes": width, "alpha": workload.beam.alpha}

        @functools.partial(jax.jit, static_argnames="room")
        def decode(params, inputs, length, room):
            targets = jnp.zeros((inputs.shape[0], room), jnp.int32)
            apply = functools.partial(module.apply, enable_dropout=False)
            _, made = apply(
                {"params": params}, inputs, targets, targets, decode=True, mutable=["cache"]
            )
            encoded = apply({"params": params}, inputs, method=module.encode)
            each, sources = (
                decoding.flat_batch_beam_expand(array, width) for array in (encoded, inputs)
            )

            def logits(state):
                scores, changed = apply(
                    {"params": params, "cache": state.cache}, each, sources,
                    state.cur_token, state.cur_token, decode=True, max_decode_length=room,
                    mutable=["cache"], method=module.decode,
                )  # fmt: skip
                return jnp.squeeze(scores, axis=1), changed["cache"]

            if method == "beams":
                tokens, _ = decoding.beam_search(
                    targets, made["cache"], logits, eos_id=config.eos_id, **search
                )
            else:
                tokens, _ = decoding.temperature_sample(
                    targets, made["cache"], logits, eos_id=-1, max_decode_steps=length, **search
                )
            return tokens[:, -1]  # The best hypothesis is the last one.

        self._decode = decode

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        most = max(lengths or [self.workload.max_decode_len])
        ids = [self.workload.inputs[row] for row in rows]
        size = input_bucket(len(ids[0]))
        inputs = jnp.asarray([[*row, *[0] * (size - len(row))] for row in ids], jnp.int32)
        room = most if self.workload.beam else bucket(self.workload.max_decode_len)
        tokens = self._decode(self._params, inputs, jnp.int32(most), room)
        found = [list(map(int, row[:most])) for row in jax.device_get(tokens)]
        if self.workload.beam:  # These end by themselves.
            found = [row[: [*row, self._eos_id].index(self._eos_id) + 1] for row in found]
        return found
