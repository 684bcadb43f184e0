"""Quality of a model's greedy outputs during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sacrebleu

from specdec.checkpoints.architectures import Config, decode_model
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.models.base import Model
from specdec.text.base import Tokenizer
from specdec.types import Encoded, Params, Prompt, SamplingConfig

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
    model, greedy = decode_model(config), SamplingConfig(temperature=0.0)

    def translate(params, texts):
        packed, outputs, continued = model.pack(params), [], model.reads_prefix
        before = vocabulary.start_ids if continued else ()
        for start in range(0, len(texts), rows):
            chunk = texts[start : start + rows]
            encoded = (vocabulary.encode(text, add_eos=not continued) for text in chunk)
            ids = [[*before, *tokens][:length] for tokens in encoded]
            row_ids = range(len(ids))
            outputs += decode_rows(model, packed, ids, row_ids, (rows, length), length, 0, greedy)
        return [vocabulary.decode(ids) for ids in outputs]

    return translate


def decode_rows(
    model: Model,
    packed: Params,
    ids: Sequence[Sequence[int]],
    row_ids: Sequence[int] | np.ndarray,
    shape: tuple[int, int],
    limit: int,
    seed: int,
    sampling: SamplingConfig,
    encode: Callable[[Prompt], Encoded] | None = None,
) -> list[np.ndarray]:
    """Plain decoding of at most B inputs (ids with EOS) in one batch of the static shape [B, S].

    Args:
      encode: the target's encoder, for a draft that starts from what it gives.

    Returns:
      each one's output of at most ``limit`` tokens, with EOS where it ended before that.
    """
    params = EngineParams(packed, sampling.traced())
    prompt, indices = padded(model, ids, row_ids, shape)
    result = decode(
        Engine(model), params, prompt, indices, limit, seed, output_bucket=limit,
        encoded=encode and encode(prompt),
    )  # fmt: skip
    tokens, counts = np.asarray(result.tokens), np.asarray(result.num_tokens)
    return [tokens[index, : counts[index]] for index in range(len(ids))]


def padded(
    model: Model,
    ids: Sequence[Sequence[int]],
    row_ids: Sequence[int] | np.ndarray,
    shape: tuple[int, int],
) -> tuple[Prompt, np.ndarray]:
    """At most B inputs and their row numbers, filled up to the static shape [B, S]."""
    inputs, lengths = np.full(shape, model.pad_id, np.int32), np.zeros(shape[0], np.int32)
    for index, row in enumerate(ids):
        lengths[index] = len(row)
        inputs[index, : len(row)] = row
    indices = np.full(shape[0], -1, np.int32)
    indices[: len(row_ids)] = row_ids
    return model.prompt(inputs, lengths), indices
