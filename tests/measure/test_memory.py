"""What a device holds of a pair: caches have capacity for what drafters ask, and meshes cut it."""

import dataclasses
import types

import numpy as np
import pytest
from tiny import changed

from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.shape import Tree
from specdec.measure.device_share import DeviceShare
from specdec.measure.memory import MemoryPlan
from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.models.t5.config import T5Config

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
        (Tree((4, 1, 1)), [4, 4], 12),
        (Tree(nodes=7, depth=3, siblings=2), [2, 2], 7),
        (Tree(parents=(-1, -1, 0, 2)), [1, 1], 4),  # Of each level only one node has children.
        (Tree((5,)), [], 5),
        (Tree((1, 1, 1)), [1, 1], 3),
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
