"""A tiny workload of random weights."""

import pytest
from tiny import TINY, changed

from specdec.reproduce.benchmarks.workload import random_weights


@pytest.fixture
def tiny_workload():
    draft = changed(TINY["v1.1"], num_decoder_layers=1, d_ff=12)
    return random_weights(
        "tiny", TINY["v1.1"], draft, gamma=2, forced_alphas=(0.5,), input_lens=(6,),
        output_lens=(12,), batch_sizes=(2,),
    )[0]  # fmt: skip
