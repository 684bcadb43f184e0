"""Every system decodes the same tokens from one checkpoint."""

import dataclasses
import functools
import importlib
import importlib.util

import jax
import pytest
from tiny import TINY, TINY_GPT, random_params

from specdec.checkpoints import save_huggingface
from specdec.decoding.beam_rules import BeamConfig
from specdec.reproduce.benchmarks.systems import (
    SYSTEMS,
    specdec_loop,
)
from specdec.reproduce.benchmarks.workload import random_weights

OTHERS = [
    name for name, entry in SYSTEMS.items()
    if not (entry.own or entry.beams or entry.listens) and entry.needs
]  # fmt: skip
# CTranslate2 does not let EOS come first, which these random weights often do.
SEARCHERS = [name for name, entry in SYSTEMS.items() if entry.beams and entry.module != "ct2"]
# 32 tokens: CTranslate2's int8 kernels want multiples of 4.
T5, GPT = (dataclasses.replace(shape, vocab_size=32) for shape in (TINY["v1.1"], TINY_GPT["gpt"]))


def _saved(root, config, params_of):
    for role, seed in (("target", 0), ("draft", 1)):
        save_huggingface(root / role, config, jax.device_get(params_of(config, seed)))
    return root


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return _saved(tmp_path_factory.mktemp("checkpoints"), T5, random_params)


@pytest.fixture(scope="module")
def gpts(tmp_path_factory):
    return _saved(tmp_path_factory.mktemp("gpts"), GPT, random_params)


def _on_files(workload, checkpoints):
    return dataclasses.replace(
        workload, target=str(checkpoints / "target"), draft=str(checkpoints / "draft"),
        forced_alpha=None,
    )  # fmt: skip


@pytest.fixture
def workload(tiny_workload, checkpoints):
    return _on_files(tiny_workload, checkpoints)


@pytest.fixture
def gpt_workload(gpts):
    (drawn,) = random_weights(
        "tiny GPT", GPT, GPT, gamma=2, forced_alphas=(0.5,), input_lens=(6,), output_lens=(12,),
        batch_sizes=(2,),
    )  # fmt: skip
    return _on_files(drawn, gpts)


@functools.cache
def _expected(workload):
    return specdec_loop.System(workload, "autoregressive", {}).decode([0, 1], [12, 12])


def test_the_same_tokens_of_specdec_itself(gpt_workload):
    system = specdec_loop.System(gpt_workload, "speculative", {})
    assert system.decode([0, 1], [12, 12]) == _expected(gpt_workload)


# T5s, and of each of transformers' and CTranslate2's a GPT.
@pytest.mark.parametrize(
    ("name", "pair"),
    [*((name, "workload") for name in OTHERS),
     *((name, "gpt_workload") for name in ("transformers greedy", "CTranslate2 float32"))],
)  # fmt: skip
def test_the_same_tokens(name, pair, request):
    entry, workload = SYSTEMS[name], request.getfixturevalue(pair)
    for package in (*entry.needs, *entry.converts):
        pytest.importorskip(package, reason=f"{name} needs {package}")
    if "assisted" in entry.method:  # transformers assists one row at a time.
        workload = dataclasses.replace(workload, batch_size=1)
    module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
    system = module.System(workload, entry.method, {"threads": 1, "t5x_path": None})
    rows = [list(batch) for batch in workload.batches()]
    found = [tokens for batch in rows for tokens in system.decode(batch, [12] * len(batch))]
    assert [len(row) for row in found] == [12, 12]
    if entry.exact:
        # EOS may come in the middle here, where only CTranslate2's translator must not say it.
        assert [row[0] for row in found] == [row[0] for row in _expected(workload)]
        if entry.module != "ct2" or pair == "gpt_workload":
            assert found == _expected(workload)
    system.decode(rows[0], [1] * len(rows[0]))
    assert system.versions


@pytest.mark.parametrize("name", SEARCHERS)
def test_the_same_beams(name, workload, request):
    entry = SYSTEMS[name]
    for package in (*entry.needs, *entry.converts):
        pytest.importorskip(package, reason=f"{name} needs {package}")
    path = request.config.getoption("--t5x_path")
    if entry.module == "t5x" and path is None:
        pytest.skip("--t5x_path=DIR names a checkout of google-research/t5x")
    rule = {"early_stopping": True} if entry.beams == ("huggingface",) else {}
    beam = BeamConfig(3, entry.beams[0], **rule)
    workload = dataclasses.replace(workload, lengths=None, batch_size=1, beam=beam)
    reference = specdec_loop.System(workload, "autoregressive", {})
    module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
    system = module.System(workload, entry.method, {"threads": 1, "t5x_path": path})
    for row in ([0], [1]):
        (expected,) = reference.decode(row, None)
        (found,) = system.decode(row, None)
        assert found == expected
        assert len(system.decode(row, [1])[0]) == 1
