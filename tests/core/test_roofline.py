import dataclasses

import pytest

from specdec.core.roofline import Collective, Hardware, Load

DEVICE = Hardware("toy", memory=1000.0, bandwidth=100.0, peak=400.0, interconnect=10.0)
REDUCE = Collective("all-reduce", "model", devices=4, size=8, count=5)
GATHER = Collective("all-gather", "model", devices=4, size=8, count=5)


def test_a_ring_sends_each_part_once_and_for_sums_twice():
    """In a ring of n each device passes n - 1 parts of 1/n on; a sum must go around once more."""
    assert GATHER.sent == 5 * 8 * 3 / 4
    assert REDUCE.sent == 2 * GATHER.sent
    assert dataclasses.replace(REDUCE, devices=1).sent == 0


def test_the_floor_is_the_slower_of_reading_and_computing_and_then_sending():
    assert Load(read=200).floor(DEVICE) == 2
    assert Load(read=200, operations=799).floor(DEVICE) == 2
    assert Load(read=200, operations=1200).floor(DEVICE) == 3
    assert Load(200, 1200, (REDUCE, GATHER)).floor(DEVICE) == 3 + (60 + 30) / 10
    assert Load(200, 1200, (REDUCE, GATHER)).num_collectives == 10


def test_what_bounds_it():
    assert Load(read=200, operations=799).bound(DEVICE) == "memory"
    assert Load(read=200, operations=801).bound(DEVICE) == "arithmetic"
    assert Load(200, 801, (REDUCE,)).bound(DEVICE) == "messages"


@pytest.mark.parametrize("field", ["memory", "bandwidth", "peak", "interconnect"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1e9", None])
def test_figures_that_are_none(field, value):
    with pytest.raises(ValueError, match=f"Hardware.{field} must be set to a positive number, got"):
        dataclasses.replace(DEVICE, **{field: value})
