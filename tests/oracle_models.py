"""Real networks for the exact oracle: tiny T5s, GPTs, BARTs and rotary models; broken ones.

All of a network runs: its cache, positions, attention and prefill. Only its logits are replaced, by
dyadic ones in the same order, so that all decisions fall on the oracle's grid. What is expected
comes from the linen networks, which have neither cache nor loop.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from tiny import changed, random_params

from specdec.core.topology import CHAIN, Forest
from specdec.decoding.engine import Engine, EngineParams
from specdec.models import cache as kv
from specdec.models import filler
from specdec.models.bart.config import BartConfig
from specdec.models.gpt.config import GPTConfig
from specdec.models.rotary.config import Rope, RotaryConfig, Stack
from specdec.models.t5.config import T5Config
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer
from specdec.testing.oracle import exact_distribution, total_variation
from specdec.testing.toys import reference_distribution
from specdec.types import Prompt, SamplingConfig
from specdec.verifiers.token import TokenVerifier

V, EOS = 3, 1
ONE = SamplingConfig(1.0)
# Of the likeliest token, the second and the last: a target's and two drafts' probabilities.
STEEP, COINS, QUARTERS = (3, 1, 0), (1, 1, 0), (2, 1, 1)
_T5 = T5Config(
    vocab_size=V, d_model=8, num_encoder_layers=1, num_decoder_layers=2, num_heads=2, head_dim=4,
    d_ff=8, eos_id=EOS,
)  # fmt: skip
_GPT = GPTConfig(
    vocab_size=V, max_positions=16, d_model=8, num_layers=2, num_heads=2, d_ff=8, eos_id=EOS,
    start_id=2,
)  # fmt: skip
_BART = BartConfig(
    vocab_size=V, max_positions=16, d_model=8, num_encoder_layers=1, num_decoder_layers=2,
    num_heads=2, d_ff=8, pad_id=0, eos_id=EOS, decoder_start_id=0,
)  # fmt: skip
_M2M = changed(
    _BART, positions="tensor2tensor", position_offset=1, pre_norm=True, embedding_norm=False,
    scaled_embedding=True, logits_bias=False, activation="relu",
)  # fmt: skip
# Some layers see two tokens before their own, at another base.
_GEMMA = RotaryConfig(
    vocab_size=V, d_model=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8,
    activation="gelu", shifted_norms=True, norms_after=True, sliding=(True, False), window=(2, 0),
    sliding_rope=Rope(10.0), attention_softcap=3.0, scaled_embedding=True, eos_id=EOS, start_id=2,
)  # fmt: skip
# One softmax over its own keys and the encoder's.
_T5GEMMA_2 = changed(
    _GEMMA, attention_softcap=None, query_key_norms=True, merged_attention=True, start_id=0,
    encoder=Stack(
        d_model=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8,
        activation="gelu", shifted_norms=True, norms_after=True, query_key_norms=True,
        sliding=(True,), window=(1, 1), sliding_rope=Rope(10.0),
    ),
)  # fmt: skip
# Some text has filler behind it; a decoder also goes on from nothing.
TEXTS = {
    **dict.fromkeys(("t5", "bart", "m2m_100", "t5gemma2"), ((2, 2, 1), (2, 1))),
    **dict.fromkeys(("gpt", "gemma"), ((2, 0, 2), (0, 2), ())),
}  # fmt: skip
# A target's and a draft's, whose likeliest tokens depend on text, history and positions.
SEEDS = {
    "t5": (39, 4), "gpt": (41, 35), "bart": (73, 75), "m2m_100": (79, 68), "gemma": (58, 27),
    "t5gemma2": (85, 31),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ordered(TransformerModel):
    """A model of which the order of its logits counts alone."""

    numerators: tuple[int, ...] = ()  # As they are where there are none.

    def logits(self, params, hidden):
        found = super().logits(params, hidden)
        if not self.numerators:
            return found
        ranks = jnp.sum(found[..., None, :] > found[..., :, None], axis=-1)
        return _dyadic(self.numerators)[ranks]


def _dyadic(numerators):
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(numerators) / sum(numerators))
    return jnp.asarray(np.maximum(logits, -1e9), jnp.float32)


CONFIGS = {
    "t5": _T5, "gpt": _GPT, "bart": _BART, "m2m_100": _M2M, "gemma": _GEMMA,
    "t5gemma2": _T5GEMMA_2,
}  # fmt: skip


def weights_of(family, role):
    """Random parameters; a T5's positions alone would change little."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * (10 if "relpos" in jax.tree_util.keystr(path) else 1),
        random_params(CONFIGS[family], SEEDS[family][role == "draft"]),
    )


def model_of(family, numerators, role="draft", mutant=None):
    """A model, or its broken variant, and its parameters."""
    kind = type(mutant.__name__, (mutant, Ordered), {}) if mutant else Ordered
    model = kind(CONFIGS[family], "in_out", numerators=numerators)
    return model, model.pack(weights_of(family, role))


@functools.cache
def prompt_of(family):
    """The texts as prompts; places behind a text hold EOS, which a prefix may hold too."""
    texts = TEXTS[family]
    tokens = np.full((len(texts), 3), EOS, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = np.array(list(map(len, texts)), np.int32)
    return model_of(family, STEEP)[0].prompt(tokens, lengths)


def network_logits(family, role, outputs):
    """[R, C, L, V]: behind each text and the first tokens of each of ``outputs`` [C, L - 1]."""
    found, params, network = [], weights_of(family, role), Transformer(CONFIGS[family])
    for text in TEXTS[family]:
        texts = np.tile(np.array(text or (2,), np.int32), (len(outputs), 1))
        if model_of(family, ())[0].reads_prefix:
            given = (np.concatenate([texts, outputs], axis=1),)
        else:
            given = (texts, np.pad(outputs, ((0, 0), (1, 0))))
        logits = network.apply({"params": params}, *given)
        found.append(np.asarray(logits, np.float64)[:, -outputs.shape[1] - 1 :])
    return np.stack(found)


def distributions(family, numerators, limit, role="target"):
    """Row by row {tokens so far: probabilities of the next} of the network, shorter than limit."""
    outputs = np.array(list(itertools.product(range(V), repeat=limit - 1)), np.int32)
    distributions = []
    for row in network_logits(family, role, outputs):
        found = {}
        for tokens, logits in zip(outputs, row, strict=True):
            for n, each in enumerate(logits):
                if numerators:
                    assert np.diff(np.sort(each)).min() > 1e-3, "rounding may change this order"
                    ranks = np.argsort(np.argsort(-each))
                    probs = (np.array(numerators) / sum(numerators))[ranks]
                else:
                    probs = reference_distribution(each, ONE)
                found[tuple(tokens[:n].tolist())] = probs
        distributions.append(found)
    return distributions


@functools.cache
def truth(family, numerators, limit):
    """The target's own distribution of the outputs of each text."""
    found = []
    for following in distributions(family, numerators, limit):
        distribution, unfinished = {}, {(): 1.0}
        while unfinished:
            tokens, weight = unfinished.popitem()
            for token, p in enumerate(following[tokens]):
                longer = (*tokens, token)
                ended = token == EOS or len(longer) == limit
                if p:
                    (distribution if ended else unfinished)[longer] = weight * p
        found.append(distribution)
    return found


def distances(
    family, drafter, params, grid, *, limit=3, verifier=None, mutant=None, numerators=STEEP
):
    """Row by row, total variation between the real loop's distribution and the network's own."""
    target, weights = model_of(family, numerators, "target", mutant)
    distribution = exact_distribution(
        Engine(target, drafter, verifier or TokenVerifier()),
        EngineParams(weights, ONE.traced(), params), prompt_of(family), limit=limit, grid=grid,
        rows_a_call=1 << 13,
    )  # fmt: skip
    expected = truth(family, numerators, limit)
    pairs = itertools.combinations(expected, 2)
    assert all(a != b for a, b in pairs), "swapped rows would go unseen"
    return [total_variation(a, b) for a, b in zip(distribution, expected, strict=True)]


def _placed(topology, cache, count, after, positions):
    """The same block whose tokens are told other positions."""
    length, capacity = cache.length, cache.max_len
    return Forest(
        kv.block_mask(topology, length, capacity, count, after), positions,
        kv.slot_positions(topology, length, capacity, after + count),
    )  # fmt: skip


class KeepsRejected:
    """Keeps one token too many at each commit: a rejected guess stays in the cache."""

    def commit(self, cache, path, count):
        return super().commit(cache, path, count + (count > 0))


class LateAfterRejection:
    """Counts a rejected guess as a position: what follows it is one too far."""

    def extend(self, params, encoded, cache, tokens, topology=CHAIN, *, after=0):
        at = cache.length[:, None, None, None]
        dead = jnp.take_along_axis(kv.of_layer(cache.keys, 0), at, axis=2, mode="clip")
        late = jnp.any(dead != 0, axis=(1, 2, 3)).astype(jnp.int32)[:, None]
        count = tokens.shape[1]
        positions = kv.token_positions(topology, cache.length, count, after) + late
        forest = _placed(topology, cache, count, after, positions)
        return super().extend(params, encoded, cache, tokens, forest, after=after)


class PositionsBySlot:
    """A node's position is its place in the block instead of its depth."""

    def extend(self, params, encoded, cache, tokens, topology=CHAIN, *, after=0):
        count = tokens.shape[1]
        positions = cache.length[:, None] + after + jnp.arange(count)
        forest = _placed(topology, cache, count, after, positions)
        return super().extend(params, encoded, cache, tokens, forest, after=after)


class SiblingsSeen:
    """A node attends to all nodes before it in the block."""

    def extend(self, params, encoded, cache, tokens, topology=CHAIN, *, after=0):
        count, length = tokens.shape[1], cache.length
        positions = kv.token_positions(topology, length, count, after)
        forest = dataclasses.replace(
            _placed(topology, cache, count, after, positions),
            seen=kv.block_mask(CHAIN, length, cache.max_len, count, after),
        )
        return super().extend(params, encoded, cache, tokens, forest, after=after)


class UnmovedPath:
    """Keeps the first nodes of the block instead of those on the path."""

    def commit(self, cache, path, count):
        return super().commit(cache, None, count)


class ReadsFiller:
    """Its prefix is as long as the longest one of the batch."""

    def start(self, params, prompt: Prompt, max_len, target=None):
        begun = super().start(params, prompt, max_len, target)
        longest = jnp.full_like(begun.cache.length, prompt.prefix.shape[1] - 1)
        return dataclasses.replace(begun, cache=dataclasses.replace(begun.cache, length=longest))


class FillerInFront:
    """Filler comes before a call's tokens, which attend to it."""

    def extend_embedded(self, params, encoded, cache, x, topology=CHAIN, *, after=0):
        more = filler.amount(*x.shape[:2])
        x = jnp.pad(x, ((0, 0), (more, 0), (0, 0)))
        hidden, cache = super().extend_embedded(params, encoded, cache, x, topology, after=after)
        return hidden[:, more:], cache
