"""Tasks of a run: texts to decode, with references where there are any."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from specdec.checkpoints.loading import bundled
from specdec.core.arguments import choice, whole
from specdec.data.text import BadRow, existing_file, fields_of, pair_of, read_pairs, stream_lines
from specdec.text.base import Tokenizer
from specdec.text.vocabulary import Vocabulary

T = TypeVar("T")
Metrics = Callable[[Sequence[str], Sequence[str]], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Example:
    """One text to decode."""

    input: str  # Blank only where a model is to generate from nothing.
    reference: str | None  # A person's output; None where there is none.
    origin: str  # Where it came from, for messages ("talk.txt:12").
    tokens: tuple[int, ...] | None = None  # With EOS, where the task itself tokenizes and cuts.
    given: tuple[str, ...] = ()  # Texts that a draft may follow.


@dataclasses.dataclass(frozen=True)
class Task:
    """Named rows, in order; a row's id is its index, bad ones counted.

    Attributes:
      read: opens the rows, the same ones in the same order each time, and holds none of them.
      metrics: from outputs and references to scores, for a task that has its own.
    """

    name: str
    read: Callable[[], Iterator[Example | BadRow]]
    metrics: Metrics | None = None

    @classmethod
    def of(
        cls, name: str, rows: Iterable[Example | BadRow], metrics: Metrics | None = None
    ) -> Task:
        """A task of these rows."""
        held = tuple(rows)
        return cls(name, lambda: iter(held), metrics)

    @functools.cached_property
    def examples(self) -> tuple[Example, ...]:
        """All rows at once; raises ValueError where one is bad."""
        return tuple(map(good, self.read()))


def good(row: Example | BadRow) -> Example:
    """The row itself; raises ValueError for a bad one."""
    if isinstance(row, BadRow):
        raise ValueError(row.reason)
    return row


def model_inputs(
    examples: Sequence[Example], vocabulary: Tokenizer | None
) -> list[str | tuple[int, ...]]:
    """Inputs of a model: an example's ids where its task made them, else its text.

    Raises:
      ValueError: a task's ids are not those of the model's ``vocabulary``.
    """
    for example in examples:
        if example.tokens is None or vocabulary is None:
            continue
        # Not id by id: of equally likely pieces, libraries take one or the other. A cut may leave a
        # part of a character behind.
        own = vocabulary.decode(vocabulary.encode(example.input))
        if not own.startswith(vocabulary.decode(example.tokens).rstrip("\ufffd")):
            raise ValueError(
                f"{example.origin}: the task's vocabulary is not the model's, {vocabulary.path}; "
                "give the task that one."
            )
    return [example.tokens or example.input for example in examples]


def evenly(items: Sequence[T], count: int) -> Sequence[T]:
    """``count`` of the items (or all, if they are fewer), evenly spread over their order.

    Data sets are often sorted by length, so the first items are not typical.
    """
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def given_texts(texts: Sequence[str]) -> Task:
    """The task "text": each string is a row, a blank one is a bad row."""

    def row(text: str, origin: str) -> Example | BadRow:
        empty = not text.strip()
        return BadRow(origin, f"{origin} is empty.") if empty else Example(text, None, origin)

    return Task.of("text", [row(text, f"text {i}") for i, text in enumerate(texts)])


def text_file(path: str | os.PathLike) -> Task:
    """A UTF-8 file with one text a line; the task is named after the file.

    A line that is blank or not UTF-8 is a bad row.

    Raises:
      FileNotFoundError, ValueError: there is no such file, or it is empty.
    """
    path = existing_file(path)

    def parse(line: str) -> tuple[str, None]:
        if not line.strip():
            raise ValueError("the line is blank.")
        return line, None

    return Task(path.stem, lambda: _rows(path, parse))


def _rows(path: Path, parse: Callable[[str], tuple[str, str | None]]) -> Iterator[Example | BadRow]:
    for row in stream_lines(path, parse):
        yield row if isinstance(row, BadRow) else Example(*row[1], row[0])


def unconditional(count: int) -> Task:
    """``count`` rows without a text, for a model that generates from nothing.

    Sampled rows differ; greedy ones are all alike.

    Raises:
      ValueError: ``count`` is below 1.
    """
    whole("count", count, 1)
    return Task.of("unconditional", [Example("", None, f"row {i}") for i in range(count)])


def openings(name: str, path: str | os.PathLike, words: int) -> Task:
    """The first ``words`` words of each line of a text file, to be continued.

    The rest of the line is the reference; lines without a rest are left out.

    Raises:
      FileNotFoundError, ValueError: there is no such file, it is empty, or ``words`` is below 1.
    """
    path = existing_file(path)
    whole("words", words, 1)

    def parse(line: str) -> tuple[str, str | None]:
        found = line.split()
        return " ".join(found[:words]), " ".join(found[words:]) or None

    def rows() -> Iterator[Example | BadRow]:
        return (row for row in _rows(path, parse) if isinstance(row, BadRow) or row.reference)

    return Task(name, rows)


def bundled_examples(name: str) -> Task:
    """The example texts that ship with a bundled pair."""
    return dataclasses.replace(text_file(bundled(name) / "examples.txt"), name=name)


def pairs_file(
    name: str, directory: str | os.PathLike, split: str, joined: int = 1, given: bool = False
) -> Task:
    """``<directory>/<split>.tsv``: a line is ``input<TAB>reference``, any other is a bad row.

    Args:
      given: a line is ``input<TAB>reference<TAB>text``, with a text that :class:`specdec.Given`
        follows. Text and reference may be empty, and there may be more texts behind another tab.
      joined: so many pairs make one example, a paragraph. They are taken from parts far apart,
        since files are often sorted by length; what does not fill an example is left out. More than
        1 holds the file in memory, and no line of it may be bad.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is empty; joined < 1, more than there are pairs, or more than 1 with ``given``.
    """
    path = existing_file(Path(directory) / f"{split}.tsv")
    if given:
        if joined != 1:
            raise ValueError(f"Given texts are of one line each: joined must be 1, got {joined}.")
        return Task(f"{name}/{split}", lambda: _rows_with_texts(path))
    if joined == 1:
        return Task(f"{name}/{split}", lambda: _rows(path, pair_of))
    return Task.of(f"{name}/{split} by {joined}", _paragraphs(path, joined))


def _rows_with_texts(path: Path) -> Iterator[Example | BadRow]:
    for row in stream_lines(path, fields_of):
        if isinstance(row, BadRow):
            yield row
        else:
            origin, (text, reference, *given) = row
            yield Example(text, reference or None, origin, given=tuple(filter(None, given)))


def _paragraphs(path: Path, joined: int) -> list[Example]:
    pairs = read_pairs(path)
    count = len(pairs) // joined if joined > 0 else 0
    if not count:
        raise ValueError(f"joined must be in 1..{len(pairs)} for {path}, got {joined}.")
    examples = []
    for i in range(count):
        sources, references = zip(*pairs[i : joined * count : count], strict=True)
        origin = f"{path}:{i + 1} and every {count} on"
        examples.append(Example(" ".join(sources), " ".join(references), origin))
    return examples


def seqio_task(
    name: str, split: str, vocabulary: str, max_input_len: int, tfds_version: str | None = None
) -> Task:
    """A split of a task in seqio's registry, where T5's are: its prefix, cutting and metrics.

    Rows come as tensorflow reads them, unshuffled.

    Args:
      name: "wmt_t2t_ende_v003", "cnn_dailymail_v002", or one that an imported module registered.
      split: "train", "validation" or "test".
      vocabulary: a SentencePiece model file (also gs://...), or a directory with ``spiece.model``.
      max_input_len: tokens, EOS included, that inputs are cut to.
      tfds_version: of the TFDS data set, instead of the task's.

    Raises:
      FileNotFoundError, ValueError: seqio is not installed; there is no such task, split or
        vocabulary; TFDS has not prepared the data; the task's metrics need more than texts.
    """
    seqio_tasks = _seqio_tasks()
    task = seqio_tasks.registered(name, vocabulary, tfds_version)
    return seqio_tasks.read(task, split, max_input_len)


def seqio_pairs_file(
    name: str, directory: str | os.PathLike, split: str, vocabulary: str, max_input_len: int,
    prefix: str = "", metric: str = "bleu", given: bool = False,
) -> Task:  # fmt: skip
    """:func:`pairs_file` as seqio reads it: with a prefix, cutting and a metric of T5's.

    Args:
      vocabulary: a SentencePiece model file, or a directory with ``spiece.model``.
      max_input_len: tokens, EOS included, that inputs are cut to.
      prefix: before each input, such as "translate English to German: ".
      metric: "bleu" or "rouge".
      given: see :func:`pairs_file`.

    Raises:
      FileNotFoundError, ValueError: as :func:`seqio_task` and :func:`pairs_file`.
    """
    known = _seqio_tasks().METRICS
    choice("metric", metric, *known)
    pairs = pairs_file(name, directory, split, given=given)
    words = Vocabulary(vocabulary)

    def rows() -> Iterator[Example | BadRow]:
        for row in pairs.read():
            if isinstance(row, BadRow):
                yield row
            else:
                text = prefix + row.input
                tokens = (*words.encode(text)[: max_input_len - 1], words.eos_id)
                yield dataclasses.replace(row, input=text, tokens=tokens)

    def measure(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return known[metric](references, outputs)

    return Task(pairs.name, rows, measure)


def _seqio_tasks():
    """Imported only here: it brings tensorflow along."""
    try:
        from specdec.data import seqio_tasks
    except ModuleNotFoundError as error:
        raise ValueError(
            f"A seqio task needs {error.name}, which is not installed: "
            'pip install -c constraints.txt ".[seqio]".'
        ) from None
    return seqio_tasks
