"""Workloads refuse what systems could not do alike."""

import dataclasses

import pytest
from tiny import TINY, TINY_GPT

from specdec.checkpoints import load_huggingface
from specdec.reproduce.benchmarks.contract import WorkloadError
from specdec.reproduce.benchmarks.workload import exported


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ()}, "there is no row"),
        ({"batch_size": 3}, "2 rows do not make whole batches of 3"),
        ({"gamma": 0}, r"gamma must be in \[1, 11\], got 0"),
        ({"gamma": 12}, r"gamma must be in \[1, 11\], got 12"),
        ({"inputs": ((3, 1), (3, 4, 1))}, "equally long"),
    ],
)
def test_contradictions(tiny_workload, changes, message):
    with pytest.raises(WorkloadError, match=message):
        dataclasses.replace(tiny_workload, **changes)


@pytest.mark.parametrize("weights", [TINY["v1.1"], TINY_GPT["gpt"]], ids=["t5", "gpt"])
def test_random_weights_are_exported_once(weights, tmp_path):
    first = exported(weights, tmp_path, seed=0, stored="float32")
    written = next(tmp_path.rglob("model.safetensors"))
    before = written.stat().st_mtime_ns
    assert exported(weights, tmp_path, seed=0, stored="float32") == first
    assert written.stat().st_mtime_ns == before
    assert exported(weights, tmp_path, seed=1, stored="float32") != first
    config, _ = load_huggingface(first)
    assert (type(config), config.d_model) == (type(weights), weights.d_model)
    assert exported(first, tmp_path, seed=0, stored="float32") is first
