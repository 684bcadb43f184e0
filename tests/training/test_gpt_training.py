"""GPTs by the recipes of T5s: what they read, what is counted, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from distilling import noted_validations
from run_tiny import recipe
from tiny import changed

from specdec.checkpoints import architectures
from specdec.data.text import read_pairs
from specdec.models.gpt.config import GPTConfig
from specdec.text.files import TOKENIZER
from specdec.text.word_pieces import START_ID, train_word_pieces
from specdec.training import distill, mutual, ngrams, teacher_forcing, train, validation
from specdec.training.batching import Batches, BatchingOptions, TokenPair
from specdec.training.optimizer import OptimizerOptions

EOS = 1


@pytest.fixture(scope="module")
def texts(once, data_directory):
    """The copying task's words as passages, their pairs, and their WordPiece vocabulary."""

    def write(directory):
        for name in ("train", "validation"):
            pairs = read_pairs(data_directory / f"{name}.tsv")
            lines = [f"{text}\n" for text, _ in pairs]
            (directory / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
            shutil.copy(data_directory / f"{name}.tsv", directory)
        pieces = (directory / "train.txt").read_text().splitlines()
        train_word_pieces(pieces, 40, directory / TOKENIZER)

    return once("passages", write)


@pytest.fixture(scope="module")
def model():
    return GPTConfig(
        vocab_size=50, max_positions=64, d_model=16, num_layers=1, num_heads=2, d_ff=32,
        dropout_rate=0.1, pad_id=0, eos_id=EOS, start_id=START_ID,
    )  # fmt: skip


def settings(texts, files=train.PassageFiles):
    batching = BatchingOptions(256, (32,))
    return recipe(str(texts)) | {"files": files(str(texts)), "batching": batching}


@pytest.fixture(scope="module")
def target(tmp_path_factory, texts, model):
    """A run over passages, whose loss falls."""
    options, directory = settings(texts), tmp_path_factory.mktemp("target")
    options["loop"] = dataclasses.replace(options["loop"], total_steps=60, eval_every=30)
    options["optimizer"] = OptimizerOptions(peak_learning_rate=1e-1, warmup_steps=3)
    with pytest.MonkeyPatch.context() as patch:
        found = noted_validations(patch)
        train.train(directory, model=model, **options)
    first, last = found
    assert last["loss"] < first["loss"] < 0.8 * np.log(model.vocab_size)
    return directory


def batch_of(model, text, output):
    pair = TokenPair(*teacher_forcing.training_pair(model, text, output))
    (batch,) = Batches([pair], BatchingOptions(16, (16,)), model.eos_id).epoch(0)
    return batch


def test_a_model_reads_text_and_output_as_one_and_predicts_the_output(model):
    batch = batch_of(model, [5, 6, 7], [8, 9])
    np.testing.assert_array_equal(batch.inputs[0, :6], [5, 6, 7, 8, 9, EOS])
    np.testing.assert_array_equal(batch.targets[0, :6], [0, 0, 8, 9, EOS, 0])
    read, predicted = teacher_forcing.training_pair(model, [5, 6], [8, 9], (START_ID,))
    assert (read, predicted) == ([START_ID, 5, 6, 8, 9], [0, 0, 8, 9])
    batch = batch_of(model, [], [8, 9])
    np.testing.assert_array_equal(batch.inputs[0, :3], [START_ID, 8, 9])
    np.testing.assert_array_equal(batch.targets[0, :4], [8, 9, EOS, 0])


def test_validation_texts_begin_as_in_training(texts, model, monkeypatch):
    seen = []

    def decode_rows(_, packed, ids, *rest):
        seen.extend(ids)
        return [[EOS] for _ in ids], None

    monkeypatch.setattr(validation, "decode_rows", decode_rows)
    vocabulary = train.load_vocabulary(str(texts))
    params = architectures.init_params(model, jax.random.key(0))
    validation.greedy_translate(model, vocabulary)(params, ["ant bee"])
    assert seen == [[START_ID, *vocabulary.encode("ant bee")]]


def test_a_dialog_is_trained_on_its_outputs(tmp_path, texts, model, capsys):
    train.train(tmp_path, model=model, **settings(texts, train.TextFiles))
    assert " validation: " in capsys.readouterr().err


def test_a_draft_is_distilled_from_its_target(tmp_path, texts, model, target, validations):
    draft = changed(model, d_model=8, d_ff=16, num_heads=1)
    options = settings(texts)
    del options["vocabulary_path"]
    options["loop"] = dataclasses.replace(options["loop"], total_steps=60, eval_every=30)
    options["distillation"] = distill.DistillationOptions(str(target))
    distill.distill(tmp_path, model=draft, **options)
    first, last = validations
    assert last["alpha"] > first["alpha"]


def test_ngrams_count_passages(tmp_path, texts, model):
    files = train.PassageFiles(str(texts))
    tables = ngrams.build(
        tmp_path, files=files, vocabulary_path=str(texts), vocab_size=50, order=2, start_id=START_ID
    )
    vocabulary = train.load_vocabulary(str(texts))
    ids = [[*vocabulary.encode(text), EOS] for _, text in files.read("train")]
    tokens = sum(map(len, ids))
    assert float(tables.unigram[EOS]) == pytest.approx(len(ids) / tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eos_id": 4}, "eos_id is 4; with this vocabulary it needs 1"),
        ({"pad_id": 7}, "pad_id is 7, which is a token of texts or their end"),
        ({"vocab_size": 20}, "has 40 pieces, the model only 20 rows"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path, texts, model, change, message):
    other = changed(model, **change)
    with pytest.raises(ValueError, match=message):
        train.train(tmp_path / "run", model=other, **settings(texts))
    assert not (tmp_path / "run").exists()


def test_another_architecture_is_refused(
    tmp_path, texts, model, target, data_directory, tiny_model, target_directory
):
    with pytest.raises(ValueError, match="is of another network"):
        train.train(tmp_path, model=tiny_model, initial=str(target), **recipe(str(data_directory)))
    options = settings(texts)
    del options["vocabulary_path"]
    options["distillation"] = distill.DistillationOptions(str(target_directory))
    with pytest.raises(ValueError, match="The draft is decoder-only, the target an enc"):
        distill.distill(tmp_path, model=model, **options)
    with pytest.raises(ValueError, match="Only a T5 learns together with its draft"):
        mutual.learn_together(
            tmp_path, mutual=mutual.MutualOptions(str(target), str(target)),
            files=options["files"], batching=options["batching"], loop=options["loop"],
            target_optimizer=options["optimizer"], draft_optimizer=options["optimizer"],
        )  # fmt: skip
