"""Rows in windows, and how many of them are held."""

import weakref

import numpy as np
import pytest

from specdec.data import tasks
from specdec.data.tasks import Example, Task
from specdec.decoding.batches import input_bucket
from specdec.decoding.target import LoadedTarget
from specdec.models.toy import ToyModel
from specdec.runs import inputs
from specdec.runs.inputs import WINDOW, Inputs
from tests.runs.decoding import main


class Letters:
    """A pair as far as inputs know one: a token a letter."""

    vocabulary, target = None, LoadedTarget(ToyModel(128), (), "letters")

    def token_ids(self, texts, *, max_input_len, names, max_decode_len, truncate):
        (text,), (name,) = texts, names
        if len(text) > max_input_len:
            raise ValueError(f"{name} is too long")
        return [np.array([ord(letter) for letter in text], np.int32)]


def examples(lengths):
    return [
        Example(chr(ord("a") + i % 26) * length, None, f"row {i}")
        for i, length in enumerate(lengths)
    ]


def inputs_of(lengths, bad_rows="fail", num_examples=None):
    rows = inputs.read(Task.of("letters", examples(lengths)), num_examples, bad_rows)
    return Inputs(rows, "letters", Letters(), max_input_len=64, bad_rows=bad_rows)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 6, 7, 50])
def test_every_row_is_in_one_batch_of_its_window(monkeypatch, num_rows, batch_size):
    monkeypatch.setattr(inputs, "WINDOW", 2)
    lengths = np.random.default_rng(num_rows).integers(1, 65, num_rows)
    seen = []
    for batch, members in inputs_of(lengths).batches(batch_size):
        prompt = batch.prompt
        assert prompt.batch_size == batch_size
        assert batch.row_ids.tolist() == [item.id for item in members] + [-1] * (
            batch_size - len(members)
        )
        for index, item in enumerate(members):
            length = len(item.tokens)
            assert input_bucket(length) == prompt.inputs.shape[1]
            assert prompt.input_lengths[index] == length
            assert prompt.inputs[index, :length].tolist() == item.tokens.tolist()
            assert not prompt.inputs[index, length:].any()
            assert item.example.origin == f"row {item.id}"
            seen.append((item.id // (2 * batch_size), len(item.tokens), item.id))
    assert seen == sorted(seen)  # Window after window; in a window by length, then by id.
    assert sorted(number for *_, number in seen) == list(range(num_rows))


HELD = weakref.WeakSet()


class Watched(Example):
    """A row that is seen while it lives, once it was read back."""

    def __setstate__(self, state):
        vars(self).update(state)
        HELD.add(self)


def test_a_window_of_rows_is_held_whatever_their_number():
    task, most = Task("many", lambda: (Watched("text", None, f"row {i}") for i in range(2_000))), 0
    given = Inputs(
        inputs.read(task, None, "fail"), "many", Letters(), max_input_len=64, bad_rows="fail"
    )
    assert not HELD
    for _ in given.batches(4):
        most = max(most, len(HELD))
    assert 4 * WINDOW <= most <= 4 * (WINDOW + 1) + 2


def test_long_rows_by_rule():
    with pytest.raises(ValueError, match="row 1 is too long"):
        inputs_of([5, 65, 5])
    rows = inputs_of([5, 65, 5, 66, 20], "skip")
    assert [row.id for row in rows.items()] == [0, 2, 4]
    assert [row.id for row in rows.skipped()] == [1, 3]
    assert (rows.num_rows, rows.num_skipped, rows.num_shapes) == (3, 2, 2)
    assert [len(item.tokens) for item in rows.sample(2)] == [5, 5]
    assert [len(item.tokens) for item in rows.sample(9)] == [5, 5, 20]


def test_nothing_is_left():
    with pytest.raises(ValueError, match=r"letters has no row that can be decoded: row 0 is too"):
        inputs_of([65, 65], "skip")
    with pytest.raises(ValueError, match=r"letters has no row that can be decoded\.$"):
        inputs_of([])


def test_a_task_is_read_and_tokenized_once(tiny, tmp_path, monkeypatch):
    reads, tokenized = [], []
    stream, ids = tasks.stream_lines, inputs.Pair.token_ids

    def counted(self, texts, **options):
        tokenized.extend(texts)
        return ids(self, texts, **options)

    monkeypatch.setattr(tasks, "stream_lines", lambda *given: reads.append(1) or stream(*given))
    monkeypatch.setattr(inputs.Pair, "token_ids", counted)
    file = tmp_path / "in.txt"
    file.write_text("".join(f"a dog {i}\n" for i in range(9)))
    settings = "BATCH_SIZE=2", "TIMING_EXAMPLES=2"
    assert main(tiny, tmp_path / "out", *settings, input_file=str(file)) == 0
    assert (len(reads), tokenized) == (1, file.read_text().splitlines())
