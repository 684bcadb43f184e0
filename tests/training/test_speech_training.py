"""Drafts of a target that listens: rows of its own transcripts, trained on, decoded with."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specdec
from specdec.checkpoints import architectures
from specdec.models.eagle.config import EagleConfig
from specdec.training import draft_vocabulary, teacher_forcing
from specdec.training.batching import BatchingOptions
from specdec.training.checkpointing import load_params
from specdec.training.heads import HeadsOptions, train_heads
from specdec.training.loop import LoopOptions
from specdec.training.optimizer import OptimizerOptions
from specdec.training.shallow import ShallowOptions, train_shallow
from specdec.training.speech import write_rows
from specdec.training.speech_rows import SpeechRows

sys.path.append(str(Path(__file__).parent.parent / "speech"))

from small_whisper import RATE, sound, write_whisper

EAGLE = EagleConfig(16, 12, 2, 6, 20, reads_encoding=True)
PLAIN = {"temperatures": (0.0,), "log_prob": None, "compression_ratio": None, "no_speech": None}
FRAMES, MOST = 50, 40


@pytest.fixture(scope="session")
def target(once):
    pytest.importorskip("torch", reason="transformers makes the small model with torch")

    def write(directory):
        """A random Whisper whose outputs end: EOS, whose embedding is zero, gets another's."""
        eos = write_whisper(directory)["<|endoftext|>"]
        path, name = directory / "model.safetensors", "model.decoder.embed_tokens.weight"
        weights = load_file(path)
        weights[name][eos] = 1.1 * weights[name][106]
        save_file(weights, path, {"format": "pt"})

    return once("whisper_to_draft_for", write)


@pytest.fixture(scope="session")
def recordings(once):
    """Manifests: four recordings to train on, of one to three windows, and one to validate with."""
    soundfile = pytest.importorskip("soundfile", reason="recordings are written by soundfile")

    def write(directory):
        lines = []
        for number, seconds in enumerate((1.0, 2.0, 0.6, 3.1, 2.0)):
            soundfile.write(directory / f"{number}.wav", sound(seconds, number), RATE)
            lines.append(json.dumps({"audio": f"{number}.wav", "language": "en"}) + "\n")
        (directory / "train.jsonl").write_text("".join(lines[:4]))
        (directory / "validation.jsonl").write_text(lines[4])

    return once("recordings", write)


def written(directory, target, recordings):
    write_rows(
        directory, target=str(target), data=recordings, batch_size=2, most_tokens=MOST,
        most_repeated=9.0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def rows(once, target, recordings):
    return once("rows", lambda directory: written(directory, target, recordings))


def settings(rows, steps):
    return {
        "files": SpeechRows(str(rows)),
        "batching": BatchingOptions(200, ((FRAMES, 16), (FRAMES, 50))),
        "optimizer": OptimizerOptions(peak_learning_rate=2e-2, warmup_steps=2),
        "loop": LoopOptions(steps, log_every=1, eval_every=steps // 2, checkpoint_every=4),
    }


def test_rows_are_what_the_target_writes(target, recordings, rows):
    """Rows have the tokens of a transcript, and the states that they were drawn from."""
    files = [load_file(path) for path in sorted((rows / "train").glob("*.safetensors"))]
    assert len(files) == 7
    assert any(len(each["tokens"]) for each in files)
    pair = specdec.load_pair(target=str(target), draft=specdec.Copying())
    config, params = load_params(target)
    model = architectures.decode_model(config, "in_out")
    packed = model.pack(params)
    found = pair.transcribe(
        str(recordings / "0.wav"), language="en", max_window_tokens=MOST, method="autoregressive",
        timestamps=False, **PLAIN,
    )  # fmt: skip
    tokens = pair.listening.tokens
    before = [tokens.languages["en"], tokens.tasks["transcribe"], tokens.no_timestamps]
    assert files[0]["tokens"].tolist() == [*before, *found.windows[0].tokens, config.eos_id]
    for each in files:
        if not len(each["tokens"]):
            continue
        ids = jnp.asarray(each["tokens"])[None]
        inputs = jnp.asarray(each["encoding"], jnp.float32)[None]
        _, _, hidden = teacher_forcing.states_along(model, packed, inputs, ids)
        np.testing.assert_allclose(each["states"], hidden[0], rtol=2e-3, atol=2e-2)
        sums = jax.nn.logsumexp(model.logits(packed, hidden)[0], axis=-1)
        np.testing.assert_allclose(each["log_sums"], sums, rtol=2e-3, atol=2e-2)


def test_rows_that_are_there_are_not_made_again(tmp_path, target, recordings, rows):
    shutil.copytree(rows, tmp_path / "rows")
    (tmp_path / "rows/train/1.safetensors").unlink()
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows/train").iterdir()}
    written(tmp_path / "rows", target, recordings)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows/train").iterdir()}
    assert again.keys() == times.keys() | {"1.safetensors"}
    assert {name: again[name] for name in times} == times


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"audio": "none.wav", "language": "en"}', "none.wav"),
        ('{"audio": "0.wav"}', "they need it"),
        ('{"audio": "0.wav", "language": "xx"}', "language = 'xx' is none of the model's"),
        ("{", "Expecting"),
    ],
)
def test_a_manifests_bad_line_is_named(tmp_path, target, recordings, line, message):
    shutil.copy(recordings / "0.wav", tmp_path)
    (tmp_path / "train.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=rf"train.jsonl:1: .*{message}"):
        write_rows(tmp_path, target=str(target), data=tmp_path)


def test_a_draft_vocabulary_is_of_the_transcripts(tmp_path, target, rows):
    files = SpeechRows(str(rows))
    found = draft_vocabulary.build(tmp_path, files=files, vocabulary_path=str(target), min_count=1)
    written = {token for output in files.outputs("train") for token in output}
    assert written <= set(found)
    assert len(found) <= len(written) + 1


def test_batches_have_each_row_once(rows):
    config, _ = load_params(rows.parent / "whisper_to_draft_for")
    batches = SpeechRows(str(rows)).batches("train", config, settings(rows, 2)["batching"])
    found = [
        row[row != batches.pad_id].tolist()
        for batch in batches.epoch(3) for row in batch.targets if (row != batches.pad_id).any()
    ]  # fmt: skip
    files = (load_file(path)["tokens"].tolist() for path in (rows / "train").iterdir())
    assert sorted(found) == sorted(each for each in files if each)
    with pytest.raises(FileNotFoundError, match="holds no rows of speech"):
        SpeechRows(str(rows)).batches("test", config, settings(rows, 2)["batching"])


def accepted(target, draft):
    """Guesses that were accepted; transcripts with the draft must be those without."""
    pair = specdec.load_pair(target=str(target), draft=draft)
    heard = [sound(2.0, 11), sound(1.0, 12)]
    options = {"language": "en", "max_window_tokens": MOST, **PLAIN}
    plain = pair.transcribe(heard, RATE, method="autoregressive", **options)
    found = pair.transcriber(gamma=3, **options).transcribe(heard)
    for one, other in zip(plain, found.transcripts, strict=True):
        assert one.text == other.text
        assert [each.tokens.tolist() for each in one.windows] == [
            each.tokens.tolist() for each in other.windows
        ]
    return found.stats.accepted


def test_a_layer_learns_and_drafts(tmp_path, target, rows, validations):
    options = HeadsOptions(str(target), steps_ahead=2)
    made = train_heads(tmp_path, heads=EAGLE, options=options, **settings(rows, 24))
    first, last = validations
    assert last["loss_1"] < first["loss_1"]
    assert accepted(target, specdec.Heads(str(tmp_path / "heads"))) > 0
    # A run that is stopped and goes on ends with the same bits.
    short = settings(rows, 24)
    again = tmp_path / "again"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(SystemExit):
            train_heads(again, heads=EAGLE, options=options, **short)
    resumed = train_heads(again, heads=EAGLE, options=options, **short)
    jax.tree.map(np.testing.assert_array_equal, resumed, made)


def stop_after(patch, step):
    """Stops a run as SIGTERM does, behind a step."""
    from specdec.training import loop

    say = loop.say

    def said(message):
        say(message)
        if message.startswith(f"step {step}/"):
            raise SystemExit(143)

    patch.setattr(loop, "say", said)


def test_few_layers_learn_and_draft(tmp_path, target, rows, validations):
    options = ShallowOptions(str(target), (1,))
    train_shallow(tmp_path, options=options, **settings(rows, 24))
    first, last = validations
    assert last["loss"] < first["loss"]
    assert accepted(target, str(tmp_path / "draft")) > 0
    pair = specdec.load_pair(target=str(target), draft=str(tmp_path / "draft"))
    assert pair.draft.model.params.encoder is None  # It is the target's.


def test_all_layers_are_the_target(tmp_path, target, rows, validations):
    """A draft that begins with every layer agrees everywhere; training hardly moves it."""
    options = ShallowOptions(str(target), (0, 1))
    chosen = settings(rows, 2)
    chosen["optimizer"] = OptimizerOptions(peak_learning_rate=1e-9, warmup_steps=1)
    train_shallow(tmp_path, options=options, **chosen)
    assert validations[-1]["alpha"] == pytest.approx(1, abs=2e-2)
    assert validations[-1]["loss"] == pytest.approx(0, abs=2e-2)  # Both are distributions.
    with pytest.raises(ValueError, match="layers: a layer must be"):
        train_shallow(
            tmp_path, options=dataclasses.replace(options, layers=(2,)), **chosen
        )  # fmt: skip
