"""A process keeps a bounded number of programs, and loses no result by it."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import compilation
from specdec.core.compilation import compile_together, decode_jit, num_programs


@pytest.fixture
def traces(monkeypatch):
    """Room for two programs; each tracing of ``times`` is noted."""
    monkeypatch.setattr(compilation, "MAX_PROGRAMS", 2)
    return []


@pytest.fixture
def times(traces):
    @decode_jit(static_argnames=("factor", "shift"))
    def function(x, factor, *, shift=0):
        traces.append((x.shape, factor, shift))
        return x * factor + shift

    return function


def kept():
    return sum(each.jitted._cache_size() for each in compilation._kept.values())


def test_the_program_used_longest_ago_goes(times, traces):
    x = jnp.arange(3.0)
    times(x, 2), times(x, 3)
    times(x, 2)  # Used again: 3 is older now.
    times(x, 4)
    assert kept() == 2
    assert [factor for _, factor, _ in traces] == [2, 3, 4]
    times(x, 2)
    assert len(traces) == 3
    np.testing.assert_array_equal(times(x, 3), 3 * np.arange(3))
    assert [factor for _, factor, _ in traces] == [2, 3, 4, 3]
    assert kept() == 2


def test_shapes_and_settings_count_whoever_keeps_them(times):
    before = num_programs()
    for size in range(1, 6):
        for factor, shift in ((2, 0), (2, 1)):
            expected = np.arange(size) * factor + shift
            got = times(jnp.arange(float(size)), factor, shift=shift)
            np.testing.assert_array_equal(got, expected)
            assert kept() <= 2
    assert num_programs() == before + 10
    times(jnp.arange(5.0), 2, shift=1)
    assert num_programs() == before + 10


def test_functions_share_the_room(times, traces):
    @decode_jit(static_argnames="factor")
    def other(x, factor):
        return x - factor

    x = jnp.ones(2)
    times(x, 2), other(x, 1), other(x, 2)
    assert kept() == 2
    np.testing.assert_array_equal(times(x, 2), [2, 2])
    assert len(traces) == 2


def test_inside_another_program_it_is_a_part_of_that(times):
    before = num_programs()
    assert float(jax.jit(lambda x: times.function(x, 3))(jnp.float32(2))) == 6
    assert num_programs() == before


def test_programs_that_were_compiled_ahead_go_too(times, traces):
    x = jnp.arange(3.0)
    for factor in (2, 3, 4):
        ahead = times.program(jax.ShapeDtypeStruct(x.shape, x.dtype), factor)
        assert not ahead.compiled
        compile_together([ahead])
        assert ahead.compiled
        np.testing.assert_array_equal(times(x, factor), factor * np.arange(3))
        assert kept() <= 2
    assert [factor for _, factor, _ in traces] == [2, 3, 4], "the calls traced nothing"


def test_what_takes_long_is_said_once(monkeypatch):
    said = []
    monkeypatch.setattr(compilation, "say", said.append)
    monkeypatch.setattr(compilation, "ANNOUNCED", 0.01)

    @decode_jit(what="a slow one")
    def slow(x):
        time.sleep(0.1)
        return x + 1

    assert (float(slow(1.0)), float(slow(2.0))) == (2, 3)
    assert len(said) == 1
    assert said[0].startswith("Compiling a slow one.")
    monkeypatch.setattr(compilation, "ANNOUNCED", 60.0)
    slow(jnp.ones(3))
    assert len(said) == 1
