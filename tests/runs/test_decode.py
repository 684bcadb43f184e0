import shutil

import pytest
from safetensors import numpy as safetensors

from specdec.data.tasks import bundled_examples
from specdec.decoding.batch_decoder import BatchDecoder
from tests.runs.decoding import ROOT, main, read, start, without_time

DESIGN_KEYS = {
    "task", "target", "drafter", "method", "gamma", "temperature", "batch_size", "num_examples",
    "num_tokens", "alpha", "acceptance_rate", "draft_utilization", "block_efficiency",
    "accepted_histogram", "cost_ratio", "verify_ratio", "predicted_speedup",
    "predicted_speedup_thm38", "measured_speedup", "ms_per_token", "encode_ms",
    "greedy_mismatches", "quality", "device", "versions", "seed", "gin", "git_sha", "command",
}  # fmt: skip
FILES = ["decodes.jsonl", "operative_config.gin", "results.json", "trace.html"]


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A run that nothing interrupted."""
    directory = tmp_path_factory.mktemp("finished")
    assert main(tiny, directory) == 0
    return directory


def test_the_script(tiny, tmp_path):
    done = start(
        tiny, f"--output_dir={tmp_path / 'out'}", "--gin.GAMMA=3", "--gin.TIMING_EXAMPLES=2"
    )
    shown, error = done.communicate(timeout=300)
    assert done.returncode == 0, error
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    results, rows = read(tmp_path / "out")
    assert results.keys() >= DESIGN_KEYS
    assert results["gamma"] == 3
    assert len(results["accepted_histogram"]) == 4
    assert results["greedy_mismatches"] == results["greedy_mismatches_width_matched"] == 0
    assert results["measured_speedup"] > 0
    assert results["predicted_speedup"] > 0
    assert results["encode_ms"].keys() == {"target", "draft"}
    assert results["ms_per_token"].keys() == {"autoregressive", "speculative"}
    assert results["quality"].keys() == {"bleu", "chrf"}
    assert "--gin.GAMMA=3" in results["command"]
    rows = {row["id"]: row for row in rows}
    assert sorted(rows) == [0, 1, 2, 3]
    assert rows[1]["input"] == "a dog"
    assert rows[1]["reference"] == "die a dog"
    assert sum(row["num_tokens"] for row in rows.values()) == results["num_tokens"]
    assert "\033" not in shown
    assert "block_efficiency" in shown
    assert "whole decode, with encoders" in shown
    assert 'class="accepted"' in (tmp_path / "out" / "trace.html").read_text()


def test_an_audit(tiny, tmp_path, capsys):
    settings = ("AUDIT=True", "EXACT=True", "GAMMA=3", "TIMING_EXAMPLES=0")
    assert main(tiny, tmp_path / "out", *settings) == 0
    assert "audit: " in capsys.readouterr().out
    results, rows = read(tmp_path / "out")
    assert all(len(row["margins"]) == row["num_tokens"] for row in rows)
    assert results["audit"]["rounding"] == max(row["rounding"] for row in rows)
    assert main(tiny, tmp_path / "no", "AUDIT=True", "CHECK=False") == 2
    assert "set CHECK = True" in capsys.readouterr().err


def test_a_mesh_without_devices(tiny, tmp_path, capsys):
    files = [str(tiny.gin), str(ROOT / "configs/meshes/2x4.gin")]
    assert main(tiny, tmp_path / "out", files=files) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "A mesh of 2 x 4 (data x model) needs 8 devices" in error
    assert not (tmp_path / "out").exists()


def test_a_killed_run_continues(tiny, finished, tmp_path):
    """Cut inside a line; the end is that of the run that nothing interrupted."""
    whole = (finished / "decodes.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "decodes.jsonl").write_bytes(b"".join(lines[:1]) + lines[1][:50])
    config = (finished / "operative_config.gin").read_bytes()
    (tmp_path / "operative_config.gin").write_bytes(config)
    assert main(tiny, tmp_path) == 0
    assert (tmp_path / "decodes.jsonl").read_bytes() == whole
    assert without_time(read(tmp_path)[0]) == without_time(read(finished)[0])
    assert (tmp_path / "trace.html").read_bytes() == (finished / "trace.html").read_bytes()


def test_rows_that_are_there_are_not_decoded_again(tiny, finished, tmp_path, monkeypatch):
    for name in ("decodes.jsonl", "operative_config.gin"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())

    def decode(*_, **__):
        raise AssertionError("decoded again")

    monkeypatch.setattr("specdec.decoding.batch_decoder.BatchDecoder.decode", decode)
    assert main(tiny, tmp_path) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("setting", "holds the decodes of another configuration or of other weights"),
        ("text", "decodes.jsonl:1 was changed after it was written"),
        ("weights", "holds the decodes of another configuration or of other weights"),
        ("no config", "holds the decodes of another configuration or of other weights"),
    ],
)
def test_another_runs_decodes_are_not_mixed(tiny, finished, tmp_path, capsys, change, message):
    bindings = []
    for name in ("decodes.jsonl", "operative_config.gin"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    config = tmp_path / "operative_config.gin"
    if change == "setting":
        bindings = ["SEED=1"]
    elif change == "text":
        data = tmp_path / "decodes.jsonl"
        data.write_text(data.read_text().replace('"input": "a dog"', '"input": "a cat"'))
    elif change == "weights":
        config.write_text(config.read_text().replace("# Weights: target ", "# Weights: target 0"))
    else:
        config.unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(tiny, tmp_path, *bindings) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_checking_is_an_option(tiny, finished, tmp_path, monkeypatch, capsys):
    """Each batch is decoded once without it; a file of texts is not checked unless told to."""
    decoded, pauses = [], BatchDecoder.pauses
    monkeypatch.setattr(
        BatchDecoder, "pauses", lambda *args, **kw: decoded.append(1) or pauses(*args, **kw)
    )
    assert main(tiny, tmp_path / "off", "CHECK=False") == 0
    assert len(decoded) == 4
    results, rows = read(tmp_path / "off")
    assert (results["checked"], results["greedy_mismatches"]) == (False, None)
    assert "Not compared with plain decoding" in capsys.readouterr().out
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in read(finished)[1]]
    assert read(finished)[0]["checked"]
    file = tmp_path / "in.txt"
    file.write_text("a dog\n")
    for setting, checked in (((), False), (("CHECK=True",), True)):
        directory = tmp_path / f"file {checked}"
        assert main(tiny, directory, *setting, input_file=str(file)) == 0
        assert read(directory)[0]["checked"] == checked


def test_sampling_and_text(tiny, tmp_path, capsys):
    assert main(tiny, tmp_path, "TEMPERATURE=1.0", texts=["a dog", "the cat"]) == 0
    results, rows = read(tmp_path)
    assert results["task"] == "text"
    assert results["greedy_mismatches"] is None
    assert results["quality"] is None
    assert results["measured_speedup"] is None
    assert 0 < results["alpha"] < 1
    assert [row["input"] for row in rows] == ["a dog", "the cat"]
    assert "the cat" in capsys.readouterr().out


def test_plain_decoding_is_the_same_greedy_text(tiny, finished, tmp_path):
    files = [str(tiny.gin), str(ROOT / "configs/methods/autoregressive.gin")]
    assert main(tiny, tmp_path, files=files) == 0
    results, rows = read(tmp_path)
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in read(finished)[1]]
    assert results["block_efficiency"] == 1
    assert results["alpha"] is None
    assert results["drafter"] is None


def test_batches_with_a_padding_row_and_a_kill_in_the_middle_of_one(tiny, finished, tmp_path):
    assert main(tiny, tmp_path, "BATCH_SIZE=3") == 0
    rows = {row["id"]: row["tokens"] for row in read(tmp_path)[1]}
    assert rows == {row["id"]: row["tokens"] for row in read(finished)[1]}
    decodes = tmp_path / "decodes.jsonl"
    whole = decodes.read_bytes()
    decodes.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert main(tiny, tmp_path, "BATCH_SIZE=3") == 0
    assert decodes.read_bytes() == whole


def check_error(capsys, code, message, directory):
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "In call to configurable" not in error
    assert message in error
    assert not directory.exists()


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("GAMMA=0", "gamma must be in"),
        ("TEMPERATURE=1e400", "A value is not one of gin's, such as an infinite number"),
        ("MESH='x'", "mesh must be a specdec.DeviceMesh(data, model) or None, got 'x'"),
        ("TARGET=3", "target must be a path or a name, got 3"),
        ("DRAFT=3", "draft must be a checkpoint's path or name, or an object such as"),
        ("CHECK='no'", "check must be True or False, got 'no'"),
        ("DTYPE='int8'", "dtype must be 'float32' or 'bfloat16' or 'float16'"),
        ("BAD_ROWS='ignore'", "bad_rows must be"),
        ("SamplingConfig.temprature=1.0", "temprature"),
    ],
    ids=str,
)
def test_settings_are_checked_before_a_model_is_loaded(
    tiny, tmp_path, capsys, nothing_is_loaded, binding, message
):
    check_error(capsys, main(tiny, tmp_path / "out", binding), message, tmp_path / "out")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("MAX_INPUT_LEN=2", "test.tsv:1 has"),
        ("WEIGHTS='int4'", "weights must be 'int8' or None, got 'int4'"),
        ("TARGET='nowhere/at/all'", "nowhere/at/all is not a directory"),
        ("DATA_DIR='nowhere'", "No data file at nowhere/test.tsv"),
    ],
    ids=str,
)
def test_settings_that_files_do_not_go_with(tiny, tmp_path, capsys, binding, message):
    check_error(capsys, main(tiny, tmp_path / "out", binding), message, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\n\xff\xfe\n", "in.txt:2: not UTF-8"),
        (b"good\n\nbad\n", "in.txt:2: the line is blank"),
        (b"", "in.txt is empty"),
        (b"the cat sat on the mat " * 9, "in.txt:1 has"),
        (None, "No data file"),
    ],
)
def test_bad_input_files(tiny, tmp_path, capsys, content, message):
    file, directory = tmp_path / "in.txt", tmp_path / "out"
    if content is not None:
        file.write_bytes(content)
    check_error(capsys, main(tiny, directory, input_file=str(file)), message, directory)


def test_text_and_file_at_once(tiny, tmp_path, capsys):
    directory = tmp_path / "out"
    code = main(tiny, directory, texts=["a"], input_file="b")
    check_error(capsys, code, "either --text or --input_file", directory)


def test_unknown_config_files(tiny, tmp_path, capsys):
    directory, included = tmp_path / "out", tmp_path / "run.gin"
    code = main(tiny, directory, files=[str(ROOT / "configs/experiments/quickstart_ened.gin")])
    check_error(capsys, code, "quickstart_ende.gin", directory)
    included.write_text('include "configs/runs/nothing.gin"')
    code = main(tiny, directory, files=[str(included)])
    check_error(capsys, code, "configs/runs/nothing.gin", directory)


def test_output_directory_that_cannot_be_written(
    tiny, tmp_path, capsys, monkeypatch, nothing_is_loaded
):
    (tmp_path / "file").write_text("here")
    directory = tmp_path / "file" / "out"
    check_error(capsys, main(tiny, directory), "Cannot write to", directory)

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    check_error(capsys, main(tiny, tmp_path / "out"), "Permission denied", tmp_path / "out")


@pytest.mark.parametrize("damage", ["nan", "vocabulary"])
def test_damaged_checkpoints(tiny, tmp_path, capsys, damage):
    draft, directory = shutil.copytree(tiny.draft, tmp_path / "draft"), tmp_path / "out"
    weights = draft / "model.safetensors"
    if damage == "nan":
        arrays = safetensors.load_file(weights)
        name = sorted(arrays)[0]
        arrays[name] = arrays[name].copy()
        arrays[name].flat[0] = float("nan")
        safetensors.save_file(arrays, weights)
        message = "finite"
    else:
        (draft / "special_tokens_map.json").write_text('{"mask_token": "<other>"}')
        message = "different vocabularies"
    check_error(capsys, main(tiny, directory, f"DRAFT={str(draft)!r}"), message, directory)


def test_bundled_examples():
    task = bundled_examples("quickstart")
    assert task.name == "quickstart"
    assert len(task.examples) == 24
    assert all(example.reference is None for example in task.examples)
