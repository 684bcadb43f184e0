"""``--dry_run`` with COMPILE_FOR: the very run compiled, printed beside the plan and written."""

import json
import re
from pathlib import Path

import pytest

from specdec.core.theory import expected_tokens
from specdec.runs import main
from specdec.runs.command_line import Given

pytestmark = pytest.mark.usefixtures("nothing_is_loaded")
ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
KEYS = [
    "topology", "target", "draft", "gamma", "argument_bytes", "temporary_bytes", "device_bytes",
    "compile_seconds", "start", "plain_step", "draft_step", "target_call", "block", "cost_ratio",
    "verify_ratio", "speedup_at", "findings",
]  # fmt: skip


def run(files, *bindings, folder=None):
    given = Given([str(file) for file in files], bindings, folder and str(folder), "test")
    return main.decode(given, ROOT, dry_run=True)


def compiled(capsys, tmp_path, files, *bindings):
    """What is printed of the compiler's, and what is written."""
    folder = tmp_path / "new"
    assert run(files, *bindings, folder=folder) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    return output[output.index("Compiled for ") :], json.loads(
        (folder / "compile.json").read_text()
    )


def test_what_is_printed_and_written(tiny, tmp_path, capsys):
    output, found = compiled(capsys, tmp_path, [tiny.gin], "COMPILE_FOR='v5e'")
    assert set(KEYS) <= set(found)
    assert (found["topology"], found["gamma"], found["device_bytes"]) == ("v5e", 2, 16 * 2**30)
    assert (found["target"], found["draft"]) == (str(tiny.target), str(tiny.draft))
    for name in ("start", "plain_step", "draft_step", "target_call", "block"):
        part = found[name]
        assert part["kernels"] is None
        least = max(part["cycles"] / 1.5e9, part["bytes"] / 819e9)
        assert part["ms"] >= 1e3 * least * 0.999
    assert found["findings"]["graphs"] is None
    # c and v are those of the parts, and the speedup is that of whole decodes.
    plain, block, drafting = (found[name]["ms"] for name in ("plain_step", "block", "drafting"))
    assert found["cost_ratio"] == pytest.approx(drafting / 2 / plain)
    assert found["verify_ratio"] == pytest.approx((block - drafting) / plain)
    assert list(found["speedup_at"]) == [f"{0.5 + 0.05 * i:.2f}" for i in range(10)]
    blocks = 12 / expected_tokens(0.75, 2)
    whole = (found["plain_start"]["ms"] + 12 * plain) / (found["start"]["ms"] + blocks * block)
    assert found["speedup_at"]["0.75"] == pytest.approx(whole)
    assert output.startswith("Compiled for TPU v5e: estimated by the TPU compiler, not measured.")
    assert f"c = {found['cost_ratio']:.3f}, v = {found['verify_ratio']:.3f}" in output
    assert re.search(r"^plain step +[\d.]+ +[\d.]+ +[\d.]+", output, re.MULTILINE)
    assert f"Written to {tmp_path / 'new' / 'compile.json'}" in output


def test_a_gpu(tiny, tmp_path, capsys):
    output, found = compiled(
        capsys, tmp_path, [tiny.gin, CONFIGS / "methods" / "autoregressive.gin"],
        "COMPILE_FOR='h100'",
    )  # fmt: skip
    step = found["plain_step"]
    assert step["cycles"] is None
    assert step["kernels"] > 10
    assert step["ms"] == pytest.approx(1e3 * step["bytes"] / 3.35e12)
    assert found["block"] is found["draft"] is found["cost_ratio"] is found["speedup_at"] is None
    assert found["findings"]["graphs"] > 0
    assert "ms is bytes / bandwidth, a floor" in output
    assert "estimated" not in output


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (("COMPILE_FOR='v7'",), "slice is called 'v7'.*v4, v5e"),
        (("COMPILE_FOR='v4'", "GAMMA='auto'"), 'give a gamma or a tree, not "auto"'),
        (("COMPILE_FOR='v4'", "DRAFT=@Heads()", "Heads.path='some/heads'"), "Heads.*no shape"),
        (
            ("COMPILE_FOR='v5e-4'", "MESH=@DeviceMesh()", "DeviceMesh.data=8", "BATCH_SIZE=8"),
            "needs 8 chips, and v5e-4 has 4",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(tiny, capsys, bindings, message):
    assert run([tiny.gin], *bindings) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_what_does_not_fit_says_where_it_would(tiny, capsys):
    """A batch whose caches alone are larger than the chip's memory."""
    long = ("BATCH_SIZE=1048576", "MAX_INPUT_LEN=256", "MAX_DECODE_LEN=512", "COMPILE_FOR='v5e'")
    assert run([tiny.gin], *long) == 2
    message = "Does not fit: the program needs .*iB on each device, and a TPU v5e has 15.75 GiB"
    assert re.search(message, capsys.readouterr().err)
