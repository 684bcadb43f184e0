"""Quality of a model's greedy outputs during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import sacrebleu

from specdec.checkpoints.architectures import Config, decode_model
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.decoding.options import GREEDY
from specdec.text.base import Tokenizer
from specdec.types import Encoded, Prompt, Stats

# (params, texts) -> texts
Translate = Callable[[dict, Sequence[str]], list[str]]


def bleu(translate: Translate, params: dict, pairs: Sequence[tuple[str, str]]) -> float:
    """sacreBLEU, 0 to 100, of ``translate`` on (source, reference) pairs."""
    outputs = translate(params, [source for source, _ in pairs])
    return sacrebleu.corpus_bleu(outputs, [[reference for _, reference in pairs]]).score


def greedy_translate(
    config: Config, vocabulary: Tokenizer, *, length: int = 32, rows: int = 50
) -> Translate:
    """Greedy decoding for a few hundred short sentences.

    Inputs and outputs are cut at ``length`` tokens; ``rows`` are decoded together.
    """
    model = decode_model(config)

    def translate(params, texts):
        weights, outputs = EngineParams(model.pack(params), GREEDY.traced()), []
        before = vocabulary.start_ids if model.reads_prefix else ()
        for start in range(0, len(texts), rows):
            chunk = texts[start : start + rows]
            encoded = (vocabulary.encode(text, add_eos=not model.reads_prefix) for text in chunk)
            ids = [[*before, *tokens][:length] for tokens in encoded]
            found, _ = decode_rows(
                Engine(model), weights, ids, range(len(ids)), (rows, length), length
            )
            outputs += found
        return [vocabulary.decode(ids) for ids in outputs]

    return translate


def decode_rows(
    engine: Engine,
    params: EngineParams,
    ids: Sequence[Sequence[int]],
    row_ids: Sequence[int] | np.ndarray,
    shape: tuple[int, int],
    length: int,
    seed: int = 0,
    encode: Callable[[Prompt], Encoded] | None = None,
) -> tuple[list[np.ndarray], Stats]:
    """Decodes at most B inputs (ids with EOS) in one batch of the static shape [B, S].

    Args:
      encode: the target's encoder, for a draft that starts from what it gives.

    Returns:
      each one's output of at most ``length`` tokens, or as many as the model has positions for,
      with EOS where it ended before that; and the batch's counts.
    """
    inputs, lengths = np.full(shape, engine.target.pad_id, np.int32), np.zeros(shape[0], np.int32)
    indices = np.full(shape[0], -1, np.int32)
    for index, row in enumerate(ids):
        lengths[index] = len(row)
        inputs[index, : len(row)] = row
        indices[index] = row_ids[index]
    prompt = engine.target.prompt(inputs, lengths)
    limit = capacity(engine.target, ids, length)
    result = decode(
        engine, params, prompt, indices, limit, seed, output_bucket=length,
        encoded=encode and encode(prompt),
    )  # fmt: skip
    tokens, counts = np.asarray(result.tokens), np.asarray(result.num_tokens)
    outputs = [tokens[index, : counts[index]] for index in range(len(ids))]
    return outputs, jax.device_get(result.stats)


def capacity(model: Any, ids: Sequence[Sequence[int]], length: int) -> int:
    """Tokens of an output of at most ``length`` that the model's positions have.

    Those of a model without an encoder are behind all prompts.
    """
    if model.max_positions is None:
        return length
    before = max(map(len, ids)) if model.reads_prefix else 0
    return max(1, min(length, model.max_positions - before))
