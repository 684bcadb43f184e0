"""The commands ``specdec-decode``, ``-train`` and ``-convert``; scripts/ has one for each.

Each imports its library only when it runs. So help is shown at once, and Ctrl-C gives one line at
any time.
"""

from __future__ import annotations

from absl import flags

from specdec.runs import command_line
from specdec.runs.command_line import Given


def decode() -> None:
    """Decodes a task with a pair of models, compares with plain decoding, measures the speedup.

        specdec-decode --gin_file=configs/experiments/quickstart_ende.gin \\
            [--gin.GAMMA=4 ...] [--output_dir=DIR] [--text "..." | --input_file=FILE] [--dry_run]

    The same --output_dir continues a run that was stopped. Several processes share the work when
    each is started so, with --distributed, where JAX finds the others (TPU pods, SLURM, Open MPI),
    or with --coordinator_address=HOST:PORT --num_processes=N --process_id=I. If MESH is set, they
    hold one target over all their devices; if not, a copy each, and decode a part of the batches.
    """
    texts = flags.DEFINE_multi_string("text", [], "A text to decode instead; may be repeated.")
    file = flags.DEFINE_string("input_file", None, "A file to decode instead, one text per line.")
    sizes = (
        "Only print parameters, bytes and the expected speedup, with COMPILE_FOR also what a "
        "chip's compiler says; load nothing."
    )
    dry_run = flags.DEFINE_bool("dry_run", False, sizes)
    found = "One of several processes, which JAX finds."
    distributed = flags.DEFINE_bool("distributed", False, found)
    coordinator = flags.DEFINE_string(
        "coordinator_address", None, "HOST:PORT of process 0, where JAX does not find it."
    )
    count = flags.DEFINE_integer("num_processes", None, "How many there are.", lower_bound=1)
    index = flags.DEFINE_integer("process_id", None, "This one's number.", lower_bound=0)
    timeout = flags.DEFINE_integer(
        "process_timeout", None, "Seconds to wait for a process.", lower_bound=1
    )

    def run(given: Given) -> int:
        from specdec.runs import cli, gin_files
        from specdec.runs.processes import ALONE, TIMEOUT_SECONDS, ending_with_others, join

        if dry_run.value:
            _without_devices()
        where = (coordinator.value, count.value, index.value)
        several = distributed.value or where != (None, None, None)
        processes = ALONE
        if several and not dry_run.value:
            processes = join(*where, timeout.value or TIMEOUT_SECONDS)
        with ending_with_others(processes):
            return cli.decode(
                given, gin_files.root(), texts=texts.value, input_file=file.value,
                dry_run=dry_run.value, distributed=several, processes=processes,
            )  # fmt: skip

    command_line.run(run, decode, "Where to write; out/<experiment>-<time> by default.")


def _without_devices() -> None:
    """Nothing is run, so JAX need not look for accelerators, nor say which it does not find."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def train() -> None:
    """Trains what a gin file describes: a vocabulary, a target, a draft or n-gram tables.

        specdec-train --gin_file=configs/training/quickstart_target.gin --output_dir=runs/target \\
            --gin.DATA_DIR="'data/ende_tatoeba'" --gin.VOCABULARY="'runs/vocabulary'"

    Run the same command again to continue a run that was stopped.
    """

    def run(given: Given) -> int:
        from specdec.runs import gin_files
        from specdec.runs.train import main

        return main(given, gin_files.root())

    where = "Directory of the run, which continues if it exists."
    command_line.run(run, train, where, required=True)


def convert() -> None:
    """Converts checkpoints between T5X, Hugging Face and Orbax (a training run), and checks them.

        specdec-convert --source=SOURCE --output_dir=DIR --format=huggingface|t5x|orbax

    SOURCE is a T5X checkpoint (gs://bucket/path too), a Hugging Face T5's directory or hub id, or a
    run of specdec-train. The result is opened again and must give the source's logits.
    """
    source = flags.DEFINE_string("source", None, "A checkpoint or a training run.", required=True)
    formats = ("huggingface", "t5x", "orbax")
    form = flags.DEFINE_enum("format", None, formats, "What to write.", required=True)
    dtypes = ("float32", "float16", "bfloat16")
    dtype = flags.DEFINE_enum("dtype", "float32", dtypes, "How weights are stored.")
    about = "Which of the source's steps; the latest if not given."
    step = flags.DEFINE_integer("step", None, about)

    def run(given: Given) -> int:
        from specdec.runs.convert import convert

        difference = convert(
            source.value, str(given.output_dir), form.value, dtype.value, step.value
        )
        print(f"Wrote {given.output_dir}; logits differ by at most {difference:g}.")
        return 0

    command_line.run(run, convert, "A new directory.", required=True, configured=False)
