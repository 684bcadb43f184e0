"""The memory a decode needs, against what its parts are known to take."""

import dataclasses

import jax
import numpy as np
from tiny import TINY

from specdec.decoding.batches import Batch
from specdec.decoding.options import GREEDY
from specdec.studies.benchmarks.systems.specdec_loop import random_pair
from specdec.studies.measure.breakdown import memory


def test_memory():
    shape = TINY["v1.1"]
    draft = dataclasses.replace(shape, num_decoder_layers=1)
    pair = random_pair(shape, draft, "float32", seed=0)
    prompt = pair.target.model.prompt(np.full((2, 16), 5, np.int32), np.full(2, 16, np.int32))
    decoder = pair.decoder(
        method="speculative", gamma=3, sampling=GREEDY, max_decode_len=32, seed=0
    )
    program, needed = memory(decoder, Batch(prompt, np.arange(2)))
    both = pair.target.params, pair.draft.weights
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(both))
    inner, layers = shape.num_heads * shape.head_dim, shape.num_decoder_layers + 1
    caches = 2 * layers * 2 * inner * (36 + 16) * 4  # Keys and values of 32 + 4 and 16 positions.
    encodings = 2 * 2 * 16 * shape.d_model * 4
    lengths_and_masks = 2 * (2 * 4 + 2 * 16)
    drafter = 2 * (4 * 4 + 1)  # A row's pending tokens, their count, its guesses and a flag.
    logits = 2 * 4 * shape.vocab_size * 4
    sampling = 2 * 3 * 4  # Both models' temperature, top-k and top-p.
    parts = weights, caches, encodings, lengths_and_masks, drafter, logits, sampling
    assert needed == sum(parts)
    assert program > weights + caches
