"""Rows in windows, and how many of them are held."""

import gc
import tracemalloc

import numpy as np
import pytest

from specdec.data import tasks
from specdec.data.tasks import Example, Task
from specdec.decoding.batches import input_bucket
from specdec.decoding.target import LoadedTarget
from specdec.measure.kept_rows import Row
from specdec.models.toy import ToyModel
from specdec.runs import inputs
from specdec.runs.inputs import WINDOW, Inputs, Item, Skipped
from tests.runs.decoding import main, read


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


def test_the_order_is_the_same_each_time():
    rows = inputs_of(np.random.default_rng(0).integers(1, 65, 500))
    orders = [[item.id for _, members in rows.batches(4) for item in members] for _ in range(2)]
    assert orders[0] == orders[1]


def test_long_rows_by_rule():
    with pytest.raises(ValueError, match="row 1 is too long"):
        inputs_of([5, 65, 5])
    rows = inputs_of([5, 65, 5, 66, 20], "skip")
    assert [type(row) for row in rows] == [Item, Skipped, Item, Skipped, Item]
    assert [row.id for row in rows] == [0, 1, 2, 3, 4]
    assert (rows.num_rows, rows.num_skipped, rows.num_shapes) == (3, 2, 2)
    assert [len(item.tokens) for item in rows.sample(2)] == [5, 5]
    assert [len(item.tokens) for item in rows.sample(9)] == [5, 5, 20]


def test_nothing_is_left():
    with pytest.raises(ValueError, match=r"letters has no row that can be decoded: row 0 is too"):
        inputs_of([65, 65], "skip")
    with pytest.raises(ValueError, match=r"letters has no row that can be decoded\.$"):
        inputs_of([])


def test_only_the_first_rows_count():
    assert inputs_of([5, 5, 65], num_examples=2).num_rows == 2


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
    assert (
        main(tiny, tmp_path / "out", "BATCH_SIZE=2", "TIMING_EXAMPLES=2", input_file=str(file)) == 0
    )
    assert (len(reads), tokenized) == (1, file.read_text().splitlines())


class Counted(Example):
    """An example that is counted while it lives."""

    live = 0
    most = 0

    def __init__(self, *fields):
        super().__init__(*fields)
        Counted.live += 1
        Counted.most = max(Counted.most, Counted.live)

    def __del__(self):
        Counted.live -= 1

    def __reduce__(self):
        return Counted, (self.input, self.reference, self.origin, self.tokens)


class Killed(BaseException):
    """As sudden as can be in one process."""


@pytest.mark.slow
def test_a_run_holds_a_window_whatever_its_length(tiny, tmp_path, monkeypatch):
    """5,000 rows and their continuation need no more memory than 2,500."""
    batch_size, killed_at = 4, None

    def decoded(run, pair, batches):
        for _, members in batches:
            if killed_at is not None and members[0].id >= killed_at:
                raise Killed
            yield [
                Row(
                    item.id, item.example.input, "out", None, [3, 1], 2, 1, 2, 2, 1, 0, [0, 1, 0],
                    [1], 0.5, [],
                )
                for item in members
            ]  # fmt: skip

    monkeypatch.setattr("specdec.runs.prepared_run.decoded_rows", decoded)
    monkeypatch.setattr("specdec.measure.rows.os.fsync", lambda _: None)
    monkeypatch.setattr("specdec.data.tasks.Example", Counted)

    def peak(num_rows, name):
        file = tmp_path / f"{num_rows}.txt"
        file.write_text("".join(f"{'a dog ' * (1 + i % 4)}{i}\n" for i in range(num_rows)))
        Counted.live = Counted.most = 0
        gc.collect()
        tracemalloc.start()
        try:
            code = main(
                tiny, tmp_path / name, f"BATCH_SIZE={batch_size}", "MAX_INPUT_LEN=64",
                input_file=str(file),
            )  # fmt: skip
            return code, tracemalloc.get_traced_memory()[1]
        except Killed:
            return None, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert Counted.most <= (WINDOW + 1) * batch_size + 2

    peak(1_000, "warm up")
    code, short = peak(2_500, "short")
    assert code == 0
    code, long = peak(5_000, "long")
    assert code == 0
    killed_at = 3_700
    code, _ = peak(5_000, "killed")
    assert code is None
    killed_at = None
    code, resumed = peak(5_000, "killed")
    assert code == 0
    # CPython keeps up to 2,000 freed tuples of each length, and 2,500 rows leave as many; 50 bytes
    # for each row would be seen.
    assert max(long, resumed) < short + 100_000
    results, _ = read(tmp_path / "killed")
    assert results["num_examples"] == 5_000
    files = [(tmp_path / name / "decodes.jsonl").read_bytes() for name in ("long", "killed")]
    assert files[0] == files[1]
