"""One target over several processes on loopback: what one process with all devices does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled_text import collectives, read_program
from run_on_hosts import SUITES
from slow import slow

HERE = Path(__file__).parent
ALONE = (1, 8)
NUMBERS = {"log_probs", "scores"}


def on_hosts(suite, processes, devices):
    """What fills a directory by ``run_on_hosts.py`` in so many processes of so many devices."""

    def fill(directory):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        flag = f"--xla_force_host_platform_device_count={devices}"
        env = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)]),
        }
        started = []
        for index in range(processes):
            given = map(str, (HERE / "run_on_hosts.py", directory, suite, index, processes))
            with open(directory / f"said-{index}", "w") as said:
                command = [sys.executable, *given, address]
                started.append(subprocess.Popen(command, env=env, stderr=said))
        codes = [process.wait(timeout=900) for process in started]
        said = [(directory / f"said-{index}").read_text() for index in range(processes)]
        assert not any(codes), said

    return fill


@pytest.fixture(scope="module")
def written(once):
    """(suite, layout) -> the directory that run_on_hosts.py wrote."""
    return lambda suite, layout: once(f"hosts-{suite}-{layout[0]}", on_hosts(suite, *layout))


@pytest.fixture(scope="module")
def reports(written):
    """(suite, layout) -> each process's report."""

    def read(suite, layout):
        files = (f"report-{index}.json" for index in range(layout[0]))
        return [json.loads((written(suite, layout) / file).read_text()) for file in files]

    return read


LAYOUTS = [(2, 4), (4, 2)]


@pytest.mark.parametrize(
    ("suite", "layout"),
    [("few", (2, 4)), slow("few", (4, 2)), *(slow(s, at) for s in ("t5", "gpt") for at in LAYOUTS)],
)
def test_processes_decode_what_one_does(reports, suite, layout):
    """The same tokens. Numbers differ by rounding, for processes add up in another order than one:
    by less than those of a mesh and of one device do (1.9e-4, of log-probabilities down to -10).
    """
    (alone,) = reports(suite, ALONE)
    assert len(alone["decodes"]) == sum(map(len, SUITES[suite].values()))
    for name, expected in alone["decodes"].items():
        beams = "beams" in name
        assert sum(map(len, expected["tokens"])) >= (200 if beams else 2000), name
        assert expected["accepted"] > 0 or "plain" in name or name.endswith(", beams")
        assert any(expected["beams"]) == beams
    first, *others = reports(suite, layout)
    for report in (first, *others):
        assert (report["devices"], report["mine"]) == (8, layout[1])
        assert report["decodes"] == first["decodes"]
    for name, expected in alone["decodes"].items():
        found = first["decodes"][name]
        for key in set(expected) - NUMBERS:
            assert found[key] == expected[key], (name, key)
        for key in NUMBERS:
            assert list(map(len, found[key])) == list(map(len, expected[key]))
            for row, other in zip(found[key], expected[key], strict=True):
                np.testing.assert_allclose(row, other, rtol=0, atol=2e-4, err_msg=name)


def test_each_process_reads_its_devices_part(reports):
    """Of a target on 1 x 8: half of what is cut, in two processes, and no byte twice. The draft is
    whole in each.
    """
    every = {
        layout: [report["reads"] for report in reports("few", layout)] for layout in (ALONE, (2, 4))
    }
    for layout, found in every.items():
        for read, held in (pair for reads in found for pair in reads.values()):
            assert read == held, layout
    for kind, (whole, _) in every[ALONE][0].items():
        first, second = (reads[kind][0] for reads in every[2, 4])
        assert first == second < 0.75 * whole


def test_no_collective_is_added(written):
    """The program's collectives are those of one process: kinds, bytes, devices, in their order."""

    def found(layout, index):
        program = read_program((written("few", layout) / f"chains-{index}.hlo").read_text())
        every = collectives(i for instructions in program.values() for i in instructions)
        return [(each.opcode, each.size, each.devices, each.scope) for each in every]

    expected = found(ALONE, 0)
    assert len(expected) > 8
    assert found((2, 4), 0) == found((2, 4), 1) == expected


@pytest.mark.slow
def test_what_time_decides_is_decided_once(reports):
    """The gamma of "auto", the parts of a stream, and where a time limit ends the rows."""
    first, second = reports("time", (2, 4))
    assert first == second
    (choice,) = first["decodes"].values()
    assert "gamma" in choice["choice"]
    assert len(first["streamed"]) > 1
    assert sum(first["in time"]) > 0
