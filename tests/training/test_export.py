"""scripts/export.py: a training run as a Hugging Face directory."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import load_huggingface
from specdec.models.t5.network import init_params
from specdec.training.checkpointing import Checkpointer, prepare_directory

ROOT = Path(__file__).resolve().parents[2]


def export(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "export.py", *arguments],
        capture_output=True,
        text=True,
    )


def test_exports_the_latest_checkpoint(tmp_path, tiny_model, data_directory):
    run = tmp_path / "run"
    prepare_directory(run, tiny_model, {}, data_directory / "spiece.model")
    checkpointer = Checkpointer(run)
    for step in (1, 2):
        params = init_params(tiny_model, jax.random.key(step))
        checkpointer.save(step, params, {"count": jnp.zeros(())})
    checkpointer.close()

    done = export(f"--run_dir={run}", f"--output_dir={tmp_path / 'out'}", "--dtype=float16")
    assert done.returncode == 0, done.stderr
    config, loaded = load_huggingface(tmp_path / "out")
    assert config.d_model == tiny_model.d_model
    assert config.dtype == "float32"
    assert (tmp_path / "out" / "spiece.model").is_file()
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)

    missing = export(f"--run_dir={tmp_path / 'nothing'}", f"--output_dir={tmp_path / 'other'}")
    assert missing.returncode != 0
    assert missing.stderr.strip().splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "other").exists()
