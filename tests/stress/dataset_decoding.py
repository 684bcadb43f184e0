"""Kills data-set decoding again and again, and watches its memory over a long file. Linux.

    PYTHONPATH=. python tests/stress/dataset_decoding.py [--output_dir=results/dataset_decoding]
        [--kills=50 --kill_rows=500] [--rows=100000]

Both decode rows of $SPECDEC_DATA/ende_tatoeba/test.tsv, repeated where they are too few, with a
tiny pair of random weights. A killed run is started again and has to end with the bytes of the run
that nobody killed. Memory is the resident set of the process. Writes results.json and the figure.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from specdec.checkpoints import save_huggingface
from specdec.core import files
from specdec.core.progress import say
from specdec.measure import results
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import init_params
from specdec.studies.measure import figures

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "specdec" / "bundled" / "quickstart" / "target" / "spiece.model"
MODEL = T5Config(
    vocab_size=4096, d_model=16, num_encoder_layers=1, num_decoder_layers=1, num_heads=2,
    head_dim=8, d_ff=16,
)  # fmt: skip
GIN = """
include "configs/runs/decode.gin"
include "configs/methods/speculative.gin"
include "configs/sampling/temp1.gin"
include "configs/tasks/ende_tatoeba.gin"
TARGET = {target!r}
DRAFT = {draft!r}
GAMMA = 2
MAX_DECODE_LEN = 16
TIMING_EXAMPLES = 0
"""
SEED = 0
KILL_BATCH, LONG_BATCH = 2, 64
SECONDS_BETWEEN_SAMPLES = 2


class Runs:
    """A folder with a tiny pair, data made of real rows, and decodes of them."""

    def __init__(self, folder: Path):
        self._folder = folder
        # Draft and target share most of their weights, so that some guesses are accepted.
        params, noise = (init_params(MODEL, jax.random.key(seed)) for seed in (7, 8))
        mixed = jax.tree.map(lambda a, b: a + 0.2 * b, params, noise)
        for name, weights in (("target", params), ("draft", mixed)):
            save_huggingface(folder / name, MODEL, weights, VOCABULARY)
        self._gin = folder / "tiny.gin"
        self._gin.write_text(
            GIN.format(target=str(folder / "target"), draft=str(folder / "draft")),
            encoding="utf-8",
        )

    def data(self, num_rows: int) -> Path:
        source = Path(os.environ.get("SPECDEC_DATA", "data")) / "ende_tatoeba" / "test.tsv"
        directory = self._folder / f"data_{num_rows}"
        directory.mkdir()
        with open(source, "rb") as rows, open(directory / "test.tsv", "wb") as file:
            file.writelines(itertools.islice(itertools.cycle(rows), num_rows))
        return directory

    def start(self, data: Path, name: str, batch_size: int) -> tuple[subprocess.Popen, Path]:
        """Starts or continues a run; gives the process and its decodes.jsonl."""
        command = [
            sys.executable, str(ROOT / "scripts" / "decode.py"), f"--gin_file={self._gin}",
            f"--gin.DATA_DIR={str(data)!r}", f"--gin.BATCH_SIZE={batch_size}",
            f"--output_dir={self._folder / name}",
        ]  # fmt: skip
        env = os.environ | {"SPECDEC_CACHE": str(self._folder / "cache")}
        with open(self._folder / "log", "a") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
        return process, self._folder / name / "decodes.jsonl"

    def finish(self, process: subprocess.Popen) -> None:
        if process.wait():
            raise SystemExit(f"A run failed:\n{(self._folder / 'log').read_text()[-2000:]}")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_and_continue(runs: Runs, kills: int, num_rows: int) -> dict[str, Any]:
    """Each run is killed at a random byte of its decodes, or before the first, then continued."""
    data, generator = runs.data(num_rows), random.Random(SEED)
    process, decodes = runs.start(data, "whole", KILL_BATCH)
    runs.finish(process)
    whole = decodes.read_bytes()
    process, decodes = runs.start(data, "again", KILL_BATCH)  # Its programs are compiled.
    began = time.monotonic()
    while not size(decodes) and process.poll() is None:
        time.sleep(0.01)
    seconds_to_first_row = time.monotonic() - began
    runs.finish(process)
    if decodes.read_bytes() != whole:
        raise SystemExit("Two runs that nobody killed differ.")
    points = []
    for number in range(kills):
        process, decodes = runs.start(data, f"killed_{number}", KILL_BATCH)
        if number % 5 == 4:
            until = time.monotonic() + generator.uniform(0, seconds_to_first_row)
            while time.monotonic() < until and not size(decodes):
                time.sleep(0.0005)
        else:
            wanted = generator.randrange(len(whole))
            while size(decodes) < wanted and process.poll() is None:
                time.sleep(0.0005)
            time.sleep(generator.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        code, left = process.wait(), decodes.read_bytes() if decodes.exists() else b""
        process, decodes = runs.start(data, f"killed_{number}", KILL_BATCH)
        runs.finish(process)
        points.append(
            {
                "killed": code == -signal.SIGKILL,
                "rows_on_disk": left.count(b"\n"),
                "torn": bool(left) and not left.endswith(b"\n"),
                "identical": decodes.read_bytes() == whole,
            }
        )
        say(f"kill {number + 1} of {kills}: {points[-1]}")
    return {
        "rows": num_rows,
        "batch_size": KILL_BATCH,
        "seed": SEED,
        "kills": sum(point["killed"] for point in points),
        "identical": sum(point["identical"] for point in points),
        "points": points,
    }


def resident_mb(pid: int) -> float | None:
    """A process's resident memory in MB; None when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    resident = status.partition("VmRSS:")[2].split()  # Empty once it is only waited for.
    return int(resident[0]) * 1024 / 1e6 if resident else None


def watch_memory(runs: Runs, num_rows: int) -> dict[str, Any]:
    """Samples of [seconds, rows on disk, MB] from start to end of one run."""
    data = runs.data(num_rows)
    process, decodes = runs.start(data, "long", LONG_BATCH)
    began, rows, read, samples = time.monotonic(), 0, 0, []
    while process.poll() is None:
        time.sleep(SECONDS_BETWEEN_SAMPLES)
        if size(decodes) > read:
            with open(decodes, "rb") as file:
                file.seek(read)
                new = file.read()
            rows, read = rows + new.count(b"\n"), read + len(new)
        memory = resident_mb(process.pid)
        if memory is not None:
            samples.append([round(time.monotonic() - began, 1), rows, round(memory, 1)])
    runs.finish(process)
    decoding = [memory for _, rows, memory in samples if 0 < rows < num_rows]
    tenth = max(1, len(decoding) // 10)
    return {
        "rows": num_rows,
        "rows_on_disk": decodes.read_bytes().count(b"\n"),
        "batch_size": LONG_BATCH,
        "seconds": samples[-1][0],
        "decodes_mb": round(size(decodes) / 1e6, 1),
        # Means over tenths of the samples between the first row and the last.
        "mb_by_tenth_of_decoding": [
            round(sum(decoding[i : i + tenth]) / tenth, 1)
            for i in range(0, tenth * (len(decoding) // tenth), tenth)
        ],
        "largest_mb_while_decoding": max(decoding),
        "largest_mb": max(memory for *_, memory in samples),
        "samples": samples,
    }


def draw(memory: dict[str, Any], directory: Path) -> None:
    """Resident memory over time: start, rows being decoded (shaded), outputs being scored."""
    seconds, rows, megabytes = zip(*memory["samples"], strict=True)
    inside = [time for time, done in zip(seconds, rows, strict=True) if 0 < done < memory["rows"]]
    with figures.saved(directory, "memory", (7.0, 3.4)) as figure:
        axes = figure.subplots()
        axes.axvspan(inside[0], inside[-1], color="#e8eef7", zorder=0)
        axes.plot(seconds, megabytes, color=figures.BLUE)
        axes.set_ylim(0, 1.25 * max(megabytes))
        height = 1.12 * max(megabytes)
        middle = (inside[0] + inside[-1]) / 2
        axes.text(middle, height, f"{memory['rows']:,} rows are decoded", ha="center")
        axes.text((inside[-1] + seconds[-1]) / 2, height, "scored", ha="center")
        axes.set_xlabel("seconds")
        axes.set_ylabel("resident memory, MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("results/dataset_decoding"))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kill_rows", type=int, default=500)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        with ThreadPoolExecutor() as pool:  # Side by side: nothing is timed.
            watching = pool.submit(watch_memory, runs, options.rows)
            killed = kill_and_continue(runs, options.kills, options.kill_rows)
        memory = watching.result()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    content = {
        "killed": killed, "memory": memory, **results.provenance(),
        "command": shlex.join(["python", *sys.argv]),
    }  # fmt: skip
    files.write_json(options.output_dir / "results.json", content)
    draw(memory, options.output_dir)
    say(f"{killed['identical']} of {killed['kills']} killed runs ended with the same bytes")
    say(f"memory by tenths of decoding, MB: {memory['mb_by_tenth_of_decoding']}")
    if not killed["identical"] == killed["kills"] == options.kills:
        raise SystemExit("Not every run was killed, or not every one ended with the same bytes.")


if __name__ == "__main__":
    main()
