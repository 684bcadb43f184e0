"""T5X's decode compiled for a TPU: what is read of its steps, and with a checkout all of it."""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tiny import TINY

from specdec.compile import chips, hlo
from specdec.studies import compiled_t5x
from specdec.studies.compiled_t5x import OneToken, Product
from specdec.studies.runs.accelerator_runs import CompiledT5X

# A loop of T5X's: in each of 6 layers a kernel's product and one of attention; then the logits'.
STEP = """HloModule decode

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inside (p0: bf16[512,6,64], p1: bf16[512]) -> bf16[6,64] {
  %p1 = bf16[512] parameter(1)
  %many = bf16[512,6,64] broadcast(%p1), dimensions={0}
  %p0 = bf16[512,6,64] parameter(0)
  %product = bf16[512,6,64] multiply(%many, %p0)
  %zero = bf16[] constant(0)
  ROOT %reduce = bf16[6,64] reduce(%product, %zero), SUM[0 LAYER]
}

%attention (q0: bf16[128,6,64], q1: bf16[6,64]) -> bf16[128,6] {
  %q0 = bf16[128,6,64] parameter(0)
  %q1 = bf16[6,64] parameter(1)
  %each = bf16[128,6,64] broadcast(%q1), dimensions={1,2}
  %scores = bf16[128,6,64] multiply(%q0, %each)
  %none = bf16[] constant(0)
  ROOT %scored = bf16[128,6] reduce(%scores, %none), SUM[2 bqhd,bkhd->bhqk/dot_general]
}

%logits (l0: f32[512,100], l1: f32[512]) -> f32[100] {
  %l0 = f32[512,100] parameter(0)
  %l1 = f32[512] parameter(1)
  %wide = f32[512,100] broadcast(%l1), dimensions={0}
  %times = f32[512,100] multiply(%wide, %l0)
  %nought = f32[] constant(0)
  ROOT %last = f32[100] reduce(%times, %nought), SUM[0 logits_dense/dot_general]
}

%layer (s: (s32[], bf16[512,6,64])) -> (s32[], bf16[512,6,64]) {
  %s = (s32[], bf16[512,6,64]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %w = bf16[512,6,64] get-tuple-element(%s), index=1
  %x = bf16[512] constant({...})
  %made = bf16[6,64] fusion(%w, %x), kind=kLoop, calls=%inside, COST[4000]
  %cache = bf16[128,6,64] constant({...})
  %scoring = bf16[128,6] fusion(%cache, %made), kind=kLoop, calls=%attention, COST[900]
  ROOT %next = (s32[], bf16[512,6,64]) tuple(%i, %w)
}

%below (t: (s32[], bf16[512,6,64])) -> pred[] {
  %t = (s32[], bf16[512,6,64]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %six = s32[] constant(6)
  ROOT %less = pred[] compare(%j, %six), direction=LT
}

%step (u: (s32[], bf16[512,6,64])) -> (s32[], bf16[512,6,64]) {
  %u = (s32[], bf16[512,6,64]) parameter(0)
  %layers = (s32[], bf16[512,6,64]) while(%u), condition=%below, body=%layer, TRIPS[6]
  %kernel = f32[512,100] constant({...})
  %h = f32[512] constant({...})
  %scored.1 = f32[100] fusion(%kernel, %h), kind=kLoop, calls=%logits, COST[7000]
  ROOT %again = (s32[], bf16[512,6,64]) tuple(%layers, %layers)
}

%on (v: (s32[], bf16[512,6,64])) -> pred[] {
  %v = (s32[], bf16[512,6,64]) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (weights: bf16[512,6,64]) -> (s32[], bf16[512,6,64]) {
  %weights = bf16[512,6,64] parameter(0)
  %none.1 = s32[] constant(0)
  %begin = (s32[], bf16[512,6,64]) tuple(%none.1, %weights)
  ROOT %done = (s32[], bf16[512,6,64]) while(%begin), condition=%on, body=%step
}
"""


def text(layer):
    """:data:`STEP` with a layer's kernel of that name, and what is short in it written out."""
    named = r'dimensions={\1}, to_apply=%add, metadata={op_name="jit(f)/while/body/\2"}'
    found = re.sub(r"SUM\[(\d) ([^]]*)\]", named, STEP.replace("LAYER", layer))
    cost = r'backend_config={"window_config":{"estimated_cycles":"\1"}}'
    found = re.sub(r"COST\[(\d+)\]", cost, found)
    return found.replace("TRIPS[6]", 'backend_config={"known_trip_count":{"n":"6"}}')


def needs_compiler():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip('the TPU compiler is not installed: pip install "specdec-jax[compilers]"')


@pytest.fixture(scope="module")
def checkout(request):
    needs_compiler()
    path = request.config.getoption("--t5x_path")
    if path is None:
        pytest.skip("--t5x_path=DIR names a checkout of google-research/t5x")
    return str(Path(path).absolute())


@pytest.mark.parametrize("name", ["query", "mlp/wi_0", "mlp/wo", "token_embedder", "relpos_bias"])
def test_one_token_products_of_a_step(name):
    module = hlo.parse(text(f"{name}/dot_general"))
    logits = OneToken((Product(512, 100, "f32"),), 7000, 1)
    layers = OneToken((Product(512, 384, "bf16"),), 4000, 6)
    expected = [logits] if name == "relpos_bias" else [layers, logits]
    assert compiled_t5x.one_token_products(module) == expected


def test_a_price_is_not_below_reading():
    needs_compiler()
    where = chips.find("v4")
    product = Product(512, 1024, "bf16")
    cycles = compiled_t5x.price(product, where)
    assert product.bytes == 2**20
    assert cycles >= 2**20 / where.chip.hardware.bandwidth * where.chip.clock
    assert cycles < 6400  # What the same product of one token is said to take.


def test_what_is_not_there():
    with pytest.raises(ValueError, match="no network 'wide'; there are minimal, scalable, scanned"):
        compiled_t5x.import_models(None, "wide")
    with pytest.raises(ImportError, match="give --t5x_path"):
        compiled_t5x.import_models(None, "minimal")
    with pytest.raises(ValueError, match="h100 estimates no cycles"):
        compiled_t5x.report(None, TINY["v1.1"], "minimal", "h100")
    with pytest.raises(ValueError, match="names 'XL'"):
        CompiledT5X("T5X", "", {"XXL": TINY["v1.1"]}, {"v4": ["XL"]})


def test_a_table():
    part = {"cycles": 3_000_000, "bytes": 10, "ms": 2.9}
    fits = {
        "fits": True, "argument_bytes": 2**31, "temporary_bytes": 2**29, "start": part,
        "step": part | {"lower_cycles": 1_250_000, "lower_ms": 1.2},
        "findings": {"weight_copy_bytes": 10**9, "weight_widened_bytes": 5 * 10**8},
    }  # fmt: skip
    found = {"v4": {"large": {"minimal": fits, "scanned": {"fits": False, "why": "too large"}}}}
    *_, first, second = compiled_t5x.page(found).splitlines()
    assert first == "| v4, large | minimal | 2.0 + 0.5 | 3.00 | 1.50 | 3.00 | 2.90 | 1.25 | 1.20 |"
    assert second == "| v4, large | scanned | does not fit | – | – | – | – | – | – |"


@pytest.mark.parametrize(
    "network",
    [
        "minimal",
        pytest.param("scalable", marks=pytest.mark.slow),
        pytest.param("scanned", marks=pytest.mark.slow),
    ],
)
def test_t5x_itself(network, checkout, tmp_path):
    config = dataclasses.replace(TINY["v1.1"], dtype="float32", d_model=256, d_ff=512)
    _, (params, batch) = compiled_t5x.t5x_decode(checkout, config, network, max_decode_len=16)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    assert batch["decoder_input_tokens"].shape == (1, 16)
    assert "t5x.optimizers" not in sys.modules  # No stand-in stays.
    run = CompiledT5X("T5X", checkout, {"tiny": config}, {"v4": ["tiny"]}, [network])
    ((path, make),) = run.pieces()
    assert path == ("t5x", "t5x", "v4", "tiny", network)
    found = make(tmp_path)
    assert found["fits"]
    assert found["step"]["one_token_products"] == 9 * config.num_decoder_layers + 2
    assert 0 < found["step"]["lower_cycles"] <= found["step"]["cycles"]
    assert make(tmp_path) == found
