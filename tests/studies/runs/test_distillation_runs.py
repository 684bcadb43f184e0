"""A study of distillation by a gin file, on tiny models."""

import json

import pytest

from specdec.data.text import write_pairs
from specdec.runs.command_line import Given
from specdec.studies import cli
from specdec.studies.pages import distillation_pages
from specdec.studies.runs import distillation_runs
from specdec.training.on_policy import DIRECTORY
from tests.runs.conftest import TARGET
from tests.runs.decoding import ROOT

CELLS = [("forward_kl", "references"), ("hybrid", "mixture"), ("forward_kl", "draft")]
GIN = """
from __gin__ import dynamic_registration

from specdec.data import batching
from specdec.data import tasks
from specdec.models.t5 import config
from specdec.studies.runs import distillation_runs
from specdec.studies.runs import reproduce
from specdec.training import loop
from specdec.training import optimizer
from specdec.training import train

reproduce.Reproduction.distillation = [@distillation_runs.DistillationRuns()]
distillation_runs.DistillationRuns.name = "Toy"
distillation_runs.DistillationRuns.task = @tasks.pairs_file
distillation_runs.DistillationRuns.target = "{target}"
distillation_runs.DistillationRuns.model = @config.T5Config()
distillation_runs.DistillationRuns.initial = "{draft}"
distillation_runs.DistillationRuns.files = @train.TextFiles()
distillation_runs.DistillationRuns.batching = @batching.BatchingOptions()
distillation_runs.DistillationRuns.optimizer = @optimizer.OptimizerOptions()
distillation_runs.DistillationRuns.loop = @loop.LoopOptions()
distillation_runs.DistillationRuns.cells = {cells}
distillation_runs.DistillationRuns.generated = 3
distillation_runs.DistillationRuns.refresh_every = 2
distillation_runs.DistillationRuns.alpha_examples = 3
distillation_runs.DistillationRuns.max_input_len = 16
distillation_runs.DistillationRuns.max_decode_len = 8
tasks.pairs_file.name = "toy"
tasks.pairs_file.directory = "{data}"
tasks.pairs_file.split = "test"
train.TextFiles.directory = "{data}"
train.TextFiles.train = "test.tsv"
train.TextFiles.validation = "test.tsv"
batching.BatchingOptions.tokens_per_batch = 64
batching.BatchingOptions.lengths = (32,)
optimizer.OptimizerOptions.peak_learning_rate = 1e-2
optimizer.OptimizerOptions.warmup_steps = 2
loop.LoopOptions.total_steps = 4
loop.LoopOptions.eval_every = 4
loop.LoopOptions.checkpoint_every = 4
"""


@pytest.fixture
def write(tiny, tmp_path):
    """A gin file with these cells."""
    fields = "vocab_size", "d_model", "num_encoder_layers", "num_decoder_layers", "num_heads"
    shape = "".join(
        f"config.T5Config.{name} = {getattr(TARGET, name)}\n"
        for name in (*fields, "head_dim", "d_ff")
    )

    def written(cells):
        path = tmp_path / "study.gin"
        given = {"target": tiny.target, "draft": tiny.draft, "data": tiny.root, "cells": cells}
        path.write_text(GIN.format(**given) + shape)
        return Given([str(path)], (), str(tmp_path / "out"), "again")

    return written


@pytest.mark.slow
def test_drafts_are_trained_measured_and_shown(write, tiny, tmp_path, monkeypatch):
    given, summary = write(CELLS), tmp_path / "out/summary.json"

    def generate(directory, *, files, target, count):  # A random target's outputs have no end.
        assert (files.train, target, count) == ("test.tsv", str(tiny.target), 3)
        directory.mkdir(parents=True, exist_ok=True)
        write_pairs(directory / "generated.tsv", [("a dog", "a"), ("the cat", "dog")])

    monkeypatch.setattr(distillation_runs.generate, "generate", generate)
    assert cli.reproduce(given, ROOT) == 0
    first = json.loads(summary.read_text())
    found = first["distillation"]["Toy"]
    names = [f"{loss}_{data}" for loss, data in CELLS]
    assert list(found) == ["generated", *names, "alpha_t0", "alpha_t1"]
    for temperature in ("alpha_t0", "alpha_t1"):
        assert set(found[temperature]) == {*names, "before"}
    alphas = [each["alpha"] for each in found["alpha_t1"].values()]
    assert len(set(alphas)) == len(alphas)
    pieces = tmp_path / "out/toy/distillation"
    own = {name: (pieces / name / "run" / DIRECTORY).is_dir() for name in names}
    assert own == {names[0]: False, names[1]: True, names[2]: True}
    trained_on = {
        name: json.loads((pieces / name / "run/run.json").read_text())["data"] for name in names
    }
    assert trained_on[names[0]] == trained_on[names[2]] != trained_on[names[1]]
    # What is on disk is not trained again.
    monkeypatch.setattr(distillation_runs, "distill", None)
    assert cli.reproduce(given, ROOT) == 0
    assert json.loads(summary.read_text())["distillation"] == first["distillation"]
    # Its page.
    for study in ("distillation", "distillation_large"):
        (tmp_path / "results" / study).mkdir(parents=True)
    few = json.loads(summary.read_text())
    for temperature in ("alpha_t0", "alpha_t1"):
        measured = few["distillation"]["Toy"][temperature]
        for name in names:
            if not name.startswith("forward_kl"):
                del measured[name]
    (tmp_path / "results/distillation_large/summary.json").write_text(json.dumps(few))
    summary.rename(tmp_path / "results/distillation/summary.json")
    page = distillation_pages.alphas(tmp_path, "alphas", draw=True)
    assert page.startswith("| loss | data |")
    assert page.count("\n| forward KL |") == 2
    assert "| hybrid | half target's, half own |" in page
    assert "images/distillation.svg" in page
    assert (tmp_path / "docs/images/distillation.svg").stat().st_size > 1000
    # One loss needs no picture.
    page = distillation_pages.alphas(tmp_path, "larger", draw=True)
    assert page.count("\n| forward KL |") == 2
    assert "hybrid" not in page
    assert "images/" not in page


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([("forward_kl", "books")], "one of references, target, draft, mixture"),
        ([("kl", "draft")], "loss must be one of forward_kl, "),
    ],
)
def test_unknown_cells_are_one_clear_error(write, tmp_path, capsys, cells, message):
    assert cli.reproduce(write(cells), ROOT) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
