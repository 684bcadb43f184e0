"""Runs of ``scripts/decode.py`` for tests: in this process and as a script."""

import json
import os
import subprocess
import sys
from pathlib import Path

from specdec.runs import main as command
from specdec.runs.command_line import Given

ROOT = Path(__file__).resolve().parents[2]


def main(tiny, directory, *bindings, **options):
    """Runs the command line's own function in this process."""
    files = options.pop("files", [str(tiny.gin)])
    return command.decode(Given(files, bindings, str(directory), "test"), ROOT, **options)


def start(tiny, *arguments, cwd=None, **variables):
    """Starts the script itself, from a directory that is not the repository's."""
    command = [sys.executable, ROOT / "scripts" / "decode.py", f"--gin_file={tiny.gin}", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    env |= variables
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        cwd=cwd or tiny.root,
    )  # fmt: skip


def read(directory):
    """Results and rows, in the file's order."""
    results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    lines = (directory / "decodes.jsonl").read_text(encoding="utf-8").splitlines()
    return results, [json.loads(line) for line in lines]


def without_time(results):
    """Less what depends on when it ran, and on what else was compiled in the process before."""
    return {
        name: value
        for name, value in results.items()
        if name not in ("command", "git_sha", "programs")
    }
