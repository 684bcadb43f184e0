"""The exact oracle: the distribution of what the real loop emits, without sampling noise.

The real ``Engine.step`` is run on every combination of a block's random numbers, taken from a grid
on which each decision of a small dyadic model is constant inside a cell. Each cell is represented
by one number and weighs its width; the first cell is represented by 0 itself, which is where ``<``
and ``<=`` differ. States that come out equal in every array (dead cache entries
included) are merged, and the next block starts from each of them, until all rows have ended.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.decoding.engine import Engine, EngineParams
from specdec.models.base import Model
from specdec.types import DecodeState, Params, Prompt, Purpose

JointDistribution = dict[tuple[int, ...], float]
Cells = int | tuple[float, ...]
_ROWS_A_CALL = 1 << 13


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells of [0, 1) by purpose; every decision must be constant inside each cell.

    A number of equal cells, or the numbers in (0, 1) that part them. For probabilities that are
    multiples of 1/n: ``proposal`` a multiple of n, ``acceptance`` of the numerators of q, ``final``
    of n and of the numerators of the residual's mass. ``inner`` is for a hierarchical drafter's
    inner rounds. ``first`` stands for the first cell of acceptances and finals: 0, or a little more
    where rounding may leave 1e-7 of what is nothing, as renormalised residuals do.
    """

    proposal: Cells
    acceptance: Cells
    final: Cells
    inner: Grid | None = None
    first: float = 0.0


@pytree
class Tape:
    """A random source that reads prescribed numbers, [B, count] a purpose."""

    values: dict[Purpose, Float[Array, "b count"]]

    @classmethod
    def of(
        cls, proposal: Float[Array, "b g"], acceptance: Float[Array, "b g"],
        final: Float[Array, "b 1"],
    ) -> Tape:  # fmt: skip
        """Numbers for a verifier alone."""
        return cls(dict(zip(Purpose, (proposal, acceptance, final), strict=False)))

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """The first ``count`` numbers prescribed for the purpose."""
        assert self.values[purpose].shape[1] >= count
        return self.values[purpose][:, :count]


class _Counter:
    """A random source that notes how many numbers are asked for."""

    def __init__(self, rows: int):
        self.rows, self.counts = rows, {}

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        assert self.counts.setdefault(purpose, count) == count
        return jnp.zeros((self.rows, count))


def _cells(cells: Cells, first: float) -> tuple[np.ndarray, np.ndarray]:
    """A number inside each cell, and the cells' widths."""
    inside = np.arange(1, cells) / cells if isinstance(cells, int) else np.unique(cells)
    edges = np.concatenate([[0], inside, [1]])
    middles = (edges[:-1] + edges[1:]) / 2
    middles[0] = first
    return middles.astype(np.float32), np.diff(edges)


def _cells_of(grid: Grid, purpose: Purpose) -> tuple[np.ndarray, np.ndarray]:
    if purpose >= Purpose.INNER_PROPOSAL:
        assert grid.inner is not None
        grid, purpose = grid.inner, Purpose(purpose - Purpose.INNER_PROPOSAL)
    cells = (grid.proposal, grid.acceptance, grid.final)[purpose]
    return _cells(cells, 0.0 if purpose == Purpose.PROPOSAL else grid.first)


def _product(axes: list[np.ndarray]) -> np.ndarray:
    """[C, axes], every combination."""
    count = int(np.prod([len(axis) for axis in axes], dtype=np.int64))
    grids = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    return np.stack(grids, axis=1) if grids else np.zeros((count, 0), np.float32)


def _tape(uniforms: jax.Array, counts: dict[Purpose, int]) -> Tape:
    """The columns by purpose."""
    ends = np.cumsum(list(counts.values()))
    parts = jnp.split(uniforms, ends[:-1], axis=1)[: len(counts)]
    return Tape(dict(zip(counts, parts, strict=True)))


def _fingerprints(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """A 64-bit hash of each row across all leaves."""
    generator = np.random.default_rng(0)
    rows = leaves[0].shape[0]
    total = np.zeros(rows, np.uint64)
    for leaf in leaves:
        words = np.ascontiguousarray(leaf).reshape(rows, -1)
        words = words.astype(np.uint64) if words.dtype == bool else words.view(np.uint32)
        factors = generator.integers(1, 2**63, words.shape[1], np.uint64) | np.uint64(1)
        mixed = (words.astype(np.uint64) + np.uint64(1)) * factors
        total += (mixed ^ (mixed >> np.uint64(29))).sum(axis=1, dtype=np.uint64)
    return total


def _rows(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _tileable(state: DecodeState) -> DecodeState:
    """Without what has no row of its own: the tape stands in for keys, and counts do not matter."""
    nothing = jnp.zeros((len(state.finished), 0))
    return dataclasses.replace(state, block=nothing, limit=nothing, row_keys=nothing, stats=nothing)


# One program for all tables of an engine: parameters are arguments.
@functools.partial(jax.jit, static_argnames=("engine", "limit"))
def _start(engine: Engine, params: EngineParams, prompt: Prompt, limit: int) -> DecodeState:
    rows = jnp.arange(prompt.batch_size)
    return engine.start(params, prompt, rows, limit, 0, output_bucket=limit)


@functools.partial(jax.jit, static_argnames=("engine", "limit"))
def _step(engine, params, state: DecodeState, tape, like: DecodeState, limit) -> DecodeState:
    """One block of tileable states; ``like`` lends what they lack."""
    rows = len(state.finished)
    stats = jax.tree.map(lambda a: jnp.zeros((rows, *a.shape[1:]), a.dtype), like.stats)
    whole = dataclasses.replace(
        state, block=jnp.int32(0), limit=jnp.int32(limit), row_keys=jnp.zeros(rows), stats=stats
    )
    return _tileable(engine.step(params, whole, tape)[0])


def exact_distribution(
    engine: Engine, params: EngineParams, prompt: Prompt, *, limit: int, grid: Grid,
    rows_a_call: int = _ROWS_A_CALL,
) -> list[JointDistribution]:  # fmt: skip
    """The distribution of the loop's output for each row of ``prompt``: {tokens: probability}.

    Rows are interleaved in the same batch, so that a loop that mixes rows up is found out.

    Args:
      rows_a_call: in each call of the step, at least two states' worth; a network wants fewer.

    Raises:
      RuntimeError: if rows have not ended after ``limit`` blocks: a block that emits nothing.
    """
    num_rows = prompt.batch_size
    begin = _start(engine, params, prompt, limit)
    counter = _Counter(num_rows)
    jax.eval_shape(lambda: engine.step(params, begin, counter))
    counts = dict(sorted(counter.counts.items()))
    axes = [_cells_of(grid, purpose) for purpose, n in counts.items() for _ in range(n)]
    combinations = jnp.asarray(_product([uniforms for uniforms, _ in axes]))
    chances = np.prod(_product([widths for _, widths in axes]), axis=1)
    count = len(combinations)
    states = jax.tree.map(np.asarray, _tileable(begin))

    distributions: list[JointDistribution] = [defaultdict(float) for _ in range(num_rows)]
    weights, owners = np.ones(num_rows), np.arange(num_rows)
    per_call = max(2, rows_a_call // count)
    tape = _tape(jnp.repeat(combinations, per_call, axis=0), counts)
    for _ in range(limit):
        merged: dict[tuple[int, int], list[Any]] = {}
        for start in range(0, len(weights), per_call):
            # Always a full call (one compile): the last is filled up with copies of weight 0.
            positions = np.arange(start, start + per_call)
            chosen = np.minimum(positions, len(weights) - 1)
            chosen_weights = np.where(positions < len(weights), weights[chosen], 0.0)
            batch = _rows(states, np.tile(chosen, count))  # Neighbours are different states.
            after = jax.tree.map(np.asarray, _step(engine, params, batch, tape, begin, limit))
            weight = np.tile(chosen_weights, count) * np.repeat(chances, per_call)
            owner = np.tile(owners[chosen], count)
            # Tokens beyond the end are dead output, rewritten or cut; they are not state.
            inside = np.arange(after.tokens.shape[1]) < after.num_tokens[:, None]
            after = dataclasses.replace(after, tokens=np.where(inside, after.tokens, 0))
            prints = _fingerprints([owner, *jax.tree.leaves(after)])
            _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
            mass = np.bincount(inverse, weight)
            for index, m in zip(first, mass, strict=True):
                key = (int(owner[index]), int(prints[index]))
                if key in merged:
                    merged[key][1] += m
                elif m > 0:
                    merged[key] = [_rows(after, index), m]
        unfinished = []
        for (owner_id, _), (row, m) in merged.items():
            if row.finished:
                distributions[owner_id][tuple(int(t) for t in row.tokens[: row.num_tokens])] += m
            else:
                unfinished.append((row, m, owner_id))
        if not unfinished:
            return distributions
        rows, *others = zip(*unfinished, strict=True)
        states = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        weights, owners = map(np.array, others)
    raise RuntimeError(f"Rows have not ended after {limit} blocks: some block emitted nothing.")


@functools.partial(jax.jit, static_argnames="model")
def _all_logits(
    model: Model, params: Params, prompt: Prompt, tokens: Int[Array, "c l"]
) -> Float[Array, "c l v"]:
    """Logits after the prompt's only row and each prefix of each of ``tokens``."""
    repeated = jax.tree.map(lambda a: jnp.repeat(a, len(tokens), axis=0), prompt)
    start = model.start(params, repeated, tokens.shape[1] + 1)
    block = jnp.concatenate([start.last_token[:, None], tokens], axis=1)
    hidden, _ = model.extend(params, start.encoded, start.cache, block)
    return model.logits(params, hidden)


Adjust = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


def _as_they_are(logits: np.ndarray, output: tuple[int, ...]) -> np.ndarray:
    del output
    return logits


def model_distribution(
    model: Model, params: Params, prompt: Prompt,
    distribution: Callable[[np.ndarray], np.ndarray], *, limit: int, adjust: Adjust = _as_they_are,
    ends: Callable[[tuple[int, ...]], bool] = lambda output: False,
) -> list[JointDistribution]:  # fmt: skip
    """The target's own distribution for each row of ``prompt``: every sequence, in float64.

    Args:
      distribution: float64 logits [V] to probabilities [V], an independent standardize.
      adjust: a rule, written independently: logits behind an output, and that output.
      ends: whether an output ends though its last token is no EOS.
    """
    every = list(itertools.product(range(model.vocab_size), repeat=limit - 1))
    tokens = jnp.asarray(every, jnp.int32).reshape(len(every), limit - 1)
    distributions: list[JointDistribution] = []
    for row in range(prompt.batch_size):
        logits = _all_logits(model, params, _rows(prompt, np.array([row])), tokens)
        logits = np.asarray(logits, np.float64)
        joint: JointDistribution = {}

        def walk(prefix, weight, logits=logits, joint=joint):
            done = prefix and (prefix[-1] in model.eos_ids or ends(prefix))
            if len(prefix) == limit or done:
                joint[prefix] = joint.get(prefix, 0.0) + weight
                return
            # The first sequence that begins so: the others' entries are 0.
            at = sum(t * model.vocab_size ** (limit - 2 - i) for i, t in enumerate(prefix))
            probs = distribution(adjust(logits[at, len(prefix)], prefix))
            for token in np.flatnonzero(probs > 0):
                walk((*prefix, int(token)), weight * probs[token])

        walk((), 1.0)
        distributions.append(joint)
    return distributions


def total_variation(one: JointDistribution, other: JointDistribution) -> float:
    """Half the L1 distance between two distributions."""
    return 0.5 * sum(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in {*one, *other})
