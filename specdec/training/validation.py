"""Quality of a model's greedy outputs during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sacrebleu

from specdec.data.vocabulary import Vocabulary
from specdec.decoding.engine import Engine, EngineParams, decode
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.types import SamplingConfig

# (params, texts) -> texts
Translate = Callable[[dict, Sequence[str]], list[str]]


def bleu(translate: Translate, params: dict, pairs: Sequence[tuple[str, str]]) -> float:
    """sacreBLEU, 0 to 100, of ``translate`` on (source, reference) pairs."""
    outputs = translate(params, [source for source, _ in pairs])
    return sacrebleu.corpus_bleu(outputs, [[reference for _, reference in pairs]]).score


def greedy_translate(
    config: T5Config, vocabulary: Vocabulary, *, length: int = 32, rows: int = 50
) -> Translate:
    """Greedy decoding for a few hundred short sentences.

    Inputs and outputs are cut at ``length`` tokens; ``rows`` are decoded together.
    """
    model = T5Model(config)

    def translate(params, texts):
        packed = model.pack(params)
        outputs = []
        for start in range(0, len(texts), rows):
            chunk = texts[start : start + rows]
            inputs = np.full((rows, length), config.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, text in enumerate(chunk):
                ids = vocabulary.encode(text, add_eos=True)[:length]
                lengths[row] = len(ids)
                inputs[row, : len(ids)] = ids
            row_ids = np.where(np.arange(rows) < len(chunk), np.arange(rows), -1)
            result = decode(
                Engine(model), EngineParams(packed, SamplingConfig(0.0).traced()),
                model.prompt(inputs, lengths), row_ids, length, 0, output_bucket=length,
            )  # fmt: skip
            decoded = np.asarray(result.tokens)[: len(chunk)]
            outputs += [vocabulary.decode(ids) for ids in decoded]
        return outputs

    return translate
