"""Eight simulated devices, in a process of their own: the tests' keeps its single one."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def on_eight_devices(script, *arguments):
    """What fills a directory by running a script of this folder there."""

    def fill(directory):
        run = subprocess.run(
            [sys.executable, HERE / script, directory, *arguments],
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")
                + " --xla_force_host_platform_device_count=8",
                "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)]),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr

    return fill
