"""T5X: a model class that decodes speculatively or by beams, for ``t5x.infer``'s own runs.

``configs/t5x/speculative.gin`` replaces a run's model by it. All else stays T5X's: the target's
network, parameters and checkpoints, the partitioner and the data. Source of T5X's side:
``t5x/models.py``, ``t5x/infer.py`` and ``t5x/examples/t5/network.py`` of google-research/t5x.

Shapes: B batch, S input length, L output length, W beams.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
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

from specdec.checkpoints.loading import DraftLoader, as_loaded
from specdec.core.arguments import MOST
from specdec.decoding.build import build_engine, build_search, following, open_rules
from specdec.decoding.engine import EngineParams
from specdec.decoding.loop import decode
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import Checkpoint
from specdec.models.t5.config import T5Config
from specdec.models.transformer.config import TransformerConfig
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import init_params
from specdec.training.teacher_forcing import decoder_inputs
from specdec.types import Params, Prompt

_OF_GENERATE = (
    "stop",
    "time_limit",
    "log_probs",
    "top_log_probs",
    "num_samples",
    "truncate",
    "audit",
)
_NO_HYPOTHESIS = -1e7  # ``t5x.decoding.NEG_INF``.


def t5_config(module: nn.Module, eos_id: int) -> TransformerConfig:
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
    """T5X's encoder-decoder, sampled speculatively with a draft, or searched by beams.

    Predictions follow the target's own distribution (if the verifier is lossless), and are its
    argmax tokens at temperature 0. Those of beams are beam search's. Loss, scores and
    parameters are T5X's. In bfloat16, specdec's sums are rounded elsewhere than T5X's. Each batch
    packs the target's decoder again, which takes a copy of it. The draft's parameters are
    constants of the compiled program.

    Args:
      module: a ``t5x.examples.t5.network.Transformer``.
      decoding: how to decode, instead of T5X's ``decode_fn``; without "auto". Its limits and seed
        are replaced by the batches' own limits and T5X's random numbers.
      draft: a checkpoint of any format, a bundled pair's name, or a spec such as
        :class:`specdec.Copying`; see :func:`specdec.load_pair`. None for plain beams, also where
        ``decoding`` has speculative ones.
      others: see ``t5x.models.EncoderDecoderModel``; ``decode_fn`` is not among them.

    Raises:
      ValueError: no draft to sample with; a gamma or tree that is to be chosen, or that draft or
        verifier cannot do; a target that is not T5X's T5, or a draft of other tokens than its.
      CheckpointError: the draft cannot be read.
    """

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary: seqio.Vocabulary,
        output_vocabulary: seqio.Vocabulary,
        optimizer_def: Any,
        *,
        decoding: Decoding,
        draft: str | os.PathLike | DraftSpec | None = None,
        **others: Any,
    ):
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def, decode_fn=None, **others
        )
        if draft is None and decoding.searches:
            decoding = decoding.with_shape(None)
        if not (decoding.searches if draft is None else decoding.guesses) or decoding.to_choose:
            raise ValueError(
                'Give a draft with a gamma or tree that is not "auto", or neither for plain beams; '
                f"got draft = {draft!r} and {decoding}."
            )
        for name in _OF_GENERATE:
            if (value := getattr(decoding, name)) != getattr(Decoding(), name):
                raise ValueError(f"{name} is of generate, not of T5X's runs: leave out {value!r}.")
        # As T5X's own decoding, which takes 1 for a vocabulary without an end.
        config = t5_config(module, output_vocabulary.eos_id or 1)
        # T5X compiles the program, without the options that the CPU's own layout needs.
        model = self._target = TransformerModel(config, layout="in_out")
        # Before a checkpoint is restored the parameters are shapes.
        shapes = jax.eval_shape(lambda: model.pack(init_params(config, jax.random.key(0))))
        target = as_loaded(model, shapes, "T5X's module")
        # The limit is T5X's, and is known later.
        unlimited = dataclasses.replace(decoding, max_decode_len=MOST)
        self._beams, self._rules = decoding.beam, open_rules(target, unlimited)
        if draft is None:
            self._depth, self._draft_params = 0, ()
            self._searcher = build_search(target, None, unlimited)
            return
        spec = Checkpoint(os.fspath(draft)) if isinstance(draft, str | os.PathLike) else draft
        vocabulary = _vocabulary_file(output_vocabulary)
        opened = spec.open(DraftLoader(target, vocabulary, config.dtype))
        decoding = decoding.fitted(opened.most_guesses)
        self._depth = decoding.depth
        if decoding.searches:
            self._searcher = build_search(target, opened, decoding)
            assert self._searcher.draft is not None
            self._draft_params = self._searcher.draft.params
            return
        self._engine = build_engine(model, opened, decoding)
        drawn = opened.params(decoding.draft_sampling or decoding.sampling)
        if decoding.draft_follows_rules:
            drawn = following(drawn, self._rules)
        self._draft_params = drawn
        self._sampling = decoding.sampling.traced(self._rules)

    def predict_batch_with_aux(
        self, params: Params, batch: Mapping[str, Shaped[Array, "b ..."]],
        rng: Array | None = None, *, return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
    ) -> tuple[Int[Array, "b *w l"], dict[str, Shaped[Array, "b ..."]]]:  # fmt: skip
        """Decodes a batch, padded with 0 after EOS; part of the caller's compiled program.

        Of the batch are read "encoder_input_tokens" [B, S], and of "decoder_input_tokens" [B, L]
        the shape, whose L is the length limit. ``params`` are the target's. Beams take T5X's
        ``return_all_decodes`` and ``num_decodes``, which must be their number; None for what the
        model was made with.

        Returns:
          The tokens, and for each row "scores", log p(tokens) under the target itself whatever the
          sampling, and the counts of :class:`specdec.types.Stats` by name. Beams have the scores of
          their rule (NaN for a row whose logits are NaN); all of them, if asked for, are sorted as
          T5X sorts them, the best last: tokens [B, W, L] and scores [B, W].

        Raises:
          ValueError: gamma, or the tree's levels, are not below the length limit; all decodes or
            another number of them were asked of what samples one.
        """
        inputs = batch["encoder_input_tokens"]
        batch_size, limit = batch["decoder_input_tokens"].shape
        every, number = self._asked(return_all_decodes, num_decodes)
        if number != (self._beams.num_beams if self._beams else 1) or (every and not self._beams):
            raise ValueError(
                f"return_all_decodes is {every} and num_decodes {number}, but this model "
                + (f"has {self._beams.num_beams} beams." if self._beams else "samples one.")
            )
        if self._depth >= limit:
            raise ValueError(
                f"A block has {self._depth} guesses in a row (gamma, or the tree's levels), "
                f"but outputs have {limit} tokens (the task feature length of targets): it must "
                "have fewer guesses."
            )
        packed = self._target.pack(unfreeze(params))
        # T5X pads with 0, and its network masks what is 0.
        prompt = self._target.prompt(inputs, jnp.sum(inputs != 0, axis=1))
        if self._beams is not None:
            return self._search(packed, prompt, jnp.arange(batch_size), limit, every)
        result = decode.function(
            self._engine, EngineParams(packed, self._sampling, self._draft()), prompt,
            jnp.arange(batch_size), limit,
            0 if rng is None else jax.random.bits(rng, dtype=jnp.uint32),
            output_bucket=limit,
        )  # fmt: skip
        scores = self._log_likelihood(params, inputs, result.tokens, result.num_tokens)
        return result.tokens, {"scores": scores, **vars(result.stats)}

    def _asked(self, every: bool | None, number: int | None) -> tuple[bool, int]:
        """Whether all decodes are wanted, and how many; of what is None, as the model was made."""
        made = self._default_decoder_params
        every = bool(made.return_all_decodes if every is None else every)
        if number is not None:
            return every, number
        # T5X's own default is 1, and beams know their number.
        default = self._beams.num_beams if self._beams else 1
        return every, default if made.num_decodes == 1 else made.num_decodes

    def _draft(self) -> Params:
        # Without a barrier XLA would compute with constants while it compiles.
        return jax.lax.optimization_barrier(self._draft_params)

    def _search(
        self, packed: Params, prompt: Prompt, row_ids: Int[Array, " b"], limit: int, every: bool
    ) -> tuple[Int[Array, "b *w l"], dict[str, Shaped[Array, "b ..."]]]:
        """Beams of a batch, plain ones where there is no draft."""
        assert self._beams is not None
        rules = jax.tree.map(jnp.asarray, self._beams.traced(limit, self._rules))
        found = decode.function(
            self._searcher.loop, (rules, packed, self._draft()), prompt, row_ids, limit, 0,
            output_bucket=limit,
        )  # fmt: skip
        tokens = found.tokens[:, ::-1]
        # Where fewer hypotheses ended than there are beams, T5X has a score of its own.
        scores = jnp.maximum(found.scores, _NO_HYPOTHESIS)
        scores = jnp.where(found.failed[:, None] > 0, jnp.nan, scores)[:, ::-1]
        if not every:
            tokens, scores = tokens[:, -1], scores[:, -1]
        return tokens, {"scores": scores, **vars(found.stats)}

    def _log_likelihood(
        self, params: Params, inputs: Int[Array, "b s"], tokens: Int[Array, "b l"],
        num_tokens: Int[Array, " b"],
    ) -> Float[Array, " b"]:  # fmt: skip
        """log p of what was emitted; compiled away where nobody reads it, as in mode "predict"."""
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": decoder_inputs(self._target.config, tokens),
            # T5X would hide the positions of targets that are 0, which may have been emitted.
            "decoder_target_tokens": jnp.ones_like(tokens),
        }
        logits = self._compute_logits(params, batch)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        emitted = jnp.arange(tokens.shape[1]) < num_tokens[:, None]
        return jnp.sum(jnp.where(emitted, taken, 0.0), axis=1)


def _vocabulary_file(vocabulary: seqio.Vocabulary) -> Path | None:
    """SentencePiece model of a vocabulary, or None where this machine has none to compare."""
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return None
    path = Path(vocabulary.sentencepiece_model_file)
    return path if path.is_file() else None
