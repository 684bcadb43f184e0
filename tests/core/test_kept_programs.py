"""Programs are kept on disk, and what keeps them from it costs one line."""

import os
import subprocess
import sys

import pytest

from specdec.core.kept_programs import VARIABLE, _problem

# Compiles long enough to be kept, and prints the result and how many programs came from disk.
PROGRAM = """
import jax, jax.numpy as jnp
from jax._src import monitoring
hits = []
monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("/cache_hits")))
from specdec.core.compilation import decode_jit
@decode_jit()
def program(x):
    for _ in range(40):
        x = jnp.sort(jnp.sin(x) @ x, axis=0)
    return x
print(bool(jnp.isfinite(program(jnp.eye(3))).all()), sum(hits))
"""


def run(cache, **settings):
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    env |= {"SPECDEC_CACHE": str(cache), "JAX_PLATFORMS": "cpu", **settings}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stderr.splitlines() if "cache" in line.lower()]
    return done.stdout.split(), said


def test_the_next_process_compiles_nothing_even_where_a_file_is_damaged(tmp_path):
    assert run(tmp_path) == (["True", "0"], [])
    kept = [*tmp_path.glob("compiled/*/*-cache")]
    assert len(kept) == 1
    assert run(tmp_path) == (["True", "1"], [])
    assert not (tmp_path / "compiled").stat().st_mode & 0o022
    kept[0].write_bytes(b"damaged")
    result, said = run(tmp_path)
    assert result[0] == "True"
    assert len(said) == 1, said
    assert str(kept[0].name)[:8] in said[0]


def test_jax_s_own_setting_and_the_variable_win(tmp_path):
    own = tmp_path / "own"
    assert run(tmp_path / "specdec", JAX_COMPILATION_CACHE_DIR=str(own))[1] == []
    assert run(tmp_path / "specdec", **{VARIABLE: "0"})[1] == []
    assert not (tmp_path / "specdec").exists()


def test_a_directory_that_cannot_be_made_costs_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result, said = run(tmp_path / "file")
    assert result == ["True", "0"]
    assert len(said) == 1, said
    assert "cannot be made" in said[0]
    assert VARIABLE in said[0]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="of systems with users")
def test_what_others_can_write_is_not_run(tmp_path):
    assert _problem(tmp_path / "mine") is None
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "other users can write" in _problem(tmp_path / "open")
