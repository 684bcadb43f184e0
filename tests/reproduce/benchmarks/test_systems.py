"""Every system decodes the same tokens from one checkpoint."""

import dataclasses
import functools
import importlib
import importlib.util

import jax
import numpy as np
import pytest
from tiny import TINY, TINY_GPT, changed, random_params

from specdec.checkpoints import load_huggingface, save_huggingface
from specdec.data.tasks import given_texts
from specdec.decoding.beam_rules import BeamConfig
from specdec.reproduce.benchmarks.systems import (
    SYSTEMS,
    huggingface,
    specdec_loop,
    t5x,
)
from specdec.reproduce.benchmarks.workload import WorkloadError, random_weights, text

OTHERS = [name for name, entry in SYSTEMS.items() if not (entry.own or entry.beams) and entry.needs]
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


@pytest.mark.parametrize(
    ("method", "pair"),
    [
        pytest.param("autoregressive_float32", "workload", marks=pytest.mark.slow),
        pytest.param("autoregressive_float32", "gpt_workload", marks=pytest.mark.slow),
        pytest.param("speculative", "workload", marks=pytest.mark.slow),
        ("speculative", "gpt_workload"),
    ],
)
def test_the_same_tokens_of_specdec_itself(method, pair, request):
    workload = request.getfixturevalue(pair)
    system = specdec_loop.System(workload, method, {})
    assert system.decode([0, 1], [12, 12]) == _expected(workload)


@pytest.mark.parametrize(
    "method", [pytest.param("autoregressive_int8", marks=pytest.mark.slow), "speculative_int8"]
)
def test_8_bits_of_a_gpt(method, gpt_workload):
    """The lengths are those that it is told, and EOS is a token like any other."""
    found = specdec_loop.System(gpt_workload, method, {}).decode([0, 1], [12, 12])
    assert [len(row) for row in found] == [12, 12]


@pytest.mark.slow
def test_drawn_gpts(gpt_workload):
    """Weights that are drawn in the process: no file, forced acceptance, one's own copy."""
    drawn = dataclasses.replace(gpt_workload, target=GPT, draft=GPT, forced_alpha=0.5)
    for method in ("autoregressive", "speculative", "speculative_quantized"):
        found = specdec_loop.System(drawn, method, {}).decode([0, 1], [12, 12])
        assert [len(row) for row in found] == [12, 12]


@pytest.mark.parametrize("pair", ["workload", "gpt_workload"])
@pytest.mark.parametrize("name", OTHERS)
def test_the_same_tokens(name, pair, request):
    entry, workload = SYSTEMS[name], request.getfixturevalue(pair)
    for package in entry.needs:
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
    for package in entry.needs:
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


@pytest.mark.slow
def test_the_same_beams_of_ctranslate2():
    """On the bundled target, whose rows do not begin with EOS."""
    pytest.importorskip("ctranslate2")
    ct2 = importlib.import_module("specdec.reproduce.benchmarks.systems.ct2")
    task = given_texts(["Where is the station?", "The house is old, but I like it."])
    beam = BeamConfig(4, "huggingface", early_stopping=True)
    (workload,) = text(task, num_examples=2, max_decode_len=24, beam=beam)
    reference = specdec_loop.System(workload, "autoregressive", {})
    system = ct2.System(workload, "float32", {"threads": 1})
    for row in ([0], [1]):
        assert system.decode(row, None) == reference.decode(row, None)


def test_ctranslate2_knows_one_rule_of_beams(workload):
    ct2 = importlib.import_module("specdec.reproduce.benchmarks.systems.ct2")
    pytest.importorskip("ctranslate2")
    beam = BeamConfig(3, "huggingface")
    workload = dataclasses.replace(workload, lengths=None, batch_size=1, beam=beam)
    with pytest.raises(WorkloadError, match="CTranslate2 knows early_stopping=True"):
        ct2.System(workload, "float32", {"threads": 1})


def test_transformers_in_8_bits_quantizes_what_gpt2_calls_conv1d(gpt_workload):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = huggingface.System(gpt_workload, "greedy_int8", {"threads": 1})._model
    kinds = {type(module).__name__ for module in model.transformer.h.modules()}
    assert "Conv1D" not in kinds
    found = model.transformer.h[0].mlp.c_fc
    assert isinstance(found, torch.ao.nn.quantized.dynamic.Linear)
    assert found.weight().shape == (GPT.d_ff, GPT.d_model)


def test_transformers_assisted_by_a_draft_that_starts_from_the_encoding(
    workload, checkpoints, tmp_path
):
    """The target's own decoder as the draft: were it given anything else, it would be rejected.

    Beside an encoding times 1e5 the embedded tokens are nothing, and RMSNorm undoes the factor.
    """
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    target, params = load_huggingface(checkpoints / "target")
    norm = {"scale": np.ones(target.d_model, np.float32)}
    params = {**params, "encoder": {**params["encoder"], "encoder_norm": norm}}
    config = changed(target, num_encoder_layers=0, encoding_width=target.d_model)
    projection = {"kernel": 1e5 * np.eye(target.d_model, dtype=np.float32)}
    encoder = {"input_projection": projection, "encoder_norm": norm}
    save_huggingface(tmp_path / "target", target, params)
    save_huggingface(tmp_path / "draft", config, {**params, "encoder": encoder})
    workload = dataclasses.replace(
        workload, target=str(tmp_path / "target"), draft=str(tmp_path / "draft"), batch_size=1,
    )  # fmt: skip
    system = huggingface.System(workload, "assisted_constant", {"threads": 1})
    assert isinstance(system._model, transformers.T5ForConditionalGeneration)
    calls = []
    system._model.decoder.register_forward_hook(lambda *_: calls.append(None))
    tokens = system.decode([0], [12])
    plain = specdec_loop.System(workload, "autoregressive", {})
    assert tokens == [plain.decode([0], [12])[0]]
    assert len(calls) <= -(-12 // (workload.gamma + 1)) + 1


def test_t5x_is_absent_without_a_checkout(tmp_path):
    with pytest.raises(ImportError, match="give --t5x_path"):
        t5x.import_t5x(None)
    with pytest.raises(ImportError, match="no T5X checkout at"):
        t5x.import_t5x(str(tmp_path))
