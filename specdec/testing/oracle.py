"""The exact oracle: the law of what the real loop emits, without sampling noise.

The real ``speculative.step`` is run on every combination of a block's random numbers, taken from
a grid on which each decision of a small dyadic model is constant inside a cell. Each cell is
represented by one number and weighs its width; the first cell is represented by 0 itself, which is
where ``<`` and ``<=`` differ. States that come out equal in every array (dead cache entries
included) are merged, and the next block starts from each of them, until all rows have ended.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec.decoding import speculative
from specdec.decoding.state import initial_state
from specdec.drafters.base import Drafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.models.base import Model
from specdec.types import Params, Purpose, SamplingConfig, pytree
from specdec.verifiers.base import Verifier

Law = dict[tuple[int, ...], float]
Cells = int | tuple[float, ...]
_ROWS_A_CALL = 1 << 16


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells of [0, 1) for each purpose; every decision must be constant inside each cell.

    A number of equal cells, or the numbers in (0, 1) that part them. For probabilities that are
    multiples of 1/n: ``proposal`` a multiple of n, ``acceptance`` of the numerators of q, ``final``
    of n and of the numerators of the residual's mass. ``inner`` is
    for the numbers of a hierarchical drafter's inner rounds.
    """

    proposal: Cells
    acceptance: Cells
    final: Cells
    inner: Grid | None = None


@pytree
class Tape:
    """A random source that reads prescribed numbers, [B, count] a purpose."""

    proposal: Float[Array, "b g"]
    acceptance: Float[Array, "b g"]
    final: Float[Array, "b 1"]
    inner: Tape | None = None

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """The first ``count`` numbers prescribed for the purpose."""
        if purpose >= Purpose.INNER_PROPOSAL:
            assert self.inner is not None
            return self.inner.uniforms(Purpose(purpose - Purpose.INNER_PROPOSAL), count)
        return {
            Purpose.PROPOSAL: self.proposal,
            Purpose.ACCEPTANCE: self.acceptance,
            Purpose.FINAL: self.final,
        }[purpose][:, :count]


def _cells(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """A number inside each cell, 0 for the first, and the cells' widths."""
    inside = np.arange(1, cells) / cells if isinstance(cells, int) else np.unique(cells)
    edges = np.concatenate([[0], inside, [1]])
    middles = (edges[:-1] + edges[1:]) / 2
    middles[0] = 0.0
    return middles.astype(np.float32), np.diff(edges)


def _axes(grid: Grid, gamma: int, rounds: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each of a block's numbers may be; proposals, acceptances and finals of all rounds."""
    return (
        [_cells(grid.proposal)] * (gamma * rounds)
        + [_cells(grid.acceptance)] * (gamma * rounds)
        + [_cells(grid.final)] * rounds
    )


def _product(axes: list[np.ndarray]) -> np.ndarray:
    """[C, axes], every combination."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


def _tape(numbers: jax.Array, gamma: int, rounds: int = 1) -> Tape:
    """:func:`_axes`' columns by purpose."""
    guesses = gamma * rounds
    return Tape(numbers[:, :guesses], numbers[:, guesses : 2 * guesses], numbers[:, 2 * guesses :])


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


def exact_law(
    model: Model,
    params: Params,
    drafter: Drafter,
    drafter_params: Params,
    verifier: Verifier,
    inputs: np.ndarray,
    *,
    sampling: SamplingConfig,
    limit: int,
    grid: Grid,
) -> list[Law]:
    """The law of the loop's output for each row of ``inputs`` [R, S]: {tokens: probability}.

    Rows are interleaved in the same batch, so that a loop that mixes rows up is found out.

    Raises:
      RuntimeError: if rows have not ended after ``limit`` blocks: a block that emits nothing.
    """
    gamma = drafter.gamma
    axes = _axes(grid, gamma)
    own = len(axes)
    if isinstance(drafter, HierarchicalDrafter):
        assert grid.inner is not None
        axes += _axes(grid.inner, drafter.inner.gamma, gamma)
    combinations = jnp.asarray(_product([numbers for numbers, _ in axes]))
    chances = np.prod(_product([widths for _, widths in axes]), axis=1)
    count = len(combinations)
    rows = jnp.asarray(inputs)
    num_rows = rows.shape[0]
    encoded = model.encode(params, rows)
    state = initial_state(
        model, row_ids=jnp.arange(num_rows), seed=0, limit=limit, output_bucket=limit,
        gamma=gamma, width=gamma + 1, trace=False,
        drafter_state=drafter.init(drafter_params, rows, limit, encoded),
    )  # fmt: skip
    # Scalars and keys would not tile; the tape stands in for the keys.
    state = dataclasses.replace(
        state, block=jnp.zeros(num_rows, jnp.int32), row_keys=jnp.zeros(num_rows)
    )
    bundle = jax.tree.map(np.asarray, (encoded, state))

    @jax.jit
    def run(params, drafter_params, bundle, tape):  # Arguments: constants would be folded, slowly.
        encoded, before = bundle
        before = dataclasses.replace(before, block=jnp.zeros((), jnp.int32))
        after, _ = speculative.step(
            model, drafter, verifier, sampling, limit,
            params, drafter_params, encoded, tape, before,
        )  # fmt: skip
        size = after.finished.shape[0]
        after = dataclasses.replace(
            after, block=jnp.zeros(size, jnp.int32), row_keys=jnp.zeros(size), stats=before.stats
        )
        return encoded, after

    laws: list[Law] = [defaultdict(float) for _ in range(num_rows)]
    weights, owners = np.ones(num_rows), np.arange(num_rows)
    per_call = max(2, _ROWS_A_CALL // count)
    for _ in range(limit):
        merged: dict[tuple[int, int], list[Any]] = {}
        for start in range(0, len(weights), per_call):
            # Always a full call (one compile): the last is filled up with copies of weight 0.
            chosen = np.minimum(np.arange(start, start + per_call), len(weights) - 1)
            chosen_weights = np.where(
                np.arange(start, start + per_call) < len(weights), weights[chosen], 0.0
            )
            batch = _rows(bundle, np.tile(chosen, count))  # Neighbours are different states.
            numbers = jnp.repeat(combinations, per_call, axis=0)
            tape = _tape(numbers[:, :own], gamma)
            if isinstance(drafter, HierarchicalDrafter):
                inner = _tape(numbers[:, own:], drafter.inner.gamma, gamma)
                tape = dataclasses.replace(tape, inner=inner)
            out = jax.tree.map(np.asarray, run(params, drafter_params, batch, tape))
            weight = np.tile(chosen_weights, count) * np.repeat(chances, per_call)
            owner = np.tile(owners[chosen], count)
            # Tokens beyond the end are dead output, rewritten or cut; they are not state.
            after = out[1]
            inside = np.arange(after.tokens.shape[1]) < after.num_tokens[:, None]
            out = (
                out[0], dataclasses.replace(after, tokens=np.where(inside, after.tokens, 0))
            )  # fmt: skip
            prints = _fingerprints([owner, *jax.tree.leaves(out)])
            _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
            mass = np.bincount(inverse, weight)
            for index, m in zip(first, mass, strict=True):
                if m == 0:
                    continue
                key = (int(owner[index]), int(prints[index]))
                if key in merged:
                    merged[key][1] += m
                else:
                    merged[key] = [_rows(out, index), m]
        unfinished = []
        for (owner_id, _), (row, m) in merged.items():
            after = row[1]
            if after.finished:
                laws[owner_id][tuple(int(t) for t in after.tokens[: after.num_tokens])] += m
            else:
                unfinished.append((row, m, owner_id))
        if not unfinished:
            return laws
        bundle = jax.tree.map(lambda *rows: np.stack(rows), *(row for row, _, _ in unfinished))
        weights = np.array([m for _, m, _ in unfinished])
        owners = np.array([owner for _, _, owner in unfinished])
    raise RuntimeError(f"Rows have not ended after {limit} blocks: some block emitted nothing.")


def model_law(
    model: Model,
    params: Params,
    inputs: np.ndarray,
    distribution: Any,
    *,
    limit: int,
) -> list[Law]:
    """The target's own law for each row of ``inputs``, by walking every sequence in float64.

    Args:
      distribution: maps float64 logits [V] to probabilities [V]: an independent standardize.
    """
    laws: list[Law] = []
    for row in np.asarray(inputs):
        encoded = model.encode(params, jnp.asarray(row)[None])
        law: Law = {}

        def walk(prefix, weight, encoded=encoded, law=law):
            if len(prefix) == limit or (prefix and prefix[-1] == model.eos_id):
                law[prefix] = law.get(prefix, 0.0) + weight
                return
            tokens = jnp.asarray([[model.decoder_start_id, *prefix]])
            cache = model.init_cache(1, limit + 1)
            logits, _ = model.extend(params, encoded, cache, tokens)
            probs = distribution(np.asarray(logits, np.float64)[0, -1])
            for token in np.flatnonzero(probs > 0):
                walk((*prefix, int(token)), weight * probs[token])

        walk((), 1.0)
        laws.append(law)
    return laws


def total_variation(one: Law, other: Law) -> float:
    """Half the L1 distance between two laws."""
    return 0.5 * sum(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in {*one, *other})
