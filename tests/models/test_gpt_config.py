import dataclasses

import pytest
from tiny import TINY_GPT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, r"num_heads must divide d_model = 16, got 3"),
        ({"max_positions": 0}, r"GPTConfig\.max_positions"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\)"),
        ({"activation": "silu"}, r"activation must be 'relu' or .*, got 'silu'"),
        ({"eos_id": 10**6}, r"GPTConfig\.eos_id"),
        ({"more_eos_ids": (10**6,)}, r"GPTConfig\.eos_id"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY_GPT["gpt"], **change)
