"""Runs of a task with a column of texts that the draft follows."""

import pytest

from specdec.measure.kept_rows import LineWriter
from tests.runs.decoding import main, read

NUM_ROWS = 80
WORDS = ["the", "cat", "sat", "on", "a", "mat", "one", "dog", "two", "three", "four"]
# Temperature 0: outputs do not depend on the texts, which the counts show.
SETTINGS = ("TEMPERATURE=0.0", "MAX_DECODE_LEN=24", "MAX_INPUT_LEN=64", "CHECK=False")
COUNTS = ("num_tokens", "target_calls", "proposed", "accepted")


class Killed(BaseException):
    """As sudden as can be in one process."""


@pytest.fixture(scope="module")
def files(tiny):
    """Gin files of a run that follows texts."""
    path = tiny.root / "given.gin"
    path.write_text(
        f'include "{tiny.gin}"\ninclude "configs/drafters/given.gin"\n'
        'include "configs/tasks/given_file.gin"\n'
        f"DATA_DIR = {str(tiny.root / 'given')!r}\n"
    )
    return [str(path)]


def text_of(i):
    return " ".join(WORDS[i % 5 : i % 5 + 1 + i % 7])


def written(tiny, outputs):
    """The column: the output of a run before, a wrong text, several, or none."""
    (tiny.root / "given").mkdir(exist_ok=True)
    column = [
        [output, text_of(i), f"{text_of(i)}\t{output}", ""][i % 4]
        for i, output in enumerate(outputs)
    ]
    lines = [f"{text_of(i)}\tdie {text_of(i)}\t{text}\n" for i, text in enumerate(column)]
    (tiny.root / "given" / "test.tsv").write_text("".join(lines), encoding="utf-8")


def by_id(directory):
    return sorted(read(directory)[1], key=lambda row: row["id"])


@pytest.fixture(scope="module")
def whole(tiny, files, tmp_path_factory):
    """A run that nothing interrupted, and the rows of plain decoding."""
    plain, whole = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("whole")
    written(tiny, [text_of(i) for i in range(NUM_ROWS)])
    method = ("METHOD='autoregressive'", "GAMMA=None")
    assert main(tiny, plain, *SETTINGS, *method, files=files) == 0
    rows = by_id(plain)
    written(tiny, [row["output"] for row in rows])
    assert main(tiny, whole, *SETTINGS, files=files) == 0
    return whole, rows


def test_outputs_are_those_of_plain_decoding(whole):
    directory, plain = whole
    rows = by_id(directory)
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in plain]
    assert [row["reference"] for row in rows] == [f"die {text_of(i)}" for i in range(NUM_ROWS)]
    accepted = [sum(row["accepted"] for row in rows[i::4]) for i in range(4)]
    assert accepted[0] > accepted[3] == 0
    assert accepted[2] > 0
    assert not any(row["proposed"] for row in rows[3::4])


def test_another_batch_size_writes_the_same_rows(tiny, files, whole, tmp_path):
    assert main(tiny, tmp_path, *SETTINGS, "BATCH_SIZE=3", files=files) == 0
    for ours, theirs in zip(by_id(tmp_path), by_id(whole[0]), strict=True):
        assert ours["tokens"] == theirs["tokens"]
        assert [ours[name] for name in COUNTS] == [theirs[name] for name in COUNTS]
        assert ours["blocks"] == theirs["blocks"]


def test_an_interrupted_run_writes_the_same_file(tiny, files, whole, tmp_path, monkeypatch):
    append, count = LineWriter.append, 0

    def until(self, *lines):
        nonlocal count
        count += 1
        if count > NUM_ROWS // 2:
            raise Killed
        return append(self, *lines)

    with monkeypatch.context() as killing:
        killing.setattr(LineWriter, "append", until)
        with pytest.raises(Killed):
            main(tiny, tmp_path, *SETTINGS, files=files)
    part = (tmp_path / "decodes.jsonl").read_bytes()
    assert 0 < part.count(b"\n") < NUM_ROWS
    assert main(tiny, tmp_path, *SETTINGS, files=files) == 0
    done = (whole[0] / "decodes.jsonl").read_bytes()
    assert done.startswith(part)
    assert (tmp_path / "decodes.jsonl").read_bytes() == done


def test_rows_of_other_texts_are_another_run(tiny, files, whole, capsys):
    path = tiny.root / "given" / "test.tsv"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("\n", " dog\n", 1), encoding="utf-8")
    assert main(tiny, whole[0], *SETTINGS, files=files) == 2
    path.write_text(before, encoding="utf-8")
    assert "decodes.jsonl" in capsys.readouterr().err
    assert len(by_id(whole[0])) == NUM_ROWS


def test_a_task_without_texts_is_refused(tiny, tmp_path, capsys):
    assert main(tiny, tmp_path / "new", "DRAFT=@Given()") == 2
    assert "no row of ende_tatoeba/test has one: give a task" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_column_is_nothing_to_other_drafts(tiny, files, whole, tmp_path):
    draft = f"DRAFT={str(tiny.draft)!r}"
    assert main(tiny, tmp_path, *SETTINGS, draft, files=files) == 0
    assert [row["tokens"] for row in by_id(tmp_path)] == [row["tokens"] for row in whole[1]]
