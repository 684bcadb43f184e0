"""The memory a decode needs, against what its parts are known to take."""

import dataclasses

import jax
import numpy as np
from tiny import TINY

from specdec.api import GREEDY, VERIFIER
from specdec.benchmarks.systems.specdec_t5 import random_pair
from specdec.decoding.batches import Batch
from specdec.measure.breakdown import memory


def test_memory():
    shape = TINY["v1.1"]
    draft = dataclasses.replace(shape, num_decoder_layers=1)
    pair = random_pair(shape, draft, "float32", seed=0)
    batch = Batch(np.full((2, 16), 5, np.int32), np.arange(2))
    program, needed = memory(pair, batch, 3, GREEDY, 32, VERIFIER, 0.0)
    weights = sum(a.nbytes for m in (pair.target, pair.draft) for a in jax.tree.leaves(m.params))
    inner, layers = shape.num_heads * shape.head_dim, shape.num_decoder_layers + 1
    caches = 2 * layers * 2 * inner * (36 + 16) * 4  # Keys and values of 32 + 4 and 16 places.
    encodings = 2 * 2 * 16 * shape.d_model * 4
    lengths_and_masks = 2 * (2 * 4 + 2 * 16)
    drafter = 2 * (5 * 4 + 1)  # A row's pending tokens, three counts and a flag.
    logits = 2 * 4 * shape.vocab_size * 4
    assert needed == weights + caches + encodings + lengths_and_masks + drafter + logits
    assert program > weights + caches
