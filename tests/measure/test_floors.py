import dataclasses
import types

import numpy as np
import pytest

from specdec.core.roofline import Hardware
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.shape import Tree
from specdec.measure.floors import BlockPlan, floor
from specdec.models.partitioning import REPLICATED_RULES, T5X_RULES, DeviceMesh
from specdec.models.t5.config import T5Config

TARGET = T5Config(
    vocab_size=64, d_model=32, num_encoder_layers=1, num_decoder_layers=3, num_heads=8,
    head_dim=4, d_ff=48,
)  # fmt: skip
DRAFT = dataclasses.replace(TARGET, num_decoder_layers=1, num_heads=4)
PLAN = BlockPlan(
    TARGET, DRAFT, DeviceMesh(), batch_size=4, gamma=3, input_len=16, output_len=32
)  # fmt: skip
SLOW_MEMORY = Hardware("reads slowly", 1e9, bandwidth=1e3, peak=1e15, interconnect=1e15)


def names(parts):
    return [(part.name, part.times) for part in parts]


def test_the_parts_of_a_block():
    assert names(PLAN.plain()) == [("target, 1 token", 1)]
    assert names(PLAN.block()) == [
        ("draft, 2 tokens", 1), ("draft, 1 token", 2), ("target, 4 tokens", 1),
    ]  # fmt: skip
    one = dataclasses.replace(PLAN, gamma=1)
    assert names(one.block()) == [("draft, 2 tokens", 1), ("target, 2 tokens", 1)]
    assert names(dataclasses.replace(PLAN, draft=None).block()) == [("target, 4 tokens", 1)]
    assert names(dataclasses.replace(PLAN, gamma=0).block()) == [("target, 1 token", 1)]
    groups = dataclasses.replace(PLAN, mesh=DeviceMesh(2, 4))
    assert names(groups.plain())[-1] == ("have all rows ended", 1)


@pytest.mark.parametrize(
    ("tree", "fed", "nodes"),
    [
        (Tree((3, 2, 1)), {3: 1, 6: 1}, 15),
        (Tree((4, 1, 1)), {4: 2}, 12),
        (Tree(nodes=7, depth=3, siblings=2), {2: 2}, 7),
        (Tree(parents=(-1, -1, 0, 2)), {1: 2}, 4),  # Of each level only one node has children.
        (Tree((5,)), {}, 5),
        (Tree((1, 1, 1)), {1: 2}, 3),
    ],
    ids=str,
)
def test_the_parts_of_a_block_of_a_tree(tree, fed, nodes):
    """A draft call a level on the nodes with children; the target scores every node."""
    plan = dataclasses.replace(PLAN, gamma=tree.levels, tree=tree)
    calls = [(f"draft, {n} token{'s' * (n > 1)}", times) for n, times in fed.items()]
    expected = [("draft, 2 tokens", 1), *calls, (f"target, {nodes + 1} tokens", 1)]
    assert names(plan.block()) == expected
    assert names(plan.plain()) == [("target, 1 token", 1)]
    levels = sum(times for name, times in names(plan.drafting()))
    assert levels == tree.levels
    # Caches have room for each node that is written before it is known whether it stays.
    target, draft = plan.memory()
    assert target["self-attention cache"] == plan.target_share.cache(32 + nodes + 1)
    inner = sum(n * times for n, times in fed.items())
    assert draft["self-attention cache"] == plan.draft_share.cache(32 + inner + 1 + 2)
    assert target["logits of one call"] == plan.target_share.logits(nodes + 1)
    assert draft["logits of one call"] == plan.draft_share.logits(max([2, *fed]))


@pytest.mark.parametrize(
    "tree", [Tree((3, 2, 1)), Tree(parents=(-1, -1, 0, 2)), Tree(nodes=7, depth=3, siblings=2)],
    ids=str,
)  # fmt: skip
def test_the_room_of_a_draft_is_what_its_drafter_asks_for(tree):
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
    assert plan.memory()[1]["self-attention cache"] == plan.draft_share.cache(*asked)


def test_ratios_where_reading_is_all_there_is():
    """A call reads the same whatever its width, but for the room that a block needs in caches."""
    c = PLAN.draft_share.call(1, 36, 16).read / PLAN.target_share.call(1, 33, 16).read
    assert PLAN.cost_ratio(SLOW_MEMORY) == pytest.approx(c)
    v = PLAN.target_share.call(4, 36, 16).read / PLAN.target_share.call(1, 33, 16).read
    assert PLAN.verify_ratio(SLOW_MEMORY) == pytest.approx(v)
    block = floor(PLAN.block(), SLOW_MEMORY) / floor(PLAN.plain(), SLOW_MEMORY)
    assert block == pytest.approx(3 * c + v)


def test_v_is_gamma_plus_one_where_arithmetic_is_all_there_is():
    slow = Hardware("computes slowly", 1e9, bandwidth=1e15, peak=1e3, interconnect=1e15)
    assert PLAN.verify_ratio(slow) == pytest.approx(4, rel=0.02)


def test_collectives_of_each_partitioning():
    mesh = DeviceMesh(1, 4)
    whole = dataclasses.replace(PLAN, mesh=mesh)
    assert [part.work.num_collectives for part in whole.block()] == [0, 0, 3 * 3 + 2]
    alike = dataclasses.replace(PLAN, mesh=dataclasses.replace(mesh, draft_rules=T5X_RULES))
    assert [part.work.num_collectives for part in alike.block()] == [5, 5, 11]
    vocabulary = (*REPLICATED_RULES, ("vocab", "model"))
    only = dataclasses.replace(PLAN, mesh=dataclasses.replace(mesh, target_rules=vocabulary))
    assert [each.kind for each in only.verifying()[0].work.collectives] == [
        "all-reduce", "all-gather",
    ]  # fmt: skip


def test_the_fewest_devices_that_it_fits_on():
    def needed(model):
        plan = dataclasses.replace(PLAN, mesh=DeviceMesh(model=model))
        return plan.needed

    def fitting(memory):
        return PLAN.fitting_mesh(dataclasses.replace(SLOW_MEMORY, memory=memory))

    assert fitting(needed(1)) == DeviceMesh()
    assert fitting(needed(1) - 1) == DeviceMesh(model=2)
    assert fitting(needed(8)) == DeviceMesh(model=8)
    assert fitting(needed(8) - 1) is None  # Eight heads; the draft stays whole.
