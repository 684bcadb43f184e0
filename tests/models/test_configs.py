"""Settings that no model has, one for each kind; and a config from its own fields."""

import dataclasses

import pytest
from tiny import EVERY, changed

from specdec.checkpoints.architectures import config_of
from specdec.models.rotary.config import Rope
from specdec.models.transformer.config import Logits, Norm

BUCKETS = ("relative_attention_num_buckets", "relative_attention_max_distance")
WRONG = [
    *(
        ("v1.1", dict(zip(BUCKETS, each, strict=True)), f"even, at least 4 .* got {each[0]} and")
        for each in ((2, 128), (7, 128), (32, 16))
    ),
    ("gpt", {"num_heads": 3}, r"num_heads must divide d_model = 16, got 3"),
    ("gpt", {"max_positions": 0}, r"Absolute\.count"),
    ("gpt", {"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\)"),
    ("gpt", {"activation": "tanh"}, r"activation must be 'relu' or .*, got 'tanh'"),
    ("gpt", {"eos_id": 10**6}, r"TransformerConfig\.eos_id"),
    ("gpt", {"more_eos_ids": (10**6,)}, r"TransformerConfig\.eos_id"),
    ("llama", {"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
    ("llama", {"head_dim": 5}, "head_dim must be even, got 5"),
    ("llama", {"sliding": (True,)}, "window must be given"),
    ("llama", {"window": (-1, 0), "sliding": (True,)}, "window must be at least 0"),
    ("llama", {"attention_softcap": 0.0}, "attention_softcap must be a positive number"),
    ("llama", {"merged_attention": True}, "merged_attention, .* need an encoder"),
    ("llama", {"features": 5}, "features need an encoder"),
    ("v1.1", {"features": 5}, "features are of encoders with absolute positions"),
    ("whisper", {"encoder_vocab_size": 19}, "are of encoders that read tokens, not features"),
    ("whisper", {"encoding_width": 16}, "are of encoders that read tokens, not features"),
    ("bart", {"biases": "not_keys"}, "features and biases of all but keys are together"),
    ("whisper", {"biases": "all"}, "features and biases of all but keys are together"),
    # As in no family.
    ("llama", {"norm": Norm("layer")}, "norm and biases are as in no family"),
    ("llama", {"biases": "all"}, "norm and biases are as in no family"),
    ("gpt", {"gated": True}, "gated with Absolute positions"),
    ("v1.1", {"query_key_norms": True}, "of rotary positions only"),
    ("t5gemma", {"biases": "qkv"}, "are of decoders alone"),
    ("t5gemma2", {"encoder_vocab_size": None, "encoder": EVERY["t5gemma"].encoder}, "d_model must"),
    ("bart", {"encoder": EVERY["marian"].encoder}, "must have the decoder's kind of norms"),
    ("v1.1", {"num_encoder_layers": 0}, r"num_layers must be in 1\.\."),
    ("llama", {"dtype": "int8"}, "dtype must be 'float32' or 'bfloat16' or 'float16'"),
]


@pytest.mark.parametrize(("variant", "changes", "words"), WRONG)
def test_settings_that_are_none(variant, changes, words):
    with pytest.raises(ValueError, match=words):
        changed(EVERY[variant], **changes)


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


def test_only_tied_logits_are_scaled():
    with pytest.raises(ValueError, match="scaled is of tied logits only"):
        Logits(tied=False, scaled=True)


@pytest.mark.parametrize("variant", EVERY)
def test_a_config_is_the_same_from_its_fields(variant):
    assert config_of(dataclasses.asdict(EVERY[variant])) == EVERY[variant]


# As model.json of runs of older versions have them.
OLDER = {
    "v1.0": {
        "vocab_size": 19, "d_model": 16, "num_encoder_layers": 2, "num_decoder_layers": 1,
        "num_heads": 4, "head_dim": 4, "d_ff": 20, "activation": "relu", "gated": False,
        "tied_logits": True, "relative_attention_num_buckets": 8, "dtype": "float32",
        "relative_attention_max_distance": 12, "relative_bias_in_every_layer": False,
        "encoding_width": None, "pad_id": 0, "eos_id": 1, "more_eos_ids": [],
        "decoder_start_id": 0,
    },
    "gpt": {
        "vocab_size": 19, "max_positions": 40, "d_model": 16, "num_layers": 2, "num_heads": 2,
        "d_ff": 24, "layer_norm_epsilon": 1e-5, "eos_id": 1, "start_id": 2,
    },
    "bart": {
        "vocab_size": 19, "max_positions": 48, "d_model": 16, "num_encoder_layers": 1,
        "num_decoder_layers": 2, "num_heads": 2, "d_ff": 24, "pad_id": 0, "eos_id": 1,
        "decoder_start_id": 1, "positions": "learned", "encoder_vocab_size": None,
    },
    "llama": {
        "d_model": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
        "d_ff": 24, "sliding": [], "window": None, "vocab_size": 19, "tied_logits": False,
        "rope": {"base": 500.0, "factor": 4.0, "low": 1.0, "high": 4.0, "original": 16},
        "encoder": None, "image_ids": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", OLDER)
def test_runs_of_older_versions_are_read(variant):
    assert config_of(OLDER[variant]) == EVERY[variant]


def test_fields_that_are_none():
    with pytest.raises(TypeError, match=r"No network has all fields .* wings"):
        config_of(OLDER["llama"] | {"wings": 2})
