"""T5's tasks and metrics, and any seqio task as a :class:`Task`.

Importing this module brings tensorflow along and registers T5's tasks, so only
:mod:`specdec.data.tasks` does so, when a run asks. Source: ``t5/data/tasks.py`` and
``t5/evaluation/metrics.py`` of google-research/text-to-text-transfer-transformer.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sacrebleu
import seqio
import tensorflow as tf
from rouge_score import rouge_scorer
from tensorflow_datasets.core.constants import DATA_DIR

from specdec.data.tasks import Example, Metrics, Task
from specdec.data.text import BadRow, text_of
from specdec.text.vocabulary import Vocabulary

T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
EXTRA_IDS = 100  # Sentinels, which T5 puts after the vocabulary's own pieces.
ROUGE = ("rouge1", "rouge2", "rougeLsum")

tf.config.set_visible_devices([], "GPU")  # They are JAX's; tensorflow would take all their memory.


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU in 0..100 as T5 measures it: cased, with sacreBLEU's tokenizer "intl"."""
    return {"bleu": sacrebleu.corpus_bleu(predictions, [targets], tokenize="intl").score}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Mean F-measures of ROUGE-1, ROUGE-2 and ROUGE-Lsum in 0..100; " . " ends a sentence.

    T5's ``rouge`` estimates these means by a bootstrap, which is random; the means are not.
    """
    scorer = rouge_scorer.RougeScorer(ROUGE)
    lines = ([text.replace(" . ", " .\n") for text in side] for side in (targets, predictions))
    scores = [scorer.score(*pair) for pair in zip(*lines, strict=True)]
    return {
        name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE
    }


METRICS = {"bleu": bleu, "rouge": rouge}


@seqio.map_over_dataset
def _text_to_text(row, prefix: str, source: str, target: str):
    return {"inputs": tf.strings.join([prefix, row[source]]), "targets": row[target]}


def _features(vocabulary: str) -> dict[str, Any]:
    pieces = seqio.SentencePieceVocabulary(vocabulary, EXTRA_IDS)
    return {name: seqio.Feature(pieces, add_eos=True) for name in ("inputs", "targets")}


def _register(
    name: str, tfds_name: str, prefix: str, source: str, target: str, metric: Callable
) -> None:
    """Registers a task of the columns ``source``, after the prefix, and ``target``."""
    if name in seqio.TaskRegistry.names():  # The t5 package was imported before.
        return
    preprocessors = [
        functools.partial(_text_to_text, prefix=prefix, source=source, target=target),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    ]
    task = seqio.Task(
        name, seqio.TfdsDataSource(tfds_name), _features(T5_VOCABULARY), preprocessors,
        metric_fns=[metric],
    )  # fmt: skip
    seqio.TaskRegistry.add_provider(name, task)


_register(
    "wmt_t2t_ende_v003", "wmt_t2t_translate/de-en:1.0.0",
    "translate English to German: ", "en", "de", bleu,
)  # fmt: skip
# T5 registers 3.4.0 since January 2023. Up to 3.1.0 a space preceded a summary's full stops: what
# T5's models learnt to write, and where its ROUGE-Lsum splits.
_register(
    "cnn_dailymail_v002", "cnn_dailymail:3.1.0", "summarize: ", "article", "highlights", rouge
)


def registered(name: str, vocabulary: str, tfds_version: str | None = None) -> seqio.Task:
    """:func:`specdec.data.tasks.seqio_task`'s task, before a split of it is read."""
    names = seqio.TaskRegistry.names()
    if name not in names:
        close = difflib.get_close_matches(name, names, cutoff=0.4)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"It has {', '.join(names)}."
        raise ValueError(f"seqio has no task {name!r}. {hint}")
    task = seqio.TaskRegistry.get(name)
    data = task.source
    if isinstance(data, seqio.TfdsDataSource):
        if tfds_version is not None:
            dataset = str(data.tfds_dataset.name).partition(":")[0]
            data = seqio.TfdsDataSource(f"{dataset}:{tfds_version}")
        _check_prepared(data)
    return task.replace(source=data, output_features=_features(_readable(vocabulary)))


def read(task: seqio.Task, split: str, max_input_len: int) -> Task:
    """A split's examples, unshuffled; inputs cut to ``max_input_len`` tokens as seqio cuts them."""
    if split not in task.splits:
        raise ValueError(
            f"{task.name} has no split {split!r}; it has {', '.join(sorted(task.splits))}."
        )
    name = f"{task.name}/{split}"

    def rows() -> Iterator[Example | BadRow]:
        lengths = {"inputs": max_input_len}
        data = task.get_dataset(lengths, split, shuffle=False, try_in_mem_cache=False)
        for number, row in enumerate(data.as_numpy_iterator(), start=1):
            origin = f"{name}:{number}"
            try:
                sides = ("inputs_pretokenized", "targets_pretokenized")
                text, reference = (text_of(row[side]) for side in sides)
            except ValueError as error:
                yield BadRow(origin, f"{origin}: {error}")
            else:
                yield Example(text, reference, origin, tuple(row["inputs"].tolist()))

    return Task(name, rows, _metrics(task))


def _metrics(task: seqio.Task) -> Metrics | None:
    if task.postprocessor is not None:
        raise ValueError(
            f"{task.name} post-processes outputs with its examples; specdec decodes only "
            "tasks whose metrics compare texts."
        )

    def measure(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        scores: dict[str, Any] = {}
        for metric in task.predict_metric_fns:
            scores |= metric(references, outputs)
        return scores

    return measure if task.predict_metric_fns else None


def _readable(vocabulary: str) -> str:
    """A vocabulary's file, found to be one that can be read."""
    if "://" not in vocabulary:
        return str(Vocabulary(vocabulary).path)
    try:
        with tf.io.gfile.GFile(vocabulary, "rb") as file:
            file.read()
    except tf.errors.OpError as error:
        raise ValueError(
            f"The vocabulary {vocabulary} cannot be read ({error.message}). Without a network give "
            "the task a checkpoint's spiece.model: --gin.VOCABULARY=\"'DIRECTORY'\"."
        ) from None
    return vocabulary


def _check_prepared(source: seqio.TfdsDataSource) -> None:
    """Keeps TFDS from downloading for hours, or trying for minutes without a network."""
    data = source.tfds_dataset
    advice = f"run `tfds build {data.name}` where there is a network"
    try:
        if data.info.splits:
            return
    except (AssertionError, ValueError):
        advice = "bind seqio_task.tfds_version to a version that this TFDS can build"
    raise ValueError(
        f"TFDS has not prepared {data.name} in {data.data_dir or DATA_DIR}: set TFDS_DATA_DIR to a "
        "folder that holds it (with a network perhaps gs://tfds-data/datasets, the public one), or "
        f"{advice}."
    )
