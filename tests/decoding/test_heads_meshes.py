"""Drafts that live in the target, on meshes of 8 simulated devices: the same tokens."""

import json

import pytest
from run_heads_on_meshes import HEADS, WAYS
from simulated import on_eight_devices

# Minutes; test_meshes.py has the same of draft models.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(once):
    directory = once("heads_meshes", on_eight_devices("run_heads_on_meshes.py"))
    return json.loads((directory / "report.json").read_text())


@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HEADS)
def test_tokens_do_not_depend_on_the_mesh(report, mesh, kind, way):
    assert report["devices"] == 8
    expected = report["decodes"][f"one device, {kind}, {way}"]
    lengths = list(map(len, expected["tokens"]))
    assert sum(lengths) >= 2000
    assert len(set(lengths)) > 5, "rows should end at different places"
    assert expected["accepted"] > 0, "some guesses should be right for this to mean anything"
    assert report["decodes"][f"{mesh}, {kind}, {way}"] == expected
