"""The plug-in where T5X cuts the target over the devices of two processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from tiny import random_params

from specdec.checkpoints import save_huggingface

HERE = Path(__file__).parent


def reports_of(directory, t5x_path, count):
    """What each of so many processes writes, which have four devices together."""
    from run_on_hosts_in_t5x import CONFIG, DEVICES

    save_huggingface(directory / "draft", CONFIG, jax.device_get(random_params(CONFIG, 1)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flag = f"--xla_force_host_platform_device_count={DEVICES // count}"
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[1]), t5x_path or "", *sys.path[1:]]
    env = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }  # fmt: skip
    processes = []
    for index in range(count):
        given = map(str, (HERE / "run_on_hosts_in_t5x.py", directory, index, count, address))
        command = [sys.executable, *given]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=600)[1] for process in processes]
    assert not any(process.returncode for process in processes), said
    files = (directory / f"report-{index}.json" for index in range(count))
    return [json.loads(file.read_text()) for file in files]


def test_two_processes_predict_what_one_does(t5x, t5x_path, tmp_path):
    from run_on_hosts_in_t5x import DEVICES, WAYS

    directories = tmp_path / "one", tmp_path / "two"
    (alone,) = reports_of(directories[0], t5x_path, 1)
    for report in reports_of(directories[1], t5x_path, 2):
        assert report["devices"] == DEVICES
        for name in WAYS:
            assert sum(map(len, report[name]["tokens"])) > 500
            assert report[name]["tokens"] == alone[name]["tokens"], name
            np.testing.assert_allclose(
                report[name]["scores"], alone[name]["scores"], rtol=0, atol=1e-4
            )
