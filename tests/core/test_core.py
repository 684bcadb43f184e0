"""standardize, draw, keys and residuals, each against something written independently."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec.core import platforms
from specdec.core.compilation import decode_jit, num_programs
from specdec.core.randomness import BlockRandom, draw, row_keys
from specdec.core.residuals import acceptance_prob, residual_weights, set_rows, write_at
from specdec.core.standardize import argmax, standardize
from specdec.core.topology import Topology
from specdec.testing.toys import reference_distribution
from specdec.types import Draft, PointMass, Purpose, SamplingConfig

FALSE_ALARM = 1e-6  # Of each statistical test; seeds are fixed, so a pass stays a pass.

CONFIGS = [
    SamplingConfig(1.0),
    SamplingConfig(0.3),
    SamplingConfig(1.7, top_k=5),
    SamplingConfig(1.0, top_p=0.6),
    SamplingConfig(0.8, top_k=9, top_p=0.9),
    SamplingConfig(1.0, top_k=1),
    SamplingConfig(1.0, top_k=500),
    SamplingConfig(1.0, min_p=0.1),
    SamplingConfig(0.6, typical_p=0.5),
    SamplingConfig(1.0, typical_p=0.02),
    SamplingConfig(1.3, 20, 0.9, 0.05, 0.7),
]


EACH_WAY = pytest.mark.parametrize(
    "platform", [platforms.CPU, platforms.TPU], ids=lambda each: each.name
)


@EACH_WAY
@pytest.mark.parametrize("sampling", CONFIGS)
def test_standardize_against_numpy(sampling, platform):
    logits = np.random.default_rng(0).normal(0, 3, (4, 5, 37)).astype(np.float32)
    with platforms.compiling_for(platform):
        got = standardize(jnp.asarray(logits), sampling.traced())
    for i, j in np.ndindex(4, 5):
        truth = reference_distribution(logits[i, j].astype(np.float64), sampling)
        np.testing.assert_allclose(got[i, j], truth, atol=2e-6)


@decode_jit()
def compiled_standardize(logits, sampling):
    return standardize(logits, sampling)


@pytest.mark.parametrize(
    ("vocab", "all_", "platform"),
    [(1, False, platforms.CPU), (2, True, platforms.CPU), (37, False, platforms.TPU),
     (64, True, platforms.CPU), (64, True, platforms.TPU)],
    ids=lambda each: getattr(each, "name", each),
)  # fmt: skip
def test_standardize_with_any_numbers_in_one_program(vocab, all_, platform):
    """As static numbers would: many settings, half of them on logits full of ties."""
    with platforms.compiling_for(platform):
        check_any_numbers(vocab, all_)


def check_any_numbers(vocab, all_):
    rng = np.random.default_rng(vocab)
    before = num_programs()
    for i in range(100):
        sampling = SamplingConfig(
            float(np.exp(rng.uniform(-3, 2))), int(rng.integers(0, vocab + 3)),
            float(rng.choice([1.0, rng.uniform(0.01, 1)])),
            *((float(rng.uniform(0.001, 0.6)), float(rng.uniform(0.01, 0.99))) if all_ else ()),
        )  # fmt: skip
        ties = rng.integers(-2, 3, (2, 3, vocab))
        logits = (ties if i % 2 else rng.normal(0, 3, ties.shape)).astype(np.float32)
        got = compiled_standardize(logits, sampling.traced())
        for at in np.ndindex(2, 3):
            truth = reference_distribution(logits[at].astype(np.float64), sampling)
            np.testing.assert_allclose(got[at], truth, atol=3e-6, err_msg=str(sampling))
    assert num_programs() == before + 1


@pytest.mark.parametrize(
    ("function", "temperature"),
    [*((compiled_standardize, t) for t in (1e-3, 1e-8, 1e-38, 1e-46)), (standardize, 1e-8)],
)
def test_at_a_tiny_temperature_all_is_on_the_largest(temperature, function):
    """Logits in tens, and as far apart as a model can have them; ties share."""
    rng = np.random.default_rng(0)
    for size in (37, 64):
        logits = np.stack([rng.permutation(size) * scale for scale in (0.5, 1e4)])
        logits = np.stack([logits, logits - 1e5]).astype(np.float32)
        for sampling in (
            SamplingConfig(temperature), SamplingConfig(temperature, 5, 0.9),
            SamplingConfig(temperature, top_p=0.3),
            SamplingConfig(temperature, min_p=0.1, typical_p=0.5),
        ):  # fmt: skip
            got = np.asarray(function(jnp.asarray(logits), sampling.traced()))
            np.testing.assert_array_equal(got, np.eye(size)[logits.argmax(-1)])
        two = np.where(np.arange(size) % 7 == 3, 2.5, 1.0).astype(np.float32)[None, None]
        got = np.asarray(function(jnp.asarray(two), SamplingConfig(temperature).traced()))
        np.testing.assert_allclose(got, (two == 2.5) / (two == 2.5).sum(), rtol=1e-6)


@EACH_WAY
def test_greedy_standardize_is_the_first_argmax(platform):
    logits = np.random.default_rng(0).integers(0, 4, (3, 7, 50)).astype(np.float32)  # Many ties.
    with platforms.compiling_for(platform):
        got = standardize(jnp.asarray(logits), SamplingConfig(0.0).traced())
    assert isinstance(got, PointMass)
    np.testing.assert_array_equal(got.tokens, np.argmax(logits, -1))


@EACH_WAY
def test_argmax_of_nan_is_a_token(platform):
    with platforms.compiling_for(platform):
        assert 0 <= int(argmax(jnp.full((1, 5), jnp.nan))[0]) < 5


@pytest.mark.parametrize("vocab", [3, 200])
def test_draw_inverts_the_cdf_exactly(vocab):
    """Over a fine grid of uniforms each token gets its own share, and zeros get none."""
    weights = np.random.default_rng(vocab).exponential(size=vocab).astype(np.float32)
    weights[[0, vocab // 2]] = 0
    count = 50_000
    uniforms = (np.arange(count, dtype=np.float64) / count).astype(np.float32)
    tiled = jnp.broadcast_to(jnp.asarray(weights), (count, vocab))
    tokens = np.asarray(jax.jit(draw)(tiled, jnp.asarray(uniforms)))
    share = np.bincount(tokens, minlength=vocab) / count
    np.testing.assert_allclose(share, weights / weights.sum(), atol=5e-5)
    assert share[0] == share[vocab // 2] == 0


def test_draw_at_the_ends():
    weights = jnp.array([[0.0, 0.0, 2.0, 0.0, 3.0, 0.0]] * 2)
    tokens = draw(weights, jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0))]))
    np.testing.assert_array_equal(tokens, [2, 4])


def test_uniforms_are_uniform_and_independent_across_rows_blocks_and_purposes():
    """Chi-square on 16 x 16 cells of every pair of streams; false-alarm rate 1e-6 each."""
    keys = row_keys(0, jnp.arange(20_000))
    zero = jnp.zeros((20_000,), jnp.int32)
    first, second = BlockRandom.of(keys, zero), BlockRandom.of(keys, zero + 1)
    streams = [
        first.uniforms(Purpose.PROPOSAL, 1),
        first.uniforms(Purpose.ACCEPTANCE, 1),
        first.uniforms(Purpose.FINAL, 1),
        second.uniforms(Purpose.PROPOSAL, 1),
        BlockRandom.of(row_keys(1, jnp.arange(20_000)), zero).uniforms(Purpose.PROPOSAL, 1),
        jnp.roll(first.uniforms(Purpose.PROPOSAL, 1), 1, axis=0),
    ]
    cells = [np.asarray(s[:, 0] * 16).astype(int) for s in streams]
    for i in range(len(cells)):
        for j in range(i):
            counts = np.bincount(cells[i] * 16 + cells[j], minlength=256)
            assert stats.chisquare(counts).pvalue > FALSE_ALARM, (i, j)


def test_a_row_keeps_its_numbers_whatever_its_place():
    block = jnp.array([3, 1, 4, 1])
    all_rows = BlockRandom.of(row_keys(5, jnp.arange(4)), block).uniforms(Purpose.FINAL, 2)
    some = BlockRandom.of(row_keys(5, jnp.array([2, 0])), block[jnp.array([2, 0])])
    some = some.uniforms(Purpose.FINAL, 2)
    np.testing.assert_array_equal(some, all_rows[jnp.array([2, 0])])


@pytest.mark.parametrize("platform", platforms.PLATFORMS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("batch", [3, 40])
def test_rows_are_set_where_each_is(platform, batch):
    """By the definition, entry by entry; 40 rows are more than a TPU writes apart."""
    rng = np.random.default_rng(batch)
    rows, new = rng.normal(size=(batch, 2, 9, 3)), rng.normal(size=(batch, 2, 4, 3))
    at, count = rng.integers(0, 6, batch), rng.integers(0, 5, batch)
    whole, part = rows.copy(), np.moveaxis(rows, 2, 1).copy()
    for b in range(batch):
        whole[b, :, at[b] : at[b] + 4] = new[b]
        part[b, at[b] : at[b] + count[b]] = np.moveaxis(new, 2, 1)[b, : count[b]]
    with platforms.compiling_for(platform):
        got = jax.jit(lambda *a: set_rows(*a, axis=2))(rows, new, at)
        some = jax.jit(write_at)(np.moveaxis(rows, 2, 1), np.moveaxis(new, 2, 1), at, count)
    np.testing.assert_array_equal(got, whole.astype(np.float32))
    np.testing.assert_array_equal(some, part.astype(np.float32))


def test_residual():
    p, q = jnp.array([[0.5, 0.3, 0.2]]), jnp.array([[0.2, 0.2, 0.6]])
    np.testing.assert_allclose(residual_weights(p, q, jnp.array([2])), [[0.3, 0.1, 0.0]], atol=1e-7)
    np.testing.assert_allclose(residual_weights(p, None, jnp.array([0])), [[0.0, 0.3, 0.2]])
    np.testing.assert_allclose(residual_weights(p, p, jnp.array([0])), p)  # No mass left: p.


def by_hand(p, tokens, q, relative, lenience):
    """beta at one place in float64: sum_x q(x) min(1, p(x) / (l q(x)))."""
    size = len(p)
    distribution = np.eye(size)[tokens] if q is None else q.astype(np.float64)
    if relative is not None:
        allowed = relative >= lenience if lenience < 1 else p == 1
        return distribution[allowed].sum()
    accepted = [
        min(1.0, p[x] / (lenience * distribution[x])) * distribution[x]
        for x in range(size)
        if distribution[x]
    ]
    return sum(accepted)


@pytest.mark.parametrize("lenience", [1.0, 0.3])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "point mass"])
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_acceptance_prob(lenience, drawn, greedy):
    batch, gamma, size = 5, 3, 6
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.full(size, 0.5), (batch, gamma + 1)).astype(np.float32)
    q = rng.dirichlet(np.full(size, 0.5), (batch, gamma)).astype(np.float32)
    tokens = rng.integers(0, size, (batch, gamma))
    relative = p / p.max(-1, keepdims=True)
    target = jnp.asarray(p)
    if greedy:
        target = PointMass(jnp.asarray(p.argmax(-1)), jnp.asarray(relative))
    draft = Draft(jnp.asarray(tokens), jnp.asarray(q) if drawn else None, Topology.chain(gamma))
    found = acceptance_prob(target, draft, lenience)
    assert found.shape == (batch, gamma)
    for b, i in np.ndindex(batch, gamma):
        expected = by_hand(
            np.eye(size)[p[b, i].argmax()] if greedy else p[b, i].astype(np.float64),
            tokens[b, i], q[b, i] if drawn else None, relative[b, i] if greedy else None, lenience,
        )  # fmt: skip
        assert float(found[b, i]) == pytest.approx(expected, abs=1e-6)
