"""``--dry_run``: what a decoding run would keep in memory, and how fast theory says it is.

Shapes only: no weights, data or vocabulary are read, and nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import gin
import jax
import jax.numpy as jnp

from specdec.checkpoints import CheckpointError, is_t5x, ngrams, read_config
from specdec.checkpoints.loading import BUNDLED, resolve
from specdec.core.theory import speedup
from specdec.decoding.batches import bucket
from specdec.drafts import Hierarchical, Ngram
from specdec.evaluation import paper
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.network import init_params
from specdec.runs import gin_files
from specdec.runs.decode import DecodeRun

SHAPES = "configs/shapes"
# Public checkpoints, by the start of their names on the Hugging Face Hub, and their shapes' files.
FAMILIES = {"t5-v1_1": "t5_1_1", "flan-t5": "t5_1_1", "t5": "t5_1_0"}
LABELS = (
    "", "shape from", "parameters", "of them read in a decode step", "all parameters",
    "self-attention cache", "cross-attention keys and values", "logits of one call",
    "together, without activations",
)  # fmt: skip
_PUBLIC = re.compile(rf"({'|'.join(FAMILIES)})-(\w+)")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What one model of a run takes.

    Attributes:
      parameters: of the whole model.
      step_parameters: those that a decode step reads: the decoder's and the logits', without the
        cross-attention's keys and values, which are computed once, and the embedding's few rows.
      weights, cache, cross, logits: bytes of all parameters, of the self-attention cache, of the
        cross-attention's keys and values, and of one call's logits.
    """

    parameters: int
    step_parameters: int
    weights: int
    cache: int
    cross: int
    logits: int

    @property
    def total(self) -> int:
        """All bytes; activations come on top."""
        return self.weights + self.cache + self.cross + self.logits


@functools.cache
def count_parameters(config: T5Config) -> tuple[int, int]:
    """A model's parameters, and those that a decode step reads (see :class:`Sizes`)."""
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    decoder = params["decoder"]
    layers = [decoder[f"layers_{i}"] for i in range(config.num_decoder_layers)]
    crosses = [layer["encoder_decoder_attention"] for layer in layers]
    once = [(cross["key"], cross["value"]) for cross in crosses]
    logits = params["token_embedder"] if config.tied_logits else ()
    return _size(params), _size(decoder) - _size(once) + _size(logits)


def _size(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def sizes(config: T5Config, run: DecodeRun, call: int) -> Sizes:
    """What a model takes whose largest call scores ``call`` tokens of a row."""
    config = dataclasses.replace(config, dtype=run.dtype)
    model = T5Model(config)
    parameters, step_parameters = count_parameters(config)

    def cache_bytes(length: int) -> int:
        cache = jax.eval_shape(lambda: model.init_cache(run.batch_size, length))
        return sum(a.size * a.dtype.itemsize for a in (*cache.keys, *cache.values))

    return Sizes(
        parameters,
        step_parameters,
        weights=parameters * model.dtype.itemsize,
        cache=cache_bytes(bucket(run.max_decode_len) + _guesses(run) + 1),
        cross=cache_bytes(bucket(run.max_input_len)),  # It is shaped as a cache of the inputs is.
        logits=run.batch_size * call * config.vocab_size * jnp.dtype("float32").itemsize,
    )


def _guesses(run: DecodeRun) -> int:
    return 0 if run.gamma == "auto" else run.guesses


def find_config(source: str, root: Path) -> tuple[T5Config, str]:
    """A checkpoint's shape and where it is from: its own, or configs/shapes for public ones.

    Replaces gin's configuration.

    Args:
      source: a directory, or a path or hub id that ends in a public checkpoint's name.
      root: where ``configs/`` is.

    Raises:
      CheckpointError: it is neither, or it is damaged.
    """
    if is_t5x(source):
        return read_config(source), "its shapes"
    if Path(source).is_dir():
        return read_config(source), "config.json"
    public = _PUBLIC.fullmatch(Path(source).name)
    if public is None:
        raise CheckpointError(
            f"{source} is neither a directory nor named as a public T5 of known shape, such as "
            "google/t5-v1_1-xxl, google-t5/t5-11b or google/flan-t5-xl."
        )
    name = f"{FAMILIES[public[1]]}_{public[2]}"
    file = f"{SHAPES}/{name}.gin"
    if not (root / file).is_file():
        known = sorted(path.stem for path in (root / SHAPES).glob(f"{FAMILIES[public[1]]}_*"))
        raise CheckpointError(f"{source}: {SHAPES} has no {name}, only {', '.join(known)}.")
    gin_files.parse([str(root / file)], [], root)
    with gin.config_scope(name):
        return gin.get_configurable(T5Config)(), file


def find_row(task_and_draft: tuple[str, str], temperature: float) -> paper.Table4Row | None:
    """The row of the paper's Table 4; None if it has none for the temperature.

    Raises:
      ValueError: it has no such task and draft.
    """
    rows = [row for row in paper.TABLE_4 if (row.task, row.draft) == task_and_draft]
    if not rows:
        known = sorted({(row.task, row.draft) for row in paper.TABLE_4})
        raise ValueError(f"PAPER_ROW must be one of {known}, got {task_and_draft!r}.")
    return next((row for row in rows if row.temperature == temperature), None)


def report(run: DecodeRun, root: Path, paper_row: tuple[str, str] | None = None) -> str:
    """The table that ``--dry_run`` prints.

    Args:
      run: its task is not looked at.
      root: where ``configs/`` is.
      paper_row: task and draft of the paper's Table 4 that the run repeats.

    Raises:
      ValueError: a shape is not known or damaged (CheckpointError), or there is no such row.
    """
    row = None if paper_row is None else find_row(paper_row, run.sampling.temperature)
    config, found = find_config(resolve(run.target, "target"), root)
    target = sizes(config, run, _guesses(run) + 1)
    columns = [LABELS, (run.target, found, *_cells(target))]
    lines = []
    model = run.draft.draft if isinstance(run.draft, Hierarchical) else run.draft
    if isinstance(model, str):
        config, found = find_config(resolve(model, "draft"), root)
        draft = sizes(config, run, 2)  # A block's first draft call always feeds two tokens.
        columns.append((model, found, *_cells(draft)))
        lines.append(f"target and draft together {_bytes(target.total + draft.total)}")
        if _guesses(run):
            lines += _speed(draft.step_parameters / target.step_parameters, run, row)
    tables = run.draft.inner if isinstance(run.draft, Hierarchical) else run.draft
    if isinstance(tables, Ngram):
        lines.insert(0, f"n-gram tables {_bytes(_tables_file(tables.path).stat().st_size)}")
    title = (
        f"{run.target} drafted by {run.draft}: {run.method}, gamma {run.gamma}, temperature "
        f"{run.sampling.temperature:g}, batch size {run.batch_size}, {run.dtype}"
    )
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in zip(*columns, strict=True)
    ]
    return "\n".join([title, "", *table, "", *lines])


def _tables_file(path: str) -> Path:
    file = Path(resolve(path, "draft")).parent if path in BUNDLED else Path(path)
    file = file / ngrams.FILE_NAME if file.is_dir() else file
    if not file.is_file():
        raise CheckpointError(f"No n-gram tables at {file}.")
    return file


def _cells(sizes: Sizes) -> tuple[str, ...]:
    counts = (f"{count / 1e6:,.1f} M" for count in (sizes.parameters, sizes.step_parameters))
    amounts = (sizes.weights, sizes.cache, sizes.cross, sizes.logits, sizes.total)
    return (*counts, *map(_bytes, amounts))


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def _speed(floor: float, run: DecodeRun, row: paper.Table4Row | None) -> list[str]:
    """What theory and the paper say; ``floor`` is c if a step takes the time to read weights."""
    assert run.gamma != "auto"
    if row is None:
        return [f"c is {floor:.3f} or more: the ratio of what decode steps read"]
    cases = ((row.cost_ratio, "the paper's"), (floor, "the ratio of what decode steps read"))
    return [
        f"speedup by Theorem 3.8 at the paper's alpha for {row.task}, T5-XXL and {row.draft}, "
        f"{row.alpha:.2f}:",
        *(
            f"  {speedup(row.alpha, run.gamma, c):.2f}  at c = {c:.3f}, {which}"
            for c, which in cases
        ),
        f"in the paper, at gamma {row.gamma}: {row.expected} expected, {row.empirical} measured",
    ]
