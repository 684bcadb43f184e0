"""Settings that no model has, one for each kind; and a config from its own fields."""

import dataclasses

import pytest
from tiny import EVERY

from specdec.checkpoints.architectures import config_of
from specdec.models.rotary.config import Rope

BUCKETS = ("relative_attention_num_buckets", "relative_attention_max_distance")
WRONG = [
    *(
        ("v1.1", dict(zip(BUCKETS, each, strict=True)), f"even, at least 4 .* got {each[0]} and")
        for each in ((2, 128), (7, 128), (32, 16))
    ),
    ("gpt", {"num_heads": 3}, r"num_heads must divide d_model = 16, got 3"),
    ("gpt", {"max_positions": 0}, r"GPTConfig\.max_positions"),
    ("gpt", {"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\)"),
    ("gpt", {"activation": "silu"}, r"activation must be 'relu' or .*, got 'silu'"),
    ("gpt", {"eos_id": 10**6}, r"GPTConfig\.eos_id"),
    ("gpt", {"more_eos_ids": (10**6,)}, r"GPTConfig\.eos_id"),
    ("llama", {"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
    ("llama", {"head_dim": 5}, "head_dim must be even, got 5"),
    ("llama", {"sliding": (True,)}, "window must be given"),
    ("llama", {"window": (-1, 0), "sliding": (True,)}, "window must be at least 0"),
    ("llama", {"attention_softcap": 0.0}, "attention_softcap must be a positive number"),
    ("llama", {"merged_attention": True}, "merged_attention needs an encoder"),
    ("llama", {"dtype": "float16"}, "dtype must be 'float32' or 'bfloat16'"),
]


@pytest.mark.parametrize(("variant", "changes", "words"), WRONG)
def test_settings_that_are_none(variant, changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(EVERY[variant], **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 1.0}, "must all be given or none"),
        ({"low": 4.0, "high": 1.0, "original": 8}, "low must be less than high"),
        ({"base": 0.0}, "base must be a positive number"),
    ],
)
def test_ropes_that_are_none(changes, words):
    with pytest.raises(ValueError, match=words):
        Rope(**changes)


@pytest.mark.parametrize("variant", EVERY)
def test_a_config_is_the_same_from_its_fields(variant):
    assert config_of(dataclasses.asdict(EVERY[variant])) == EVERY[variant]
