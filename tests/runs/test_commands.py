"""The commands as processes: exit codes, what they print first, Ctrl-C at any time, full disks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from said import said
from slow import slow

from specdec.runs import gin_files
from tests.runs.decoding import ROOT, main, start

CONFIG = ROOT / "configs/experiments/quickstart_ende.gin"


def run(script, *arguments, **options):
    command = [sys.executable, ROOT / "scripts" / f"{script}.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("decode", [], "Flag --gin_file must have a value other than None"),
        ("decode", [f"--gin_file={CONFIG}", "--gama=3"], "Unknown command line flag 'gama'"),
        ("decode", [f"--gin_file={CONFIG}", "stray"], "unknown argument 'stray'"),
        ("train", [f"--gin_file={CONFIG}", "--output_dir=x", "stray"], "unknown argument 'stray'"),
        ("convert", ["--source=a", "--output_dir=b", "--format=gguf"], "--format=gguf"),
        ("convert", ["--source=a", "--output_dir=b", "--format=t5x", "c"], "unknown argument 'c'"),
    ],
)
def test_usage_errors_are_one_line_and_2(script, arguments, message, tmp_path):
    result = run(script, *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not any(tmp_path.iterdir())


def test_absent_accelerators_are_not_mentioned(tiny, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    arguments = (f"--gin_file={tiny.gin}", f"--output_dir={tmp_path}", "--text=the cat")
    result = run("decode", *arguments, env=env, cwd=tmp_path)
    assert result.returncode == 0
    assert "backend" not in said(result.stderr)
    assert said(result.stderr).startswith("Decoding 1 rows")


@pytest.mark.parametrize(
    "library", ["libjax_common", slow("_multiarray_umath"), slow("_sentencepiece")]
)
def test_ctrl_c_while_libraries_load_is_one_line_and_130(tiny, tmp_path, library):
    process = start(tiny, f"--output_dir={tmp_path / 'out'}")
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    error = said(process.communicate()[1])
    assert process.returncode == 130
    assert error == "Interrupted. Run the same command again to go on.\n"


def test_a_full_disk_is_named_and_the_run_goes_on(tiny, tmp_path):
    arguments = (f"--gin_file={tiny.gin}", f"--output_dir={tmp_path / 'out'}")
    # Files may have 1 kB: like a disk without room. The cache of programs is one of its own.
    script = f"ulimit -f 1; exec {sys.executable} {ROOT}/scripts/decode.py {' '.join(arguments)}"
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: File too large: ")
    assert str(tmp_path / "out") in last
    assert last.endswith("Make room, then run the same command again: it goes on where it stopped.")
    assert main(tiny, tmp_path / "out") == 0


def test_a_configuration_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gin_files.parse(["configs/experiments/quickstart_ende.gin"], [], gin_files.root())
