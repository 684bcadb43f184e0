"""T5X: a model class whose predictions are decoded speculatively, for ``t5x.infer``'s own runs.

``configs/t5x/speculative.gin`` puts it in the place of a run's model. The target is T5X's in all
else: its network, parameters, checkpoints, partitioner and data. Source of T5X's side:
``t5x/models.py``, ``t5x/infer.py`` and ``t5x/examples/t5/network.py`` of google-research/t5x.

Shapes: B batch, S input length, L output length, G gamma.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import seqio
from flax import linen as nn
from flax.core import unfreeze
from jaxtyping import Array, Float, Int, Shaped
from t5x import models  # Where T5X is not installed, pyright takes this very file for it.
from t5x.examples.t5 import network  # pyright: ignore[reportMissingImports]

from specdec.api import GREEDY
from specdec.checkpoints.loading import DraftLoader, loaded_t5
from specdec.decoding.engine import EngineParams, decode
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import Checkpoint
from specdec.drafters.tree import Tree, as_tree
from specdec.engines import speculative_engine
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.network import init_params, shift_right
from specdec.types import Params, SamplingConfig
from specdec.verifiers.base import Verifier


def t5_config(module: nn.Module, eos_id: int) -> T5Config:
    """The network of a ``t5x.examples.t5.network.Transformer``.

    Raises:
      ValueError: another module, or a feed-forward or dtype that specdec's T5 lacks.
    """
    if type(module) is not network.Transformer:
        raise ValueError(
            f"The target must be a {network.Transformer.__module__}.Transformer, got "
            f"{type(module).__module__}.{type(module).__name__}: specdec computes that network "
            "only."
        )
    config = module.config
    activation, *gate = config.mlp_activations
    if gate not in ([], ["linear"]):
        raise ValueError(
            "mlp_activations must be one activation, or one and 'linear', got "
            f"{tuple(config.mlp_activations)}."
        )
    same = ("vocab_size", "num_encoder_layers", "num_decoder_layers", "num_heads", "head_dim")
    return T5Config(
        **{name: getattr(config, name) for name in same},
        d_model=config.emb_dim, d_ff=config.mlp_dim, activation=activation, gated=bool(gate),
        tied_logits=config.logits_via_embedding, dtype=jnp.dtype(config.dtype).name, eos_id=eos_id,
    )  # fmt: skip


class SpeculativeEncoderDecoderModel(
    models.EncoderDecoderModel  # pyright: ignore[reportAttributeAccessIssue]
):
    """T5X's encoder-decoder, sampled speculatively with a draft.

    Predictions follow the target's own law under ``sampling`` (if the verifier is lossless), and
    are its argmax tokens at temperature 0. Loss, scores and parameters are T5X's. In bfloat16,
    specdec's sums are rounded elsewhere than T5X's. Each batch packs the target's decoder again, a
    copy for as long as it is decoded; the draft's parameters are the compiled program's constants.

    Args:
      module: a ``t5x.examples.t5.network.Transformer``.
      draft: a checkpoint of any format, a bundled pair's name, or a spec such as
        :class:`specdec.Copying`; see :func:`specdec.load_pair`.
      gamma: guesses a block; or
      tree: several for one position, as in :meth:`specdec.Pair.generate`, but not "auto".
      sampling: temperature, top-k and top-p. They take the place of T5X's ``decode_fn``.
      verifier: what accepts guesses; None for the default of chains or of trees.
      input_vocabulary, output_vocabulary, optimizer_def, feature_converter_cls, label_smoothing,
        z_loss, loss_normalizing_factor: see ``t5x.models.EncoderDecoderModel``.

    Raises:
      ValueError: a gamma below 1, both gamma and tree or none, a verifier or draft of chains with
        a tree, a target that is not T5X's T5, or a draft that does not speak its
        tokens.
      CheckpointError: the draft cannot be read.
    """

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary: seqio.Vocabulary,
        output_vocabulary: seqio.Vocabulary,
        optimizer_def: Any,
        *,
        draft: str | os.PathLike | DraftSpec,
        gamma: int | None = None,
        tree: Tree | Sequence[int] | None = None,
        sampling: SamplingConfig = GREEDY,
        verifier: Verifier | None = None,
        feature_converter_cls: Callable[..., seqio.FeatureConverter] | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: Any = None,
    ):
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def,
            decode_fn=None, feature_converter_cls=feature_converter_cls,
            label_smoothing=label_smoothing, z_loss=z_loss,
            loss_normalizing_factor=loss_normalizing_factor,
        )  # fmt: skip
        if (gamma is None) == (tree is None):
            raise ValueError(f"Give gamma or tree, got gamma = {gamma!r} and tree = {tree!r}.")
        if tree is None and (not isinstance(gamma, int) or gamma < 1):
            raise ValueError(f"gamma must be a whole number of at least 1, got {gamma!r}.")
        # As T5X's own decoding, which takes 1 for a vocabulary without an end.
        config = t5_config(module, output_vocabulary.eos_id or 1)
        # T5X compiles the program, without the options that the CPU's own layout needs.
        model = self._target = T5Model(config, layout="in_out")
        # Before a checkpoint is restored the parameters are shapes.
        shapes = jax.eval_shape(lambda: model.pack(init_params(config, jax.random.key(0))))
        target = loaded_t5(model, shapes, "T5X's module")
        spec = Checkpoint(os.fspath(draft)) if isinstance(draft, str | os.PathLike) else draft
        vocabulary = _vocabulary_file(output_vocabulary)
        opened = spec.open(DraftLoader(target, vocabulary, config.dtype))
        shape = None if tree is None else as_tree(tree)
        self._engine = speculative_engine(model, opened, gamma or 0, shape, verifier)
        self._draft_params, self._sampling = opened.params(sampling), sampling.traced()

    def predict_batch_with_aux(
        self, params: Params, batch: Mapping[str, Shaped[Array, "b ..."]], rng: Array | None = None
    ) -> tuple[Int[Array, "b l"], dict[str, Shaped[Array, "b ..."]]]:
        """Decodes a batch, padded with 0 after EOS; part of the caller's compiled program.

        Of the batch are read "encoder_input_tokens" [B, S], and of "decoder_input_tokens" [B, L]
        the shape, whose L is the length limit. ``params`` are the target's.

        Returns:
          The tokens, and for each row "scores", log p(tokens) under the target itself whatever the
          sampling, and the counts of :class:`specdec.types.Stats` by name.

        Raises:
          ValueError: gamma, or the tree's levels, are not below the length limit.
        """
        inputs = batch["encoder_input_tokens"]
        batch_size, limit = batch["decoder_input_tokens"].shape
        if self._engine.depth >= limit:
            raise ValueError(
                f"A block has {self._engine.depth} guesses in a row (gamma, or the tree's levels), "
                f"but outputs have {limit} tokens (the task feature length of targets): it must "
                "have fewer guesses."
            )
        # Without a barrier XLA would compute with constants while it compiles.
        drafter = jax.lax.optimization_barrier(self._draft_params)
        packed = self._target.pack(unfreeze(params))
        # T5X pads with 0, and its network masks what is 0.
        lengths = jnp.sum(inputs != 0, axis=1)
        result = decode.function(
            self._engine, EngineParams(packed, self._sampling, drafter),
            self._target.prompt(inputs, lengths), jnp.arange(batch_size), limit,
            0 if rng is None else jax.random.bits(rng, dtype=jnp.uint32),
            output_bucket=limit,
        )  # fmt: skip
        scores = self._log_likelihood(params, inputs, result.tokens, result.num_tokens)
        return result.tokens, {"scores": scores, **vars(result.stats)}

    def _log_likelihood(
        self, params: Params, inputs: Int[Array, "b s"], tokens: Int[Array, "b l"],
        num_tokens: Int[Array, " b"],
    ) -> Float[Array, " b"]:  # fmt: skip
        """log p of what was emitted; compiled away where nobody reads it, as in mode "predict"."""
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": shift_right(tokens, self._target.decoder_start_id),
            # T5X would hide the places of targets that are 0, which may have been emitted.
            "decoder_target_tokens": jnp.ones_like(tokens),
        }
        logits = self._compute_logits(params, batch)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        emitted = jnp.arange(tokens.shape[1]) < num_tokens[:, None]
        return jnp.sum(jnp.where(emitted, taken, 0.0), axis=1)


def _vocabulary_file(vocabulary: seqio.Vocabulary) -> Path | None:
    """Its SentencePiece model, or None where there is none on this machine to compare."""
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return None
    path = Path(vocabulary.sentencepiece_model_file)
    return path if path.is_file() else None
