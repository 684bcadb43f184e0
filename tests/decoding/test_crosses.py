"""Options crossed: each case against the same rows alone, while arrays grow, shrink and grow."""

import json

import pytest
from crosses import (
    FACTORS,
    REFUSED,
    alone,
    covered,
    covering,
    decoded,
    draft_of,
    mesh_of,
    named,
    pairs,
)
from simulated import on_eight_devices
from uneven import assert_alike, write

import specdec

CASES = covering()
STREAM_ON_A_MESH = (("entry", "stream"), ("mesh", "two groups"))
HERE = [case for case in CASES if not mesh_of(case)]
ON_A_MESH = [case for case in CASES if mesh_of(case)]


@pytest.fixture(scope="module")
def root(once):
    return once("uneven", write)


@pytest.fixture(scope="module")
def on_a_mesh(once):
    """half -> what each of its cases on a mesh came to, by its name."""

    def report(half):
        fill = on_eight_devices("run_crosses_on_meshes.py", str(half))
        return json.loads((once(f"crosses-{half}", fill) / "report.json").read_text())

    return report


def test_every_pair_is_in_a_case_or_refused():
    known = set().union(*map(covered, CASES))
    assert set(pairs()) == known | set(REFUSED)
    assert not known & set(REFUSED)


@pytest.mark.parametrize("case", HERE, ids=named)
def test_rows_are_those_alone(case, root, tmp_path):
    pair = specdec.load_pair(target=str(root / "target"), draft=draft_of(root, case))
    found, changes = decoded(root, pair, case, tmp_path)
    assert_alike(found, alone(pair, case))
    assert "grew" in changes.seen


@pytest.mark.parametrize(("number", "case"), enumerate(ON_A_MESH), ids=named)
def test_rows_on_a_mesh_are_those_alone(number, case, on_a_mesh):
    assert on_a_mesh(number % 2)[named(case)] == "alike"


def test_on_a_mesh_streams_are_refused(on_a_mesh):
    assert REFUSED[STREAM_ON_A_MESH] in on_a_mesh(0)["stream"]


@pytest.mark.parametrize(
    "pair", [pair for pair in REFUSED if pair != STREAM_ON_A_MESH],
    ids=lambda pair: " and ".join(str(level) for _, level in pair),
)  # fmt: skip
def test_what_does_not_go_together_is_refused(pair, root, tmp_path):
    case = {name: levels[0] for name, levels in FACTORS.items()} | dict(pair)
    made = specdec.load_pair(target=str(root / "target"), draft=draft_of(root, case))
    with pytest.raises((ValueError, TypeError), match=REFUSED[pair]) as raised:
        decoded(root, made, case, tmp_path)
    assert "\n" not in str(raised.value)
