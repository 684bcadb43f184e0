"""Several real processes decode one task together, on loopback."""

import os
import signal
import socket
import time

import pytest
from slow import slow

from specdec.runs.processes import Parts, Processes
from tests.runs.conftest import TEXTS
from tests.runs.decoding import main, read, start, without_time

FEW, MANY = 24, 300
WORDS = " ".join(TEXTS).split()
SETTINGS = ("BATCH_SIZE=1", "TEMPERATURE=1.0", "MAX_INPUT_LEN=64")
BINDINGS = [f"--gin.{setting}" for setting in SETTINGS]
RENDEZVOUS = 120
PART = "decodes-00001-of-00002.jsonl"


def pairs(tiny, count):
    """A directory of pairs of many lengths."""
    directory = tiny.root / f"pairs-{count}"
    directory.mkdir()
    rows = (" ".join(WORDS[i % 7 : i % 7 + 1 + i * i % 11]) for i in range(count))
    (directory / "test.tsv").write_text("".join(f"{row}\tdie {row}\n" for row in rows))
    return directory


@pytest.fixture(scope="module")
def few(tiny):
    return pairs(tiny, FEW)


@pytest.fixture(scope="module")
def many(tiny):
    """Enough to be stopped amid them."""
    return pairs(tiny, MANY)


def alone(tiny, data, directory):
    """What one process makes of it."""
    assert main(tiny, directory, *SETTINGS, f"DATA_DIR={str(data)!r}") == 0
    return directory


@pytest.fixture(scope="module")
def whole(tiny, few, tmp_path_factory):
    return alone(tiny, few, tmp_path_factory.mktemp("whole"))


def start_all(
    tiny, directories, *arguments, each=((), ()), cwds=(None, None), timeout=RENDEZVOUS, devices=1
):
    """A process of so many devices for each directory; ``each`` has arguments of its own for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        start(
            tiny, *BINDINGS, *arguments, f"--output_dir={directory}",
            f"--coordinator_address=127.0.0.1:{port}", f"--num_processes={len(directories)}",
            f"--process_id={index}", f"--process_timeout={timeout}", *each[index],
            cwd=cwds[index], **simulated(devices),
        )
        for index, directory in enumerate(directories)
    ]  # fmt: skip


def simulated(devices):
    """Variables with which a process has so many devices."""
    flag = f"--xla_force_host_platform_device_count={devices}"
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


def ended(processes, timeout=300):
    """(exit code, stdout, stderr) of each."""
    outputs = [process.communicate(timeout=timeout) for process in processes]
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def assert_same(directory, whole):
    assert (directory / "decodes.jsonl").read_bytes() == (whole / "decodes.jsonl").read_bytes()
    assert without_time(read(directory)[0]) == without_time(read(whole)[0])


def test_two_processes_do_what_one_does(tiny, few, whole, tmp_path):
    """With a directory each: what they say goes through JAX, not through files."""
    directories = [tmp_path / "a", tmp_path / "b"]
    runs = ended(start_all(tiny, directories, f"--gin.DATA_DIR={str(few)!r}"))
    assert [code for code, *_ in runs] == [0, 0], runs
    assert_same(directories[0], whole)
    assert ["BLEU" in output for _, output, _ in runs] == [True, False]
    parts = [
        (path / f"decodes-0000{i}-of-00002.jsonl").read_bytes().splitlines()
        for i, path in enumerate(directories)
    ]
    lines = (whole / "decodes.jsonl").read_bytes().splitlines()
    assert parts == [lines[::2], lines[1::2]]


def wait_for_rows(path, count, *processes):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.001)
    pytest.fail(f"{path} has not so many rows: {ended(processes)}")


@pytest.mark.slow
def test_one_is_told_to_stop_and_all_stop_and_go_on(tiny, many, tmp_path, tmp_path_factory):
    """As when a pod is preempted: SIGTERM reaches one of the processes first."""
    data = f"--gin.DATA_DIR={str(many)!r}"
    processes = start_all(tiny, [tmp_path] * 2, data)
    wait_for_rows(tmp_path / PART, 1, *processes)  # Programs are compiled now.
    processes[1].send_signal(signal.SIGTERM)
    runs = ended(processes)
    assert [code for code, *_ in runs] == [143, 143], runs
    for _, _, error in runs:
        assert "Stopped by SIGTERM" in error
        assert "Traceback" not in error
    assert not (tmp_path / "decodes.jsonl").exists()
    assert [code for code, *_ in ended(start_all(tiny, [tmp_path] * 2, data))] == [0, 0]
    assert_same(tmp_path, alone(tiny, many, tmp_path_factory.mktemp("whole")))


def test_processes_that_disagree_end_with_one_error_each(tiny, tmp_path):
    each, words = ((), ("--gin.GAMMA=3",)), ["Process 1 of 2", "another run", "= 3", "= 2"]
    runs = ended(start_all(tiny, [tmp_path / "a", tmp_path / "b"], each=each))
    for code, _, error in runs:
        (message,) = [line for line in error.splitlines() if line.startswith("error: ")]
        assert code in (1, 2)  # 1 where the mistake was another process's.
        for word in words:
            assert word in message
        assert "Traceback" not in error
    assert 2 in {code for code, *_ in runs}
    assert not (tmp_path / "a").exists()


def test_a_process_that_does_not_come(tiny, tmp_path):
    lonely, other = start_all(tiny, [tmp_path, tmp_path], timeout=5)
    other.kill()
    ((code, _, error), _) = ended([lonely, other], timeout=60)
    assert code == 2
    assert error.splitlines()[-1].startswith(
        "error: the processes of this run did not meet within 5 s."
    )


def test_parts_of_another_number_of_processes_are_refused(tmp_path):
    def parts(index, count):
        return Parts(Processes(index, count), tmp_path, lambda: iter([5, 5]))

    (tmp_path / "decodes-00000-of-00004.jsonl").touch()
    for count in (1, 2):
        with pytest.raises(ValueError, match="by 4 processes: go on with as many"):
            parts(0, count)
    parts(3, 4)
    (tmp_path / "decodes.jsonl").touch()
    parts(0, 1)


def test_another_runs_decodes_are_not_replaced(tiny, few, whole, tmp_path, capsys, monkeypatch):
    (tmp_path / "decodes.jsonl").write_bytes((whole / "decodes.jsonl").read_bytes())
    monkeypatch.setattr(Processes, "exchange", lambda self, mine: [mine] * self.count)
    settings = (*SETTINGS, f"DATA_DIR={str(few)!r}", "GAMMA=3")
    assert main(tiny, tmp_path, *settings, processes=Processes(0, 2)) == 2
    error = capsys.readouterr().err
    assert "holds the decodes of another configuration" in error
    assert "remove decodes.jsonl there" in error


def on_mesh(data, model):
    return (
        "--gin_file=configs/meshes/rules.gin", f"--gin.DeviceMesh.data={data}",
        f"--gin.DeviceMesh.model={model}", f"--gin.BATCH_SIZE={2 * data}",
    )  # fmt: skip


def alone_on_mesh(tiny, directory, data, mesh):
    """What one process makes of it that has all devices."""
    process = start(
        tiny, *BINDINGS, *on_mesh(*mesh), f"--gin.DATA_DIR={str(data)!r}",
        f"--output_dir={directory}", **simulated(mesh[0] * mesh[1]),
    )  # fmt: skip
    ((code, _, error),) = ended([process])
    assert code == 0, error
    return directory


@pytest.fixture(scope="module")
def whole_on_mesh(tiny, few, tmp_path_factory):
    return alone_on_mesh(tiny, tmp_path_factory.mktemp("mesh"), few, (1, 2))


@pytest.mark.parametrize("checked", [False, slow(True)])
def test_one_target_over_two_processes(tiny, few, whole_on_mesh, tmp_path, checked):
    """Process 0 writes what one process writes; the other needs no directory."""
    directories = [tmp_path / "a", tmp_path / "b"]
    given = [*on_mesh(1, 2), f"--gin.DATA_DIR={str(few)!r}"]
    if checked:  # Compared with plain decoding, and timed: both do it together.
        given += ["--gin.TEMPERATURE=0.0", "--gin.TIMING_EXAMPLES=2"]
    runs = ended(start_all(tiny, directories, *given))
    assert [code for code, *_ in runs] == [0, 0], runs
    assert not directories[1].exists()
    assert ["BLEU" in output for _, output, _ in runs] == [True, False]
    assert "hold one target together" in runs[0][2]
    if checked:
        results, _ = read(directories[0])
        assert results["greedy_mismatches"] == 0
        assert results["measured_speedup"] > 0
    else:
        assert_same(directories[0], whole_on_mesh)


@pytest.mark.slow
def test_groups_of_devices_across_processes(tiny, few, tmp_path):
    """A mesh of 2 x 2, each group over two of four processes."""
    whole = alone_on_mesh(tiny, tmp_path / "whole", few, (2, 2))
    directories = [tmp_path / str(index) for index in range(4)]
    given = [*on_mesh(2, 2), f"--gin.DATA_DIR={str(few)!r}"]
    alone = {"each": [()] * 4, "cwds": [None] * 4}
    runs = ended(start_all(tiny, directories, *given, **alone))
    assert [code for code, *_ in runs] == [0] * 4, runs
    assert_same(directories[0], whole)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "victim"), [(signal.SIGKILL, 0), (signal.SIGTERM, 1)])
def test_processes_of_one_target_end_together_and_go_on(
    tiny, many, tmp_path, tmp_path_factory, number, victim
):
    given = [*on_mesh(1, 2), f"--gin.DATA_DIR={str(many)!r}"]
    processes = start_all(tiny, [tmp_path] * 2, *given, timeout=20)
    wait_for_rows(tmp_path / "decodes.jsonl", 5, *processes)
    processes[victim].send_signal(number)
    began = time.monotonic()
    runs = ended(processes)
    assert time.monotonic() - began < 60
    if number == signal.SIGTERM:
        assert [code for code, *_ in runs] == [143, 143]
        for _, _, error in runs:
            assert "Stopped by SIGTERM" in error
    else:
        assert all(code != 0 for code, *_ in runs)
        # JAX itself ends a process whose coordinator has gone, or that waits for the other in a way
        # that finds no error.
        told = ("Another process of this run has gone", "another task died")
        assert any(words in runs[1 - victim][2] for words in told), runs
    assert not (tmp_path / "results.json").exists()
    assert [code for code, *_ in ended(start_all(tiny, [tmp_path] * 2, *given))] == [0, 0]
    whole = alone_on_mesh(tiny, tmp_path_factory.mktemp("whole"), many, (1, 2))
    assert_same(tmp_path, whole)
