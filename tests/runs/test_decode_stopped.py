"""Runs that are killed, told to stop, or given rows that cannot be decoded."""

import json
import signal
import time

import pytest

from specdec.measure.kept_rows import LineWriter
from specdec.runs.prepared_run import PreparedRun
from tests.runs.conftest import TEXTS
from tests.runs.decoding import main, read, start, without_time

NUM_ROWS = 150
BATCH_SIZE = 2  # So that there are two windows.
SETTINGS = (f"BATCH_SIZE={BATCH_SIZE}", "TEMPERATURE=1.0", "MAX_INPUT_LEN=64")
WORDS = " ".join(TEXTS).split()
FILES = ("operative_config.gin", "decodes.jsonl")


@pytest.fixture(scope="module")
def many(tiny):
    """Rows of many lengths, all different."""
    path = tiny.root / "many.txt"
    rows = (
        " ".join(WORDS[i % 7 : i % 7 + 1 + i * i % 11] + ["a"] * (i // 50)) for i in range(NUM_ROWS)
    )
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def whole(tiny, many, tmp_path_factory):
    """A run that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    assert main(tiny, directory, *SETTINGS, input_file=str(many)) == 0
    return directory


def assert_same(directory, whole):
    for name in ("decodes.jsonl", "trace.html"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes()
    assert without_time(read(directory)[0]) == without_time(read(whole)[0])


class Killed(BaseException):
    """As sudden as can be in one process."""


def killed_while_writing(monkeypatch, tiny, file, directory, batch, fraction=0.0):
    """A run that ends when a part of a batch's bytes is on disk; gives the file's content."""
    append, count = LineWriter.append, 0

    def until(self, *lines):
        nonlocal count
        count += 1
        if count <= batch:
            return append(self, *lines)
        content = "".join(f"{line}\n" for line in lines).encode()
        self._file.write(content[: round(fraction * len(content))])
        self._file.flush()
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(LineWriter, "append", until)
        with pytest.raises(Killed):
            main(tiny, directory, *SETTINGS, input_file=str(file))
    return (directory / "decodes.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("batch", "fraction"),
    [(0, 0.1), (63, 1), (74, 0.7)],
)
def test_a_run_killed_while_it_writes(tiny, many, whole, tmp_path, monkeypatch, batch, fraction):
    written = killed_while_writing(monkeypatch, tiny, many, tmp_path, batch, fraction)
    assert written.count(b"\n") < NUM_ROWS
    assert (whole / "decodes.jsonl").read_bytes().startswith(written)
    assert main(tiny, tmp_path, *SETTINGS, input_file=str(many)) == 0
    assert_same(tmp_path, whole)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_process_that_is_stopped(tiny, many, whole, tmp_path, number, code):
    """What a batch had begun is finished unless it is killed; the next start does the rest."""
    decodes = tmp_path / "decodes.jsonl"
    bindings = [f"--gin.{setting}" for setting in SETTINGS]
    process = start(tiny, *bindings, f"--input_file={many}", f"--output_dir={tmp_path}")
    deadline = time.monotonic() + 300
    while not (decodes.exists() and decodes.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    _, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    done = decodes.read_bytes().count(b"\n")
    assert done < NUM_ROWS
    if number != signal.SIGKILL:
        assert decodes.read_bytes().endswith(b"\n")
        assert f"Stopped by {number.name}: {done} of {NUM_ROWS} rows are in {decodes}." in error
        assert "Run again with the same output directory to go on." in error
        assert "Traceback" not in error
    assert not (tmp_path / "results.json").exists()
    assert main(tiny, tmp_path, *SETTINGS, input_file=str(many)) == 0
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("damage", ["twice", "swapped", "missing"])
def test_rows_that_are_not_the_first_ones_are_refused(
    tiny, many, tmp_path, monkeypatch, capsys, damage
):
    lines = killed_while_writing(monkeypatch, tiny, many, tmp_path, 5).splitlines(keepends=True)
    if damage == "twice":
        lines.append(lines[-1])
    elif damage == "swapped":
        lines[3], lines[4] = lines[4], lines[3]
    else:
        del lines[3]
    (tmp_path / "decodes.jsonl").write_bytes(b"".join(lines))
    assert main(tiny, tmp_path, *SETTINGS, input_file=str(many)) == 2
    assert "is not the row that this run has there" in capsys.readouterr().err


def test_two_processes_in_one_directory(tiny, many, whole, tmp_path, capsys):
    """The second one writes nothing, and counts again what the first one wrote meanwhile."""
    with LineWriter(tmp_path / "decodes.jsonl"):
        assert main(tiny, tmp_path, *SETTINGS, input_file=str(many)) == 1
    assert "is being written by another process" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["decodes.jsonl"]
    execute = PreparedRun.execute

    def late(self, command):
        config, content = ((whole / name).read_bytes() for name in FILES)
        (tmp_path / FILES[0]).write_bytes(config)
        (tmp_path / FILES[1]).write_bytes(content[: len(content) // 3])
        return execute(self, command)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(PreparedRun, "execute", late)
        assert main(tiny, tmp_path, *SETTINGS, input_file=str(many)) == 0
    assert_same(tmp_path, whole)


def test_an_input_that_changes_under_a_run(tiny, many, whole, tmp_path, monkeypatch):
    """Rows are read once, before anything is loaded."""
    file = tmp_path / "in.txt"
    file.write_bytes(many.read_bytes())
    load = PreparedRun._load

    def after_a_cut(self, draft):
        file.write_bytes(many.read_bytes()[:100])
        return load(self, draft)

    monkeypatch.setattr(PreparedRun, "_load", after_a_cut)
    assert main(tiny, tmp_path / "out", *SETTINGS, input_file=str(file)) == 0
    name = "decodes.jsonl"
    assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()


LONG = "the cat sat on the mat " * 20
BAD = {
    "blank": (b"  ", "in.txt:3: the line is blank."),
    "no text": (b"\xff\xfe", "in.txt:3: not UTF-8 (invalid start byte)."),
    "long": (LONG.encode(), "in.txt:3 has "),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_skipped_by_rule(tiny, tmp_path, capsys, kind):
    raw, reason = BAD[kind]
    file, out = tmp_path / "in.txt", tmp_path / "out"
    rows = [b"a dog", b"the cat", raw, b"one two", b"the mat"]
    file.write_bytes(b"\n".join(rows))
    assert main(tiny, out, *SETTINGS, "BAD_ROWS='skip'", input_file=str(file)) == 0
    shown = capsys.readouterr()
    (skipped,) = map(json.loads, (out / "skipped.jsonl").read_text().splitlines())
    assert skipped.keys() == {"id", "origin", "reason"}
    assert skipped["id"] == 2
    assert skipped["origin"] == f"{file}:3"
    assert reason in skipped["reason"]
    assert f"Skipped: {skipped['reason']}" in shown.err
    results, decoded = read(out)
    assert (results["num_examples"], results["num_skipped"]) == (4, 1)
    assert "SKIPPED: 1 of 5 rows; the reasons are in skipped.jsonl." in shown.out
    file.write_bytes(b"\n".join([*rows[:2], b"good", *rows[3:]]))
    assert main(tiny, tmp_path / "good", *SETTINGS, input_file=str(file)) == 0
    # The other rows say what they say without it.
    assert decoded == [row for row in read(tmp_path / "good")[1] if row["id"] != 2]
    assert not (tmp_path / "good" / "skipped.jsonl").exists()


@pytest.mark.parametrize("line", ["no tab", "\tno input"])
def test_bad_lines_of_a_pairs_file(tiny, tmp_path, capsys, line):
    (tmp_path / "test.tsv").write_text(f"a dog\tein Hund\n{line}\nthe cat\tdie Katze\n")
    data = f"DATA_DIR={str(tmp_path)!r}"
    assert main(tiny, tmp_path / "out", *SETTINGS, data) == 2
    error = capsys.readouterr().err
    assert "test.tsv:2: expected 'input<TAB>target'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main(tiny, tmp_path / "out", *SETTINGS, data, "BAD_ROWS='skip'") == 0
    results, rows = read(tmp_path / "out")
    assert results["num_skipped"] == 1
    assert {row["id"]: row["reference"] for row in rows} == {0: "ein Hund", 2: "die Katze"}
