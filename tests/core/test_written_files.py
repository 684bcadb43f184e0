"""Files and directories that appear whole."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from specdec.core.files import Kept, check_writable, write_json, write_parts, write_text, written


def test_what_was_there_stays_until_all_is_written(tmp_path):
    path = tmp_path / "a" / "text"
    write_text(path, "old\n")

    def parts():
        yield "new"
        assert path.read_text() == "old\n"
        yield " Grüße\n"

    write_parts(path, parts())
    assert path.read_text(encoding="utf-8") == "new Grüße\n"
    assert os.listdir(path.parent) == ["text"]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"ä": 1})
    assert path.read_text(encoding="utf-8") == '{\n  "ä": 1\n}\n'

    def parts():
        yield "half"
        raise KeyError

    with pytest.raises(KeyError):
        write_parts(path, parts())
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert json.loads(path.read_text()) == {"ä": 1}
    assert os.listdir(tmp_path) == [path.name]


def test_a_directory_takes_its_name_last(tmp_path):
    path = tmp_path / "checkpoint"
    path.mkdir()  # An empty one may be there.
    with written(path) as partial:
        (partial / "inside").mkdir(parents=True)
        (partial / "inside" / "weights").write_bytes(b"1")
        assert not any(path.iterdir())
    assert (path / "inside" / "weights").read_bytes() == b"1"
    with pytest.raises(OSError, match="not empty"), written(path) as partial:
        partial.mkdir()
    assert os.listdir(tmp_path) == [path.name]


def write_slowly(path):
    def parts():
        yield "half"
        time.sleep(60)

    write_parts(path, parts())


def test_a_process_that_is_killed_has_not_touched_the_file(tmp_path):
    path = tmp_path / "text"
    write_text(path, "old")
    process = multiprocessing.get_context("spawn").Process(target=write_slowly, args=(path,))
    process.start()
    while len(os.listdir(tmp_path)) == 1:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == [path.name]


def test_places_that_cannot_be_written_to(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert not os.listdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is not a directory"):
        check_writable(tmp_path / "file" / "a")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_without_a_number_for_it(tmp_path, number):
    with pytest.raises(ValueError, match="JSON has no NaN"):
        write_json(tmp_path / "results.json", {"alpha": [0.5, number]})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("room", [1 << 20, 10])
def test_kept_values_are_read_by_several_at_once(room, monkeypatch):
    monkeypatch.setattr("specdec.core.files._IN_MEMORY", room)
    kept = Kept(["a" * number for number in range(50)])
    for whole, again in zip(kept, kept, strict=True):
        assert whole == again
    assert len(list(kept)) == 50
