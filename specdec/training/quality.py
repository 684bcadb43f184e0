"""Quality of a model's greedy outputs during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu

from specdec.data.vocabulary import Vocabulary
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import Transformer, shift_right

# (params, texts) -> texts
Translate = Callable[[dict, Sequence[str]], list[str]]


def bleu(translate: Translate, params: dict, pairs: Sequence[tuple[str, str]]) -> float:
    """sacreBLEU, 0 to 100, of ``translate`` on (source, reference) pairs."""
    outputs = translate(params, [source for source, _ in pairs])
    return sacrebleu.corpus_bleu(outputs, [[reference for _, reference in pairs]]).score


def greedy_translate(
    config: T5Config, vocabulary: Vocabulary, *, length: int = 32, rows: int = 50
) -> Translate:
    """The teacher-forced network as a greedy decoder, without a cache: one forward a token.

    Good enough for a few hundred short sentences. Inputs and outputs are cut at ``length`` tokens.
    """
    network = Transformer(config)

    @jax.jit
    def decode(params, inputs):
        variables = {"params": params}
        encoded = network.apply(variables, inputs, method="encode")

        def extend(state):
            position, tokens, done = state
            decoder_inputs = shift_right(tokens, config.decoder_start_id)
            logits = network.apply(variables, encoded, inputs, decoder_inputs, method="decode")
            best = jnp.argmax(jnp.asarray(logits), axis=-1)[:, position]
            token = jnp.where(done, config.pad_id, best)
            tokens = tokens.at[:, position].set(token)
            return position + 1, tokens, done | (token == config.eos_id)

        start = 0, jnp.full_like(inputs, config.pad_id), jnp.all(inputs == config.pad_id, axis=1)
        going = lambda state: (state[0] < length) & ~jnp.all(state[2])  # noqa: E731
        return jax.lax.while_loop(going, extend, start)[1]

    def translate(params, texts):
        outputs = []
        for start in range(0, len(texts), rows):
            chunk = texts[start : start + rows]
            inputs = np.full((rows, length), config.pad_id, np.int32)
            for row, text in enumerate(chunk):
                ids = vocabulary.encode(text, add_eos=True)[:length]
                inputs[row, : len(ids)] = ids
            decoded = np.asarray(decode(params, inputs))[: len(chunk)]
            outputs += [vocabulary.decode(ids) for ids in decoded]
        return outputs

    return translate
