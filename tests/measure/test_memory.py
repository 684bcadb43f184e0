"""A device's share against the model's own arrays, and what it holds of a pair."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY_BART, TINY_ROTARY, TINY_T5, changed, prompt_of

from specdec.checkpoints.architectures import decode_model, init_params
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.shape import Tree
from specdec.measure.memory import DeviceShare, MemoryPlan
from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.t5.config import T5Config

ALONE = DeviceMesh().planned_target
WIDE = T5Config(
    vocab_size=512, d_model=128, num_encoder_layers=1, num_decoder_layers=2, num_heads=4,
    head_dim=32, d_ff=256,
)  # fmt: skip
SHARED = {
    "d_model": 128, "num_layers": 2, "num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "d_ff": 64,
}  # fmt: skip
CONFIGS = {
    **TINY_T5, **TINY_BART, **TINY_ROTARY, "wide": WIDE,
    "wide, shared keys": RotaryConfig(vocab_size=512, **SHARED),
    "wide, merged attention": RotaryConfig(
        vocab_size=512, **SHARED, merged_attention=True, encoder=Stack(**SHARED)
    ),
}  # fmt: skip


def num_bytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_are_those_of_the_models_arrays(name):
    dtype = "bfloat16" if name in ("v1.1", "marian", "t5gemma2") else "float32"
    config = dataclasses.replace(CONFIGS[name], dtype=dtype)
    model, share = decode_model(config, "in_out"), DeviceShare(config, ALONE, batch_size=3)

    length = 65 if model.reads_prefix else 64  # On CPU loops have multiples of 64, caches of 16.
    prompt = prompt_of(model, jnp.ones((3, length), jnp.int32))

    def arrays():
        params = model.pack(init_params(config, jax.random.key(0)))
        start = model.start(params, prompt, 16)
        tokens = jnp.ones((3, 4), jnp.int32)
        hidden, _ = model.extend(params, start.encoded, start.cache, tokens)
        return params, start.encoded, start.cache, model.logits(params, hidden)

    params, encoded, cache, logits = jax.eval_shape(arrays)
    assert share.weights == num_bytes(params)
    kernel = params.embedding if config.tied_logits else params.logits
    few = [getattr(params, part, None) for part in ("relpos", "embedding_norm", "logits_bias")]
    assert share.step_weights == num_bytes((params.layers, params.final_norm, kernel, few))
    if model.reads_prefix:
        assert share.self_cache(16, 64) == num_bytes((cache.keys, cache.values))
    else:
        assert share.cache(16) == num_bytes((cache.keys, cache.values))
        assert share.cache(64) == num_bytes((encoded.keys, encoded.values))
    assert share.logits(4) == num_bytes(logits)


def test_a_mesh_divides_it():
    config = CONFIGS["wide"]
    whole = DeviceShare(config, ALONE, batch_size=8)
    cut = DeviceShare(config, DeviceMesh(2, 4).planned_target, batch_size=8)
    assert cut.rows == 4
    assert cut.cache(16) == whole.cache(16) // 8  # Rows by 2, heads by 4.
    assert whole.weights // 4 < cut.weights < whole.weights // 4 * 1.02  # Norms stay whole.
    assert cut.logits(3) == whole.logits(3) // 2  # Gathered.


def test_a_mesh_that_does_not_fit_is_refused_without_devices():
    with pytest.raises(ValueError, match="16 devices does not divide num_heads = 4"):
        DeviceShare(WIDE, DeviceMesh(1, 16).planned_target, 1)
    with pytest.raises(ValueError, match="batch_size is 3, but the mesh cuts a batch into 2"):
        DeviceShare(WIDE, DeviceMesh(2, 1).planned_target, 3)


TARGET = T5Config(
    vocab_size=64, d_model=32, num_encoder_layers=1, num_decoder_layers=3, num_heads=8,
    head_dim=4, d_ff=48,
)  # fmt: skip
DRAFT = changed(TARGET, num_decoder_layers=1, num_heads=4)
PLAN = MemoryPlan(
    TARGET, DRAFT, DeviceMesh(), batch_size=4, gamma=3, input_len=16, output_len=32
)  # fmt: skip
SHARES = [DeviceShare(config, DeviceMesh().planned_target, 4) for config in (TARGET, DRAFT)]


@pytest.mark.parametrize(
    ("tree", "fed", "nodes"),
    [
        (None, [1, 1], 3),
        (Tree((3, 2, 1)), [3, 6], 15),
        (Tree(nodes=7, depth=3, siblings=2), [2, 2], 7),
        (Tree(parents=(-1, -1, 0, 2)), [1, 1], 4),  # Of each level only one node has children.
        (Tree((5,)), [], 5),
    ],
    ids=str,
)
def test_caches_and_logits_of_a_block(tree, fed, nodes):
    """Caches hold each node that is written before it is known whether it stays."""
    target, draft = dataclasses.replace(
        PLAN, gamma=3 if tree is None else tree.levels, tree=tree
    ).held()
    own, drafts = SHARES
    assert target["self-attention cache"] == own.cache(32 + nodes + 1)
    more = nodes + 1 if tree is None else sum(fed) + 1 + 2
    assert draft["self-attention cache"] == drafts.cache(32 + more)
    assert target["logits of one call"] == own.logits(nodes + 1)
    assert draft["logits of one call"] == drafts.logits(max([2, *fed]))


@pytest.mark.parametrize(
    "tree", [Tree((3, 2, 1)), Tree(parents=(-1, -1, 0, 2)), Tree(nodes=7, depth=3, siblings=2)],
    ids=str,
)  # fmt: skip
def test_the_capacity_of_a_draft_is_what_its_drafter_asks_for(tree):
    asked = []

    def start(params, prompt, capacity, target):
        asked.append(capacity)
        return types.SimpleNamespace(last_token=np.zeros(1, np.int32), encoded=None, cache=None)

    model = types.SimpleNamespace(start=start)
    drafter = BestFirstDrafter(model, tree.size, tree.levels, tree.most_siblings)
    if tree.topology is not None:
        drafter = ModelTreeDrafter(model, tree.topology)
    params, prompt = types.SimpleNamespace(weights=None), types.SimpleNamespace(batch_size=1)
    drafter.init(params, prompt, 32, types.SimpleNamespace(encoded=None))
    plan = dataclasses.replace(PLAN, gamma=tree.levels, tree=tree)
    assert plan.held()[1]["self-attention cache"] == SHARES[1].cache(*asked)


def test_a_mesh_cuts_the_target_and_the_draft_only_by_its_own_rules():
    def weights(mesh):
        held = dataclasses.replace(PLAN, mesh=mesh).held()
        return [each["all parameters"] for each in held]

    (target, draft), (part, whole) = weights(DeviceMesh()), weights(DeviceMesh(model=4))
    assert target / 4 <= part < target / 2
    assert whole == draft
    assert weights(DeviceMesh(model=4, draft_rules=T5X_RULES))[1] < draft / 2
    assert dataclasses.replace(PLAN, mesh=DeviceMesh(model=4)).read()[0] < PLAN.read()[0] / 2


def test_the_fewest_devices_that_it_fits_on():
    def needed(model):
        return dataclasses.replace(PLAN, mesh=DeviceMesh(model=model)).needed

    assert PLAN.fitting_mesh(needed(1)) == DeviceMesh()
    assert PLAN.fitting_mesh(needed(1) - 1) == DeviceMesh(model=2)
    assert PLAN.fitting_mesh(needed(8)) == DeviceMesh(model=8)
    assert PLAN.fitting_mesh(needed(8) - 1) is None  # Eight heads; the draft stays whole.
