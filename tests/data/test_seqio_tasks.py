"""seqio tasks, read through seqio itself: from TFDS files made here, and from local pairs."""

import json
import sys
from pathlib import Path

import jax
import pytest
import sacrebleu

import specdec.data
from specdec.checkpoints import save_huggingface
from specdec.data.tasks import model_inputs, seqio_pairs_file, seqio_task
from specdec.models.t5.config import T5Config
from specdec.models.transformer.network import init_params
from specdec.runs import main
from specdec.runs.command_line import Given
from specdec.text.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "specdec" / "bundled" / "quickstart" / "target" / "spiece.model"
OURS = Vocabulary(VOCABULARY)
MODEL = T5Config(
    vocab_size=len(OURS), d_model=8, num_encoder_layers=1, num_decoder_layers=1, num_heads=1,
    head_dim=8, d_ff=8,
)  # fmt: skip
WMT = (("That is good.", "Das ist gut."), ("The house is wonderful.", "Das Haus ist wunderbar."))
NEWS = (
    ("The mayor spoke. " * 20, "The mayor spoke .\nNobody listened ."),
    ("It rained all day.", "It rained ."),
)
PAIRS = (("a small house", "ein kleines Haus"), ("the old man", "der alte Mann"))


def _write(directory, name, version, features, rows, **options):
    """A prepared TFDS data set: what ``tfds build`` leaves behind."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    columns = {key: [row[key] for row in rows] for key in rows[0]}
    splits = {
        split: tf.data.Dataset.from_tensor_slices(columns)
        for split in ("train", "validation", "test")
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name, version=version, features=features, split_datasets=splits,
        data_dir=directory, disable_shuffling=True, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tfds_data(tmp_path_factory):
    """The two data sets of the paper, two rows each, where TFDS looks for them."""
    import seqio
    import tensorflow_datasets as tfds

    directory = str(tmp_path_factory.mktemp("tfds"))
    text = tfds.features.Text()
    _write(
        directory, "wmt_t2t_translate", "1.0.0",
        tfds.features.Translation(languages=("de", "en")),
        [{"en": en, "de": de} for en, de in WMT], config="de-en",
    )  # fmt: skip
    _write(
        directory, "cnn_dailymail", "3.1.0",
        tfds.features.FeaturesDict({"article": text, "highlights": text}),
        [{"article": article, "highlights": summary} for article, summary in NEWS],
    )  # fmt: skip
    seqio.set_tfds_data_dir_override(directory)
    yield directory
    seqio.set_tfds_data_dir_override(None)


@pytest.fixture
def pairs(tmp_path):
    text = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    (tmp_path / "test.tsv").write_text(text, encoding="utf-8")
    return tmp_path


def expected_tokens(text, max_input_len=256):
    return (*OURS.encode(text)[: max_input_len - 1], 1)


def test_cnn_dailymail_from_tfds_files_cut_as_seqio_cuts(tfds_data):
    task = seqio_task("cnn_dailymail_v002", "validation", str(VOCABULARY), 24)
    inputs = [f"summarize: {article}" for article, _ in NEWS]
    assert [example.input for example in task.examples] == inputs
    assert [example.reference for example in task.examples] == [summary for _, summary in NEWS]
    assert [example.tokens for example in task.examples] == [
        expected_tokens(text, 24) for text in inputs
    ]
    assert len(task.examples[0].tokens) == 24
    assert len(task.examples[1].tokens) < 24
    given = model_inputs(task.examples, OURS)
    assert given == [example.tokens for example in task.examples]


def test_local_pairs_as_a_seqio_task(pairs):
    task = seqio_pairs_file("houses", pairs, "test", str(VOCABULARY), 256, "say: ", "rouge")
    assert task.name == "houses/test"
    assert [example.input for example in task.examples] == [
        "say: a small house",
        "say: the old man",
    ]
    assert [example.tokens for example in task.examples] == [
        expected_tokens(example.input) for example in task.examples
    ]
    assert task.metrics(["ein Haus"], ["ein Haus"]).keys() == {"rouge1", "rouge2", "rougeLsum"}
    task = seqio_pairs_file("houses", pairs, "test", str(VOCABULARY), 256, "say: ", "bleu")
    short, whole = "das ist ein altes Haus", "das ist ein altes Haus am Meer"
    bleu = sacrebleu.corpus_bleu([short], [[whole]], tokenize="intl").score
    assert task.metrics([short], [whole]) == {"bleu": bleu}
    assert task.metrics([whole], [short]) != {"bleu": bleu}


def test_text_that_is_not_utf_8_is_a_bad_row(tfds_data):
    import seqio
    import tensorflow as tf

    from specdec.data import seqio_tasks

    def rows(split, shuffle_files, seed=None):
        columns = {"en": [b"good", b"\xff"], "de": [b"fine", b"bad"]}
        return tf.data.Dataset.from_tensor_slices(columns)

    task = seqio_tasks.registered("wmt_t2t_ende_v003", str(VOCABULARY))
    task = task.replace(source=seqio.FunctionDataSource(rows, ["test"]))
    fine, bad = seqio_tasks.read(task, "test", 24).read()
    assert fine.reference == "fine"
    assert bad.reason == "wmt_t2t_ende_v003/test:2: not UTF-8 (invalid start byte)."


def _decode(tmp_path, task, *bindings):
    """A plain decode with a tiny random model that has the bundled pair's vocabulary."""
    model = tmp_path / "model"
    if not model.exists():
        save_huggingface(model, MODEL, init_params(MODEL, jax.random.key(0)), VOCABULARY)
    config = tmp_path / "run.gin"
    config.write_text(
        'include "configs/runs/decode.gin"\n'
        'include "configs/methods/autoregressive.gin"\n'
        'include "configs/sampling/temp0.gin"\n'
        f"{task}\nTARGET = '{model}'\nDRAFT = '{model}'\n"
        "MAX_INPUT_LEN = 16\nMAX_DECODE_LEN = 8\nTIMING_EXAMPLES = 0\n"
    )
    return main.decode(Given([str(config)], bindings, str(tmp_path / "out"), "test"), ROOT)


def test_a_run_with_a_seqio_task_reports_its_metrics_and_continues(tfds_data, tmp_path, capsys):
    task, vocabulary = 'include "configs/tasks/cnn_dailymail.gin"', f"VOCABULARY='{VOCABULARY}'"
    lengths = ("MAX_INPUT_LEN=16", "MAX_DECODE_LEN=8")
    assert _decode(tmp_path, task, vocabulary, *lengths) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["task"] == "cnn_dailymail_v002/test"
    assert results["num_examples"] == 2
    assert results["quality"].keys() == {"rouge1", "rouge2", "rougeLsum"}
    assert "ROUGE-Lsum" in capsys.readouterr().out
    decodes = tmp_path / "out" / "decodes.jsonl"
    whole = decodes.read_bytes()
    decodes.write_bytes(whole[: len(whole) * 2 // 3])
    assert _decode(tmp_path, task, vocabulary, *lengths) == 0
    assert decodes.read_bytes() == whole


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wmt_t2t_ende_v3", "test"), "Did you mean wmt_t2t_ende_v003?"),
        (("xsum", "test"), "It has "),
        (("wmt_t2t_ende_v003", "tset"), "no split 'tset'; it has test, train, validation"),
    ],
)
def test_unknown_names(tfds_data, arguments, message):
    with pytest.raises(ValueError, match="wmt_t2t_ende_v003") as error:
        seqio_task(*arguments, str(VOCABULARY), 256)
    assert message in one_line(error)


@pytest.mark.parametrize(
    ("name", "version", "advice"),
    [
        ("wmt_t2t_ende_v003", "1.0.0", "run `tfds build wmt_t2t_translate/de-en:1.0.0`"),
        ("cnn_dailymail_v002", "3.1.0", "bind seqio_task.tfds_version"),
        ("cnn_dailymail_v002", "3.4.0", "run `tfds build cnn_dailymail:3.4.0`"),
    ],
)
def test_data_that_tfds_has_not_prepared(tmp_path, monkeypatch, name, version, advice):
    import seqio
    import tensorflow_datasets as tfds

    def download(*_, **__):
        raise AssertionError("tried to download")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)
    seqio.set_tfds_data_dir_override(str(tmp_path))
    try:
        with pytest.raises(ValueError, match="TFDS has not prepared") as error:
            seqio_task(name, "test", str(VOCABULARY), 256, version)
    finally:
        seqio.set_tfds_data_dir_override(None)
    message = one_line(error)
    assert str(tmp_path) in message
    assert "set TFDS_DATA_DIR" in message
    assert advice in message
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_that_cannot_be_read(tfds_data, tmp_path):
    with pytest.raises(FileNotFoundError, match="No vocabulary at nowhere"):
        seqio_task("wmt_t2t_ende_v003", "test", "nowhere", 256)
    (tmp_path / "spiece.model").write_bytes(b"junk")
    with pytest.raises(ValueError, match="is not a SentencePiece model"):
        seqio_task("wmt_t2t_ende_v003", "test", str(tmp_path), 256)
    with pytest.raises(ValueError, match=r"cannot be read.*--gin\.VOCABULARY"):
        seqio_task("wmt_t2t_ende_v003", "test", f"file://{tmp_path}/none", 256)


def test_local_pairs_that_are_not_there_or_damaged(pairs):
    def read(split="test", metric="bleu"):
        return seqio_pairs_file("houses", pairs, split, str(VOCABULARY), 3, metric=metric)

    with pytest.raises(FileNotFoundError, match=r"No data file at .*dev\.tsv"):
        read("dev")
    with pytest.raises(ValueError, match="metric must be"):
        read(metric="meteor")
    with open(pairs / "test.tsv", "a") as file:
        file.write("no tab\n")
    *good, bad = read().read()
    assert [example.tokens for example in good] == [expected_tokens(text, 3) for text, _ in PAIRS]
    assert "test.tsv:3: expected 'input<TAB>target'" in bad.reason


def test_a_task_that_post_processes(tfds_data):
    from specdec.data import seqio_tasks

    task = seqio_tasks.registered("wmt_t2t_ende_v003", str(VOCABULARY))
    task = task.replace(postprocess_fn=lambda text, **_: text)
    with pytest.raises(ValueError, match="post-processes outputs"):
        seqio_tasks.read(task, "test", 256)


def test_without_seqio_a_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)
    monkeypatch.delitem(sys.modules, "specdec.data.seqio_tasks", raising=False)
    monkeypatch.delattr(specdec.data, "seqio_tasks", raising=False)
    with pytest.raises(ValueError, match=r'needs seqio, which is not installed.*"\.\[seqio\]"'):
        seqio_task("wmt_t2t_ende_v003", "test", "x", 9)
