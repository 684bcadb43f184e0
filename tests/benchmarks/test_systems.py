"""Every system decodes the same tokens from one checkpoint."""

import dataclasses
import functools
import importlib
import importlib.util

import jax
import pytest
from tiny import TINY, random_t5_params

from specdec.benchmarks.systems import SYSTEMS, t5x_greedy
from specdec.benchmarks.systems.specdec_t5 import Specdec
from specdec.benchmarks.workload import Weights
from specdec.checkpoints import save_huggingface

OTHERS = [name for name, entry in SYSTEMS.items() if not entry.own and entry.needs]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    # 32 tokens: CTranslate2's int8 kernels want multiples of 4.
    config = dataclasses.replace(TINY["v1.1"], vocab_size=32)
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(root / role, config, jax.device_get(random_t5_params(config, seed)))
    return root


@pytest.fixture
def workload(tiny_workload, checkpoints):
    return dataclasses.replace(
        tiny_workload, target=Weights(str(checkpoints / "target")),
        draft=Weights(str(checkpoints / "draft")), forced_alpha=None,
    )  # fmt: skip


@functools.cache
def _expected(workload):
    return Specdec(workload, "autoregressive").decode([0, 1], [12, 12])


def test_speculative_decoding_of_specdec_itself(workload):
    assert Specdec(workload, "speculative").decode([0, 1], [12, 12]) == _expected(workload)


@pytest.mark.parametrize("name", OTHERS)
def test_the_same_tokens(name, workload):
    entry = SYSTEMS[name]
    for package in entry.needs:
        pytest.importorskip(package, reason=f"{name} needs {package}")
    if "assisted" in entry.method:  # transformers assists one row at a time.
        workload = dataclasses.replace(workload, batch_size=1)
    module = importlib.import_module(f"specdec.benchmarks.systems.{entry.module}")
    system = module.load(workload, entry.method, {"threads": 1, "t5x_path": None})
    rows = [list(batch) for batch in workload.batches()]
    found = [tokens for batch in rows for tokens in system.decode(batch, [12] * len(batch))]
    assert [len(row) for row in found] == [12, 12]
    if entry.exact:
        # EOS may come in the middle here, where only CTranslate2 must not say it.
        assert [row[0] for row in found] == [row[0] for row in _expected(workload)]
        if entry.module != "ct2":
            assert found == _expected(workload)
    system.decode(rows[0], [1] * len(rows[0]))
    assert system.versions


def test_t5x_is_absent_without_a_checkout(tmp_path):
    with pytest.raises(ImportError, match="give --t5x_path"):
        t5x_greedy.import_t5x(None)
    with pytest.raises(ImportError, match="no T5X checkout at"):
        t5x_greedy.import_t5x(str(tmp_path))
