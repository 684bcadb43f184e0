"""What reads the files, as a user would have them read.

A reader loads from a copy of a directory of ``GOOD`` and returns a check, to be called once the
file was taken. A check raises Changed where outputs would not follow the target's distribution.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fuzz_good import (
    IDS,
    SETTINGS,
    TEXTS,
    V,
    decoded,
    told,
)
from tiny import TINY

import specdec
from specdec.core.randomness import BlockRandom
from specdec.data.text import BadRow
from specdec.decoding.batches import make_batches
from specdec.drafters.ngram_tables import distribution
from specdec.training import checkpointing

Check = Callable[[], Any]
GREEDY, SAMPLED = specdec.SamplingConfig(0.0), specdec.SamplingConfig(1.0)


class Changed(AssertionError):
    """A file was taken, and what came of it is not what the target says."""


def _drafted(root: Path, draft: Any) -> Check:
    pair = specdec.load_pair(target=root / "target", draft=draft)
    return lambda: exact(pair)


def exact(pair: specdec.Pair) -> None:
    """Greedy tokens are plain decoding's, and each guess was drawn from its q."""
    options = {"max_decode_len": 8, "batch_size": 2, "max_input_len": 16}
    plain = pair.generate(IDS, method="autoregressive", sampling=GREEDY, **options)
    fast = pair.generate(IDS, gamma=2, sampling=GREEDY, **options)
    if [row.tolist() for row in plain.tokens] != [row.tolist() for row in fast.tokens]:
        raise Changed("greedy tokens are not those of plain decoding")
    decoder = pair.decoder(
        method="speculative", gamma=2, sampling=SAMPLED, max_decode_len=8, seed=0
    )
    (batch,) = make_batches([np.array(ids) for ids in IDS], 2, pair.target.model)
    params, *rest = decoder.arguments(batch)
    state = _start(decoder.engine, params, *rest, output_bucket=decoder.output_bucket)
    for _ in range(3):
        tokens, probs, state = _block(decoder.engine, params, state)
        if np.any(state.failed):
            pair.generate(IDS, gamma=2, sampling=SAMPLED, **options)  # Refuses it.
        check_distribution(np.asarray(probs))
        if np.any(np.take_along_axis(np.asarray(probs), np.asarray(tokens)[..., None], -1) <= 0):
            raise Changed("a guess has probability 0 by its own q")


def check_distribution(probs: np.ndarray) -> None:
    """Raises Changed unless the last axis are probabilities."""
    # What a sum of float32 numbers rounds.
    if not np.all(probs >= -1e-6) or not np.all(np.abs(probs.sum(-1, dtype=float) - 1) < 1e-4):
        raise Changed(f"q is no distribution: least {probs.min()}, sums {probs.sum(-1)}")


_start = jax.jit(
    lambda engine, *args, output_bucket: engine.start(*args, output_bucket=output_bucket),
    static_argnums=0, static_argnames="output_bucket",
)  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _block(engine: Any, params: Any, state: Any) -> tuple[Any, Any, Any]:
    """A block's guesses, their q, and the state after it."""
    random = BlockRandom.of(state.row_keys, state.block)
    draft, state = engine.propose(params, state, random)
    scored = engine.score(params, state, draft)
    state, _ = engine.commit(params, state, draft, scored, engine.verify(scored, draft, random))
    return draft.tokens, draft.probs, state


def ngrams(root: Path) -> Check:
    pair = specdec.load_pair(target=root / "target", draft=specdec.Ngram(str(root)))

    def check() -> None:
        contexts = np.stack(np.meshgrid(*[np.arange(V)] * 2), -1).reshape(-1, 2)
        check_distribution(np.asarray(_distribution_of(pair.draft.weights, jnp.asarray(contexts))))
        exact(pair)

    return check


_distribution_of = jax.jit(distribution)


def target(root: Path, source: str = "target", texts: Any = TEXTS) -> Check:
    """A model whose distribution outputs follow, whatever it is: that it decodes is enough."""
    pair = specdec.load_pair(target=root / source, draft=specdec.Copying())
    options = {"max_decode_len": 4, "batch_size": 2, "max_input_len": 64}
    given = texts if pair.vocabulary else IDS
    return lambda: pair.generate(given, method="autoregressive", sampling=GREEDY, **options)


def of_ids(source: str) -> Callable[[Path], Check]:
    return functools.partial(target, source=source, texts=IDS)


def draft_model(root: Path) -> Check:
    return _drafted(root, root / "draft")


def heads(name: str) -> Callable[[Path], Check]:
    return lambda root: _drafted(root, specdec.Heads(str(root / name)))


def training_run(root: Path) -> Check:
    checkpointing.load_params(root / "run")
    checkpointing.load_vocabulary(root / "run")
    return lambda: None


def training_settings(root: Path) -> Check:
    """A run is resumed with the settings that it began with, or is refused."""
    config, vocabulary = TINY["v1.1"], root / "spiece.model"
    checkpointing.prepare_directory(root / "run", config, SETTINGS, vocabulary)
    return lambda: None


def gin_file(root: Path) -> Check:
    """Planned, as by ``--dry_run``. An error names a file or, of a value, the setting."""
    told(*decoded(root, root / "new", dry_run=True))
    return lambda: None


def resumed(root: Path) -> Check:
    """A run that goes on ends with the same rows."""
    good = json.loads((root / "good" / "results.json").read_text())
    told(*decoded(root, root / "out"))

    def check() -> None:
        found = json.loads((root / "out" / "results.json").read_text())
        for name in ("num_tokens", "target_calls", "alpha", "greedy_mismatches", "quality"):
            if found[name] != good[name]:
                raise Changed(f"{name} is {found[name]} after it was {good[name]}")
        lines = (root / "out" / "decodes.jsonl").read_bytes()
        if lines != (root / "good" / "decodes.jsonl").read_bytes():
            raise Changed("the rows are not those of the run that was not damaged")

    return check


def all_rows(open_task: Callable[[Path], Any]) -> Callable[[Path], Check]:
    """A file of texts: each bad row is told in a line that names it, others are one line."""

    def read(root: Path) -> Check:
        found = list(open_task(root).read())

        def check() -> None:
            for row in found:
                bad = isinstance(row, BadRow)
                if bad and (row.origin not in row.reason or "\n" in row.reason):
                    raise Changed(f"a bad row is told so: {row.reason!r}")
                if not bad and set("\r\n\0") & set(row.input):
                    raise Changed(f"a row has {row.input!r}")

        return check

    return read
