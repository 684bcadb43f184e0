"""Workloads refuse what systems could not do alike."""

import dataclasses

import pytest
from tiny import TINY, TINY_GPT

from specdec.checkpoints import load_huggingface
from specdec.data.tasks import given_texts
from specdec.reproduce.benchmarks.workload import WorkloadError, exported, random_weights, text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ()}, "there is no row"),
        ({"batch_size": 3}, "2 rows do not make whole batches of 3"),
        ({"gamma": 0}, r"gamma must be in \[1, 11\], got 0"),
        ({"gamma": 12}, r"gamma must be in \[1, 11\], got 12"),
        ({"inputs": ((3, 1), (3, 4, 1))}, "equally long"),
    ],
)
def test_contradictions(tiny_workload, changes, message):
    with pytest.raises(WorkloadError, match=message):
        dataclasses.replace(tiny_workload, **changes)


def test_forced_acceptance_is_said_in_the_label(tiny_workload):
    assert tiny_workload.label.endswith("FORCED acceptance 0.5")
    real = dataclasses.replace(tiny_workload, forced_alpha=None)
    assert "FORCED" not in real.label


def test_one_workload_for_each_combination():
    made = random_weights(
        "tiny", TINY["v1.1"], TINY["v1.1"], gamma=2, forced_alphas=(0.5, 0.6),
        input_lens=(6, 8), output_lens=(5,), batch_sizes=(1, 3),
    )  # fmt: skip
    found = {(w.forced_alpha, len(w.inputs[0]), len(w.inputs), w.max_decode_len) for w in made}
    assert found == {(a, i, b, 5) for a in (0.5, 0.6) for i in (6, 8) for b in (1, 3)}
    assert all(row[-1] == 1 for w in made for row in w.inputs)


def test_the_prompt_of_a_gpt_has_no_end():
    gpt = TINY_GPT["gpt"]
    (made,) = random_weights("tiny", gpt, gpt, gamma=2, forced_alphas=(0.5,), input_lens=(6,))
    assert all(len(row) == 6 and row[-1] != gpt.eos_id for row in made.inputs)


def test_texts_are_spread_over_the_task():
    task = given_texts([f"This is sentence number {i}." for i in range(10)])
    (workload,) = text(task, num_examples=5, gamma=3)
    (everything,) = text(task, num_examples=10, gamma=3)
    assert workload.inputs == everything.inputs[::2]
    assert workload.lengths is None


@pytest.mark.parametrize("weights", [TINY["v1.1"], TINY_GPT["gpt"]], ids=["t5", "gpt"])
def test_random_weights_are_exported_once(weights, tmp_path):
    first = exported(weights, tmp_path, seed=0, stored="float32")
    written = next(tmp_path.rglob("model.safetensors"))
    before = written.stat().st_mtime_ns
    assert exported(weights, tmp_path, seed=0, stored="float32") == first
    assert written.stat().st_mtime_ns == before
    assert exported(weights, tmp_path, seed=1, stored="float32") != first
    config, _ = load_huggingface(first)
    assert (type(config), config.d_model) == (type(weights), weights.d_model)
    assert exported(first, tmp_path, seed=0, stored="float32") is first
