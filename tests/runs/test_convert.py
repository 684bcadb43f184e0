"""scripts/convert.py: between T5X, Hugging Face and Orbax, and only what computes the same."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from log_probs import assert_same_log_probs
from t5x_layouts import write_native, write_orbax
from tiny import EVERY, TINY, TINY_GPT, TINY_T5, changed, random_params

from specdec.checkpoints import (
    CheckpointError,
    load_huggingface,
    open_t5x,
    save_huggingface,
)
from specdec.models.transformer.network import init_params
from specdec.runs import convert as conversion
from specdec.runs.convert import convert
from specdec.training.checkpointing import checkpoints, load_params, prepare_directory, save

ROOT = Path(__file__).resolve().parents[2]
CONFIG = changed(TINY["v1.1"], relative_attention_max_distance=128)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(np.asarray, random_params(CONFIG, 0))


@pytest.fixture
def sources(tmp_path, params):
    """The same network in every format; a vocabulary with each but the plain T5X one."""
    folder = tmp_path / "sources"
    folder.mkdir()
    vocabulary = folder / "vocabulary"
    vocabulary.write_bytes(b"pieces")
    save_huggingface(folder / "huggingface", CONFIG, params)
    write_native(folder / "t5x" / "checkpoint_7", params)
    write_orbax(folder / "t5x_orbax", params, 7)
    run = folder / "run"
    prepare_directory(run, CONFIG, {}, vocabulary)
    zeros, optimizer = jax.tree.map(np.zeros_like, params), {"count": np.zeros(())}
    with checkpoints(run) as manager:
        save(manager, 6, params=zeros, optimizer=optimizer)
        save(manager, 7, params=params, optimizer=optimizer)
    for name in ("huggingface", "t5x_orbax"):
        shutil.copyfile(vocabulary, folder / name / "spiece.model")
    return folder


def assert_same(network, params, dtype="float32"):
    assert network[0] == CONFIG
    expected = jax.tree.map(lambda a: a.astype(dtype).astype(np.float32), params)
    found = jax.tree.map(lambda a: np.asarray(a, np.float32), network[1])
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("source", "form"),
    [("huggingface", "t5x"), ("t5x", "orbax"), ("t5x_orbax", "t5x"), ("run", "orbax")],
)
def test_conversions(source, form, sources, params, tmp_path):
    out = tmp_path / "out"
    assert convert(str(sources / source), str(out), form) <= 1e-5
    assert_same(open_t5x(out) if form == "t5x" else load_params(out), params)
    steps = out / "checkpoints" if form == "orbax" else out
    name = "0" if source == "huggingface" else "7"
    assert (steps / (name if form == "orbax" else f"checkpoint_{name}")).is_dir()
    assert (out / "spiece.model").exists() == (source != "t5x")
    assert {path.name for path in tmp_path.iterdir()} == {"sources", "out"}


@pytest.mark.parametrize(("source", "dtype"), [("t5x", "float32"), ("run", "bfloat16")])
def test_to_hugging_face(source, dtype, sources, params, tmp_path):
    (sources / "run" / "spiece.model").unlink()  # It is no vocabulary, which Hugging Face checks.
    assert convert(str(sources / source), str(tmp_path / "out"), "huggingface", dtype) <= 1e-5
    assert_same(load_huggingface(tmp_path / "out"), params, dtype)


@pytest.mark.parametrize(("variant", "dtype"), [("v1.1", "float32"), ("umt5", "bfloat16")])
def test_log_probs_of_what_was_t5xs(variant, dtype, tmp_path):
    """transformers reads what T5X's checkpoint decodes as; a UMT5's logits are not scaled."""
    pytest.importorskip("transformers")
    config = changed(TINY_T5[variant], relative_attention_max_distance=128)
    params = jax.tree.map(np.asarray, init_params(config, jax.random.key(0)))
    write_native(tmp_path / "t5x" / "checkpoint_7", params)
    convert(str(tmp_path / "t5x"), str(tmp_path / "out"), "huggingface", dtype)
    same_as = "t5x" if dtype == "float32" else "out"
    assert_same_log_probs(tmp_path / "out", tmp_path / same_as, (9, 4))


def test_a_step_is_chosen(sources, params, tmp_path):
    convert(str(sources / "run"), str(tmp_path / "out"), "t5x", step=6)
    _, zeros = open_t5x(tmp_path / "out", step=6)
    assert not np.any(zeros["decoder"]["logits_dense"]["kernel"])
    with pytest.raises(FileNotFoundError, match="no step 5; the steps there are: 6, 7"):
        convert(str(sources / "run"), str(tmp_path / "other"), "t5x", step=5)
    with pytest.raises(CheckpointError, match="no step 5; the steps there are: 7"):
        convert(str(sources / "t5x"), str(tmp_path / "other"), "t5x", step=5)
    with pytest.raises(CheckpointError, match="no steps to choose from"):
        convert(str(sources / "huggingface"), str(tmp_path / "other"), "t5x", step=5)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("activation", "silu", "decoder.activation"),
        ("relative_attention_max_distance", 64, "decoder.positions.distance"),
        ("pad_id", 3, "pad_id"),
        ("eos_id", 4, "eos_id"),
        ("start_id", 5, "start_id"),
    ],
)
def test_what_t5x_cannot_say_is_refused(field, value, said, params, tmp_path):
    config = changed(CONFIG, **{field: value})
    save_huggingface(tmp_path / "source", config, params)
    with pytest.raises(CheckpointError, match=f"t5x changes {said} from {value!r}"):
        convert(str(tmp_path / "source"), str(tmp_path / "out"), "t5x")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize("form", ["huggingface", "t5x", "orbax"])
def test_weights_that_come_back_changed_are_refused(form, sources, tmp_path, monkeypatch):
    name = {"huggingface": "save_huggingface", "t5x": "save_t5x", "orbax": "save_params"}[form]
    module = conversion if form == "orbax" else conversion.checkpoints
    save = getattr(module, name)

    def changed(directory, config, params, *args):
        params = jax.tree.map(np.array, params)
        params["decoder"]["layers_1"]["mlp"]["wo"]["kernel"] *= 1.01
        save(directory, config, params, *args)

    monkeypatch.setattr(module, name, changed)
    with pytest.raises(CheckpointError, match="not the same network: logits differ by up to"):
        convert(str(sources / "t5x"), str(tmp_path / "out"), form)
    assert {path.name for path in tmp_path.iterdir()} == {"sources"}


@pytest.mark.parametrize("variant", ["gpt", "t5gemma2", "marian"])
def test_a_model_in_fewer_bits_as_a_run_and_back(variant, tmp_path):
    """From several files. Its tokenizer goes with it; float16 keeps what float16 had."""
    config = EVERY[variant]
    params = jax.tree.map(np.asarray, random_params(config, 0))
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    save_huggingface(tmp_path / "whole", config, params, tokenizer, max_shard_bytes=4000)
    assert len(list((tmp_path / "whole").glob("model-*"))) > 1
    for source, out, *form in (
        ("whole", "half", "huggingface", "float16"), ("half", "run", "orbax"),
        ("run", "again", "huggingface"),
    ):  # fmt: skip
        assert convert(str(tmp_path / source), str(tmp_path / out), *form) == 0
    rounded = jax.tree.map(lambda a: a.astype(np.float16).astype(np.float32), params)
    for name, read in (
        ("half", load_huggingface),
        ("run", load_params),
        ("again", load_huggingface),
    ):
        again, found = read(tmp_path / name)
        assert again == config
        jax.tree.map(np.testing.assert_array_equal, found, rounded)
        assert (tmp_path / name / "tokenizer.json").read_text() == "{}"
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "again")]
    assert sizes[0] < 0.7 * sizes[1]


def test_a_gpt_is_no_t5x_checkpoint(tmp_path):
    config = TINY_GPT["gpt"]
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_params(config, 0)))
    with pytest.raises(CheckpointError, match="is no T5, and t5x is for T5s"):
        convert(str(tmp_path / "gpt"), str(tmp_path / "out"), "t5x")
    assert [path.name for path in tmp_path.iterdir()] == ["gpt"]


def test_the_script(sources, params, tmp_path):
    source, out = f"--source={sources / 't5x'}", tmp_path / "out"
    command = [sys.executable, ROOT / "scripts" / "convert.py", source, f"--output_dir={out}"]
    done = subprocess.run([*command, "--format=huggingface"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"Wrote {out}; logits differ by at most 0."
    assert_same(load_huggingface(out), params)

    with pytest.raises(CheckpointError, match=f"{out} exists"):
        convert(str(sources / "t5x"), str(out), "t5x")


def test_shapes_that_do_not_fit_are_refused_by_name(sources, tmp_path):
    path = sources / "run" / "model.json"
    path.write_text(path.read_text().replace('"d_ff": 24', '"d_ff": 25'))
    (sources / "run" / "spiece.model").unlink()
    with pytest.raises(ValueError, match=r"mlp.*w[io]") as caught:
        convert(str(sources / "run"), str(tmp_path / "out"), "t5x")
    assert "25" in str(caught.value)

    path = sources / "huggingface" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_ff": 25}))
    (sources / "huggingface" / "spiece.model").unlink()
    with pytest.raises(CheckpointError, match=r"wi_0.* has shape \(24, 16\), but config.json asks"):
        convert(str(sources / "huggingface"), str(tmp_path / "out"), "t5x")
    assert {path.name for path in tmp_path.iterdir()} == {"sources"}
