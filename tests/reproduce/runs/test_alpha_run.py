"""Alpha along a target's texts: what is on disk is used only for the same models and texts."""

import dataclasses
import shutil

import pytest

from specdec.data.tasks import pairs_file
from specdec.reproduce.runs.alpha_run import AlphaRun
from specdec.types import SamplingConfig


@pytest.fixture
def run(tiny, tmp_path):
    draft = shutil.copytree(tiny.draft, tmp_path / "draft")
    data = tmp_path / "data"
    data.mkdir()
    shutil.copyfile(tiny.root / "test.tsv", data / "test.tsv")
    return AlphaRun(
        path=("alpha",), task=pairs_file("toy", str(data), "test"), target=str(tiny.target),
        drafts=[str(draft)],
        sampling=SamplingConfig(temperature=1.0), num_examples=3, max_input_len=16,
        max_decode_len=8,
    )  # fmt: skip


def alphas(content):
    return [draft["alpha"] for draft in content.result["drafts"].values()]


def test_what_is_on_disk_is_used_for_the_same_texts_alone(run, tmp_path):
    out = tmp_path / "out"
    first = run.do(out)
    again = run.do(out)
    assert first.measured
    assert not again.measured
    assert alphas(again) == alphas(first)
    other = dataclasses.replace(run, seed=1)
    fresh, found = other.do(tmp_path / "fresh"), other.do(out)
    assert found.measured
    assert alphas(found) == alphas(fresh) != alphas(first)


def test_a_draft_that_was_trained_again_is_measured_again(run, tmp_path):
    """Along the same texts."""
    out = tmp_path / "out"
    first = run.do(out)
    texts = (out / "texts.json").read_text()
    (draft,) = run.drafts
    shutil.rmtree(draft)
    shutil.copytree(run.target, draft)
    found = run.do(out)
    assert found.measured
    assert alphas(found) == [pytest.approx(1, abs=1e-3)] != alphas(first)
    assert (out / "texts.json").read_text() == texts
