"""The commands ``specdec-benchmark`` and ``specdec-reproduce``; scripts/ has one for each."""

from __future__ import annotations

from absl import flags

from specdec.runs import command_line
from specdec.runs.command_line import Given


def benchmark() -> None:
    """Times specdec beside other systems on the same weights, inputs and output lengths.

        specdec-benchmark --gin_file=configs/studies/benchmarks/quickstart.gin \\
            [--output_dir=DIR] [--t5x_path=CHECKOUT] [--gin.NAME=value ...]

    Needs the extra "bench" for the other systems (pip install "specdec-jax[bench]"); one that is
    not installed is listed as absent.
    """
    about = "A checkout of github.com/google-research/t5x."
    t5x_path = flags.DEFINE_string("t5x_path", None, about)

    def run(given: Given) -> int:
        from specdec.runs import gin_files
        from specdec.studies.runs.benchmark import main

        return main(given, gin_files.root(), t5x_path.value)

    where = "Where to write; out/benchmark_<configuration> by default."
    command_line.run(run, benchmark, where)


def reproduce() -> None:
    """Makes the paper's tables and figures with the models of a configuration.

        specdec-reproduce --gin_file=configs/studies/small.gin [--output_dir=DIR] [--dry_run]

    Run the same command again to continue a run that was stopped.
    """
    sizes = "Only print the sizes of each row's models: no weights or data are read."
    dry_run = flags.DEFINE_bool("dry_run", False, sizes)

    def run(given: Given) -> int:
        from specdec.runs import gin_files
        from specdec.studies import cli

        return cli.reproduce(given, gin_files.root(), dry_run=dry_run.value)

    where = "Where to write and to continue; out/reproduce_<configuration> by default."
    command_line.run(run, reproduce, where)
