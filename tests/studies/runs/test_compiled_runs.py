"""Decodes of a study that are compiled for meshes, and their floors beside them."""

import dataclasses

import pytest

from specdec.compile import chips
from specdec.compile.programs import DoesNotFitError
from specdec.measure.floors import BlockPlan, floor
from specdec.models.partitioning import DeviceMesh
from specdec.models.t5.config import T5Config
from specdec.studies.pages.compiled_pages import SECTIONS
from specdec.studies.runs import compiled_runs
from specdec.studies.runs.compiled_runs import Compiled, CompiledDecodes

TARGET = T5Config(
    vocab_size=512, d_model=128, num_heads=16, head_dim=64, num_encoder_layers=1,
    num_decoder_layers=2, d_ff=256, tied_logits=False,
)  # fmt: skip
SHAPES = {"large": TARGET, "small": dataclasses.replace(TARGET, num_heads=2)}
WIDE = {"chip": "v5e-16", "target": "large", "draft": "small", "gamma": 7, "model": 16}


@pytest.mark.parametrize(("data", "collectives"), [(1, 8), (2, 9)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_floors_are_those_of_the_plan(data, collectives, dtype):
    asked = {**WIDE, "data": data, "model": 16 // data, "batch_size": data, "dtype": dtype}
    found = Compiled(**asked).floors(SHAPES)
    target, draft = (dataclasses.replace(SHAPES[n], dtype=dtype) for n in ("large", "small"))
    plan = BlockPlan(target, draft, DeviceMesh(data, 16 // data), data, 7, 64, 128)
    hardware = chips.find("v5e").chip.hardware
    assert found == {
        "bytes": plan.needed, "step_ms": 1e3 * floor(plan.plain(), hardware),
        "block_ms": 1e3 * floor(plan.block(), hardware),
        # A layer's three, the embedding's and the logits'; and whether all groups' rows have ended.
        "collectives": collectives,
    }  # fmt: skip


def test_a_mesh_that_does_not_fit_still_has_its_floors(tmp_path, monkeypatch):
    def refuse(*_, mesh, **__):
        assert mesh in (DeviceMesh(1, 16), None)
        raise DoesNotFitError("Does not fit: too much.")

    monkeypatch.setattr(compiled_runs, "compile_report", refuse)
    one = {"chip": "v5e", "target": "large", "draft": "small", "gamma": 7}
    study = CompiledDecodes("slices", SHAPES, [WIDE, one])
    many, alone = (make(tmp_path / "-".join(index)) for index, make in study.pieces())
    assert many["does_not_fit"] == alone["does_not_fit"] == "Does not fit: too much."
    assert many["floors"] == Compiled(**WIDE).floors(SHAPES)
    assert "floors" not in alone
    (table, _) = SECTIONS["slices-compiled"].parts
    assert callable(table)
    row = table({"compiled": {"slices": {"compiled": {"a": many}}}}).splitlines()[-1]
    assert row.startswith(
        "| v5e-16 | 4 | 1 x 16 | large + small, γ 7, bfloat16 | does not fit | 0.00 |"
    )
