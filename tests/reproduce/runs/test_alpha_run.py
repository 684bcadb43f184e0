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


def test_rows_of_other_texts_are_not_used(run, tmp_path):
    out = tmp_path / "out"
    assert run.do(out).measured
    assert not run.do(out).measured
    # The texts are decoded again, with another seed, and the rows of the old ones are left.
    other = dataclasses.replace(run, seed=1)
    fresh = other.do(tmp_path / "fresh")
    for name in ("texts.jsonl", "run.json"):
        (out / name).unlink()
    assert alphas(other.do(out)) == alphas(fresh)
