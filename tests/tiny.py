"""Tiny models and inputs for tests."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.bart.config import BartConfig
from specdec.models.gpt.config import GPTConfig
from specdec.models.rotary.config import Rope, RotaryConfig, Stack
from specdec.models.t5.config import T5Config
from specdec.models.transformer.config import Absolute, Relative
from specdec.models.transformer.network import init_params
from specdec.models.whisper.config import WhisperConfig

TINY = {
    "v1.1": T5Config(
        vocab_size=19, d_model=16, num_encoder_layers=1, num_decoder_layers=2,
        num_heads=2, head_dim=12, d_ff=24,
    ),
    "v1.0": T5Config(
        vocab_size=19, d_model=16, num_encoder_layers=2, num_decoder_layers=1,
        num_heads=4, head_dim=4, d_ff=20, activation="relu", gated=False, tied_logits=True,
        relative_attention_num_buckets=8, relative_attention_max_distance=12,
    ),
}  # fmt: skip
# Every T5 that decodes; T5X's own network is that of the first two.
TINY_T5 = {
    **TINY,
    "umt5": T5Config(
        vocab_size=19, d_model=16, num_encoder_layers=2, num_decoder_layers=2,
        num_heads=2, head_dim=8, d_ff=24, relative_bias_in_every_layer=True,
    ),
}  # fmt: skip


TINY_GPT = {
    "gpt": GPTConfig(
        vocab_size=19, max_positions=40, d_model=16, num_layers=2, num_heads=2, d_ff=24, eos_id=1,
        start_id=2,
    ),
    "gpt_untied": GPTConfig(
        vocab_size=19, max_positions=64, d_model=24, num_layers=1, num_heads=4, d_ff=20,
        activation="gelu_exact", tied_logits=False, eos_id=1, start_id=1, pad_id=1,
    ),
}  # fmt: skip

# Norms after and before each part; positions learned and of both kinds of sines.
TINY_BART = {
    "bart": BartConfig(
        vocab_size=19, max_positions=48, d_model=16, num_encoder_layers=1, num_decoder_layers=2,
        num_heads=2, d_ff=24, pad_id=0, eos_id=1, decoder_start_id=1,
    ),
    "m2m_100": BartConfig(
        vocab_size=19, max_positions=44, d_model=24, num_encoder_layers=2, num_decoder_layers=1,
        num_heads=4, d_ff=20, positions="tensor2tensor", position_offset=19, pre_norm=True,
        embedding_norm=False, scaled_embedding=True, activation="relu", logits_bias=False,
        pad_id=18, eos_id=1, decoder_start_id=1,
    ),
    "marian": BartConfig(
        vocab_size=19, max_positions=48, d_model=16, num_encoder_layers=1, num_decoder_layers=2,
        num_heads=4, d_ff=20, positions="sinusoidal", position_offset=0, embedding_norm=False,
        scaled_embedding=True, activation="silu", tied_logits=False, encoder_vocab_size=23,
        pad_id=18, eos_id=1, decoder_start_id=18,
    ),
}  # fmt: skip

TINY_WHISPER = {
    "whisper": WhisperConfig(
        vocab_size=19, features=5, d_model=16, num_encoder_layers=1, num_decoder_layers=2,
        num_heads=2, d_ff=24, encoder_positions=6, decoder_positions=48, pad_id=0, eos_id=1,
        decoder_start_id=2,
    ),
}  # fmt: skip

_GEMMA = {
    "activation": "gelu", "shifted_norms": True, "norms_after": True, "query_scalar": 16.0,
    "sliding": (True, False), "window": (2, 0),
}  # fmt: skip
_T5GEMMA = {
    "d_model": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "d_ff": 20,
}  # fmt: skip
_T5GEMMA2 = {
    **_GEMMA, **_T5GEMMA, "query_key_norms": True, "sliding_rope": Rope(100.0),
}  # fmt: skip
# Windows are shorter than the texts, and softcaps near the scores.
TINY_ROTARY = {
    "llama": RotaryConfig(
        vocab_size=19, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24,
        rope=Rope(500.0, 4.0, 1.0, 4.0, 16), tied_logits=False,
    ),
    "qwen2": RotaryConfig(
        vocab_size=19, d_model=24, num_layers=1, num_heads=3, num_kv_heads=3, head_dim=8, d_ff=20,
        qkv_biases=True, pad_id=1, start_id=1,
    ),
    "gemma2": RotaryConfig(
        vocab_size=19, d_model=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=24,
        attention_softcap=3.0, logits_softcap=5.0, scaled_embedding=True, **_GEMMA,
    ),
    "t5gemma": RotaryConfig(
        vocab_size=19, **_T5GEMMA | _GEMMA, attention_softcap=3.0, logits_softcap=5.0,
        scaled_embedding=True, shared_embedding=False, encoder=Stack(
            d_model=24, num_layers=1, num_heads=3, num_kv_heads=1, head_dim=8, d_ff=24,
            attention_softcap=4.0, **_GEMMA | {"window": (2, 2)},
        ),
    ),
    "t5gemma2": RotaryConfig(
        vocab_size=19, **_T5GEMMA2, scaled_embedding=True, merged_attention=True,
        encoder=Stack(**_T5GEMMA2 | {"window": (1, 2)}),
    ),
}  # fmt: skip


# Of the settings that families call otherwise, or that are of one stack alone: where they are.
_POSITIONS = {
    "relative_attention_num_buckets": "buckets", "relative_attention_max_distance": "distance",
    "relative_bias_in_every_layer": "in_every_layer", "max_positions": "count",
    "position_offset": "offset", "rope": "rope", "sliding_rope": "sliding_rope",
}  # fmt: skip
_LOGITS = {"logits_bias": "bias", "logits_softcap": "softcap"}
_NORMS = {"layer_norm_epsilon": "epsilon", "embedding_norm": "embedding"}


def changed(config, **fields):
    """A config with other settings, by their names in any family; both stacks have them alike."""
    own = {each.name for each in dataclasses.fields(config)}
    if "decoder_start_id" in fields:
        fields["start_id"] = fields.pop("decoder_start_id")
    depths = {"decoder": fields.pop("num_decoder_layers", fields.get("num_layers"))}
    depths["encoder"] = fields.pop("num_encoder_layers", fields.pop("num_layers", None))
    whole = {name: fields.pop(name) for name in {*fields} & own}
    logits = {_LOGITS[name]: fields.pop(name) for name in {*fields} & {*_LOGITS}}
    if "tied_logits" in fields:
        logits["tied"] = fields.pop("tied_logits")
        logits["scaled"] = logits["tied"] and isinstance(config.decoder.positions, Relative)
    positions = {_POSITIONS[name]: fields.pop(name) for name in {*fields} & {*_POSITIONS}}
    if isinstance(kind := fields.pop("positions", {}), str):
        positions["kind"] = kind
    norms = {_NORMS[name]: fields.pop(name) for name in {*fields} & {*_NORMS}}
    if "pre_norm" in fields:
        norms["place"] = "before" if fields.pop("pre_norm") else "after"
    stacks = {}
    for name, stack in config.stacks.items():
        more = dict(fields)
        if isinstance(stack.positions, Absolute) and {"d_model", "num_heads"} & {*more}:
            heads = more.get("num_heads", stack.num_heads)
            more["head_dim"] = max(1, more.get("d_model", stack.d_model) // heads)
        if "num_heads" in more and stack.kv_heads == stack.num_heads:
            more.setdefault("num_kv_heads", more["num_heads"])
        if depths[name] is not None:
            more["num_layers"] = depths[name]
        more.setdefault("norm", dataclasses.replace(stack.norm, **norms))
        more["positions"] = dataclasses.replace(stack.positions, **positions)
        stacks[name] = dataclasses.replace(stack, **more)
    logits = dataclasses.replace(config.logits, **logits)
    return dataclasses.replace(config, **{"logits": logits, **stacks, **whole})


def random_params(config, seed):
    """Weights far from their initialisation: no scale is 1 and logits spread by a few units."""
    return _noisy(init_params(config, jax.random.key(seed)), seed, stddev_of(config))


def stddev_of(config):
    """Of the noise; with LayerNorms more of it, or else logits would be the newest token's own."""
    return 0.3 if config.decoder.norm.kind == "layer" else 0.2


def _noisy(params, seed, stddev):
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1000), len(leaves))
    noisy = [
        leaf * 1.5 + stddev * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, noisy)


EVERY = {**TINY_T5, **TINY_GPT, **TINY_BART, **TINY_WHISPER, **TINY_ROTARY}


def ragged_inputs(batch, length, vocab_size, seed=0):
    """[B, S] token rows of different lengths, EOS last, padded with 0."""
    generator = np.random.default_rng(seed)
    rows = np.zeros((batch, length), np.int32)
    for row in rows:
        size = generator.integers(2, length + 1)
        row[:size] = [*generator.integers(2, vocab_size, size - 1), 1]
    return jnp.asarray(rows)


def sounds(count, shape):
    """Features of some sounds, [count, frames, mel bins]."""
    return np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32)


def prompt_of(model, inputs):
    """Rows that are padded with 0 as a model takes them; one that listens has a sound for each."""
    if model.input_shape is not None:
        count, (frames, _) = len(inputs), model.input_shape
        return model.prompt(sounds(count, model.input_shape), np.full(count, frames, np.int32))
    return model.prompt(inputs, jnp.sum(jnp.asarray(inputs) != 0, axis=1))


@functools.partial(jax.jit, static_argnames="model")
def logits_along(model, params, prompt, tokens, target=None):
    """A model's logits behind each of ``tokens`` [B, T], which begin with the prefix's last one."""
    start = model.start(params, prompt, tokens.shape[1] + 1, target)
    hidden, _ = model.extend(params, start.encoded, start.cache, tokens)
    return model.logits(params, hidden)
