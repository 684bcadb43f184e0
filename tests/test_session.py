"""What tests compile and cache stays within the session (tests/conftest.py)."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from said import said

from specdec.core.compilation import decode_jit
from specdec.core.machine import cache_directory

CODE = """
import jax, jax.numpy as jnp
from specdec.core.compilation import decode_jit

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
{program}
print("/jax/compilation_cache/cache_hits" in events)
"""
PROGRAM = """
@decode_jit(static_argnames=())
def only_in_test_session(x):
    return jax.lax.while_loop(lambda x: x[0, 0] < 5, lambda x: x @ x + 1.5, x)

only_in_test_session(jnp.ones((3, 3)))
"""


def test_processes_share_compiled_programs():
    """With the options of decodes; and loading a program says nothing on stderr."""
    exec(PROGRAM, {"jax": jax, "jnp": jnp, "decode_jit": decode_jit})
    code = CODE.format(program=PROGRAM)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), said(done.stderr)) == (0, "True", "")


def test_caches_are_the_sessions_own():
    session = Path(os.environ["SPECDEC_TEST_SESSION"])
    assert cache_directory().is_relative_to(session)
    assert jax.config.jax_compilation_cache_dir == os.environ["JAX_COMPILATION_CACHE_DIR"]
