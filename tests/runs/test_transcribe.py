"""``scripts/transcribe.py``: what it writes, stops, goes on, skips, refuses and plans."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import specdec
from specdec.measure.kept_rows import LineWriter
from specdec.runs.command_line import Given
from specdec.runs.transcribe import transcribe
from tests.speech.small_whisper import RATE, sound, write_whisper

soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
SECONDS = {"a.wav": 0.9, "b.flac": 2.5, "c.wav": 1.7, "deep/a.wav": 2.2}
GIN = """
include "configs/runs/transcribe.gin"
include "configs/methods/speculative.gin"
include "configs/drafters/quantized.gin"
TARGET = {target!r}
AUDIO = {audio!r}
GAMMA = 2
BATCH_SIZE = 2
LANGUAGE = "de"
TEMPERATURES = (0.0, 1.0)
LOG_PROB = None
NO_SPEECH = None
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a folder of recordings with a file that is none, and a gin file."""
    root = tmp_path_factory.mktemp("speech")
    (root / "whisper").mkdir()
    write_whisper(root / "whisper")
    for number, (name, seconds) in enumerate(SECONDS.items()):
        path = root / "audio" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.5 * sound(seconds, number), RATE, subtype="PCM_16")
    (root / "audio" / "notes.txt").write_text("no sound")
    gin = GIN.format(target=str(root / "whisper"), audio=str(root / "audio"))
    (root / "run.gin").write_text(gin)
    return root


def run(place, directory, *bindings, **options):
    given = Given([str(place / "run.gin")], bindings, str(directory), "test")
    return transcribe(given, ROOT, **options)


def lines(directory):
    """Lines without what depends on when they were made."""
    rows = (directory / "transcripts.jsonl").read_text().splitlines()
    return [without(json.loads(row), "seconds", "checksum") for row in rows]


def results(directory):
    return json.loads((directory / "results.json").read_text())


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A run that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    assert run(place, directory, 'SUBTITLES=("srt", "vtt")') == 0
    return directory


def test_a_run_writes_what_pairs_give(place, whole):
    pair = specdec.load_pair(target=place / "whisper", draft=specdec.Quantized())
    options = dict(language="de", timestamps=True, temperatures=(0.0, 1.0), log_prob=None,
                   no_speech=None, gamma=2, batch_size=2)  # fmt: skip
    found = {line["name"]: line for line in lines(whole)}
    assert sorted(found) == sorted(SECONDS)
    # Groups are of the longest ones, then of the next.
    for group in (["b.flac", "deep/a.wav"], ["c.wav", "a.wav"]):
        expected = pair.transcribe([place / "audio" / name for name in group], **options)
        for name, each in zip(group, expected, strict=True):
            line = found[name]
            assert {key: line[key] for key in each.as_json()} == each.as_json()
            assert line["windows"] == len(each.windows)
            assert line["counts"]["emitted"] >= sum(len(one.tokens) for one in each.windows)
            stem = whole / "subtitles" / name
            assert stem.with_suffix(".srt").read_text() == each.as_srt()
            assert stem.with_suffix(".vtt").read_text() == each.as_vtt()
    assert sum(line["fallbacks"] for line in found.values()) > 0  # Of other random numbers.


def test_progress_ends_with_all_seconds_of_sound(capsys, place, tmp_path):
    audio = [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    for number, name in enumerate(audio):
        soundfile.write(name, sound(0.6, number), RATE)
    assert run(place, tmp_path / "out", audio=audio) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("1 of 1 s of sound")  # Windows have a second each.


def test_results_are_sums_over_files(whole):
    found, rows = results(whole), lines(whole)
    assert found["num_files"] == len(SECONDS)
    assert found["sound_seconds"] == pytest.approx(sum(SECONDS.values()), abs=0.05)
    assert found["num_tokens"] == sum(row["counts"]["emitted"] for row in rows)
    assert found["target_calls"] == sum(row["counts"]["target_calls"] for row in rows)
    examined = sum(row["counts"]["examined"] for row in rows)
    sums = sum(row["counts"]["acceptance_prob_sum"] for row in rows)
    assert found["alpha"] == pytest.approx(sums / examined)
    assert found["real_time_factor"] == pytest.approx(
        found["decoding_seconds"] / found["sound_seconds"], rel=1e-3
    )
    assert (found["gamma"], found["num_skipped"]) == (2, 0)


def killed(monkeypatch, place, directory, fraction):
    """A run that ends when a part of its second group's bytes is on disk."""
    append, count = LineWriter.append, 0

    class Killed(BaseException):
        pass

    def until(self, *lines):
        nonlocal count
        count += 1
        if count == 1:
            return append(self, *lines)
        content = "".join(f"{line}\n" for line in lines).encode()
        self._file.write(content[: round(fraction * len(content))])
        self._file.flush()
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(LineWriter, "append", until)
        with pytest.raises(Killed):
            run(place, directory, 'SUBTITLES=("srt", "vtt")')


def test_a_killed_run_goes_on(monkeypatch, place, whole, tmp_path):
    killed(monkeypatch, place, tmp_path, fraction=0.3)
    done = (tmp_path / "transcripts.jsonl").read_bytes()
    read = []
    monkeypatch.setattr(
        "specdec.runs.transcribe.read_audio",
        lambda path, *rest: read.append(path.name) or specdec.speech.audio.read_audio(path, *rest),
    )
    assert run(place, tmp_path, 'SUBTITLES=("srt", "vtt")') == 0
    assert read == ["c.wav", "a.wav"]
    assert (tmp_path / "transcripts.jsonl").read_bytes().startswith(done[: done.rfind(b"\n") + 1])
    assert lines(tmp_path) == lines(whole)
    changing = ("decoding_seconds", "real_time_factor", "git_sha", "date")
    assert without(results(tmp_path), *changing) == without(results(whole), *changing)


def test_a_finished_run_decodes_nothing(monkeypatch, place, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "again")
    before = results(whole) | {"date": "2025-01-01"}
    (tmp_path / "again" / "results.json").write_text(json.dumps(before))
    monkeypatch.setattr("specdec.runs.transcribe.read_audio", None)
    assert run(place, tmp_path / "again", 'SUBTITLES=("srt", "vtt")') == 0
    assert results(tmp_path / "again") == before  # They say when it was decoded.


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (("LANGUAGE='fr'",), "holds the transcripts of another configuration or of other weights"),
        (("GAMMA='auto'",), 'measures nothing beforehand: give a number, not "auto"'),
        (("LANGUAGE='xx'",), "language = 'xx' is none of the model's"),
        (("AUDIO='/nowhere'",), "/nowhere is no folder and no file."),
        (("AUDIO=['a.wav', 'a.wav']",), "a.wav is given twice."),
        (("AUDIO=['a.wav', 'a.mp3']",), "of two files would be subtitles/a.srt"),
        (("SUBTITLES=('txt',)",), 'subtitles must be of "srt" and "vtt"'),
        (("OVERLAP=20",), "overlap must be seconds, above 0 and at most 15"),
    ],
    ids=str,
)
def test_mistakes_are_said_in_one_line(capsys, place, whole, bindings, message):
    before = (whole / "transcripts.jsonl").read_bytes()
    code = run(place, whole, 'SUBTITLES=("srt", "vtt")', *bindings)
    said = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert said.startswith("error: ")
    assert message in said
    assert (whole / "transcripts.jsonl").read_bytes() == before


def test_a_changed_file_is_refused(capsys, place, whole, tmp_path):
    shutil.copytree(place / "audio", tmp_path / "audio")
    audio = [str(tmp_path / "audio")]
    assert run(place, tmp_path / "out", "TEMPERATURES=(0.0,)", audio=audio) == 0
    soundfile.write(tmp_path / "audio" / "a.wav", np.zeros(100), RATE)
    assert run(place, tmp_path / "out", "TEMPERATURES=(0.0,)", audio=audio) == 2
    assert "a.wav was changed since it was transcribed" in capsys.readouterr().err


def test_bad_files_are_skipped_and_said(capsys, place, tmp_path):
    audio, out = tmp_path / "audio", tmp_path / "out"
    audio.mkdir()
    shutil.copy(place / "audio" / "a.wav", audio / "good.wav")
    (audio / "bad.mp3").write_text("no sound")
    soundfile.write(audio / "empty.wav", np.zeros(0), RATE)
    assert run(place, out, audio=[str(audio)]) == 1
    said = capsys.readouterr()
    assert "2 files could not be read: skipped.jsonl says why." in said.out
    assert len([line for line in said.err.splitlines() if line.startswith("Skipped: ")]) == 2
    skipped = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [each["name"] for each in skipped] == ["bad.mp3", "empty.wav"]
    assert "is no sound that can be read" in skipped[0]["reason"]
    assert "has no samples" in skipped[1]["reason"]
    assert [line["name"] for line in lines(out)] == ["good.wav"]
    # Repaired, it is done, and nothing else again.
    (audio / "empty.wav").unlink()
    shutil.copy(place / "audio" / "a.wav", audio / "bad.mp3")
    assert run(place, out, audio=[str(audio)]) == 0
    assert [line["name"] for line in lines(out)] == ["good.wav", "bad.mp3"]
    assert not (out / "skipped.jsonl").exists()


def test_dry_run(capsys, place, tmp_path, monkeypatch):
    monkeypatch.setattr("specdec.runs.transcribe.load_pair", None)
    bindings = ("HARDWARE='v5e'", "SUBTITLES=('srt',)")
    assert run(place, tmp_path / "out", *bindings, dry_run=True) == 0
    shown = capsys.readouterr().out
    assert "Reads 4 files of sound, a.wav and so on" in shown
    assert "Fits: " in shown
    assert (
        f"Writes to {tmp_path / 'out'}: operative_config.gin, transcripts.jsonl, results.json, "
        "subtitles/*.srt." in shown
    )
    assert not (tmp_path / "out").exists()
