"""What the scripts' command lines share: gin files and bindings, a directory, kept programs."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from absl import app, flags

from specdec.core.machine import cache_directory

USER_ERROR = 2
flags.disclaim_key_flags()  # They are listed as the script's own.


@dataclasses.dataclass(frozen=True)
class Given:
    """What the command line says: ``bindings`` are the --gin.NAME=value, ``command`` is all."""

    gin_files: Sequence[str]
    bindings: Sequence[str]
    output_dir: str | None
    command: str

    def directory(self, kind: str) -> Path:
        """The output directory; out/<kind>_<configuration> by default."""
        return Path(self.output_dir or f"out/{kind}_{Path(self.gin_files[-1]).stem}")


def told(error: Exception | str) -> int:
    """Tells of a user's mistake in one line, without gin's account of calls; the exit code."""
    message = str(error).split("\n  In call to configurable")[0]
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR


def run(script: Callable[[Given], int], output_dir: str, required: bool = False) -> None:
    """Exits with what ``script`` returns; with 2 if an argument is no flag.

    ``output_dir`` says what --output_dir is for; it may be ``required``.
    """
    about = "Gin configuration; may be repeated."
    gin_file = flags.DEFINE_multi_string("gin_file", None, about, required=True)
    directory = flags.DEFINE_string("output_dir", None, output_dir, required=required)
    bindings = [a.removeprefix("--gin.") for a in sys.argv if a.startswith("--gin.")]

    def main(argv: list[str]) -> int:
        if len(argv) > 1:
            return told(f"unknown argument {argv[1]!r}.")
        command = shlex.join(["python", *sys.argv])
        return script(Given(gin_file.value, bindings, directory.value, command))

    # absl refuses flags that were not defined.
    app.run(main, [a for a in sys.argv if not a.startswith("--gin.")])


def use_compilation_cache() -> None:
    """Turns on JAX's persistent cache, in specdec's cache directory unless JAX was told another."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "programs"))
