"""The target's outputs on the training inputs, as a file to distil from."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from specdec.data.text import read_pairs, write_pairs
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.decoding.options import GREEDY
from specdec.models.transformer.model import TransformerModel
from specdec.text.vocabulary import Vocabulary
from specdec.training import generate
from specdec.training.recombine import Recombination
from specdec.training.train import TextFiles


@pytest.fixture(scope="module")
def target(tiny_model):
    """Random, so that outputs differ, and leaning to EOS, so that some of them end."""
    params = random_params(tiny_model, 0)
    embedding = params["token_embedder"]["embedding"]
    params["token_embedder"]["embedding"] = embedding.at[tiny_model.eos_id].multiply(4.0)
    return tiny_model, params


def generated(directory, data_directory, target, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "load_params", lambda _: target)
        generate.generate(
            directory, files=TextFiles(str(data_directory)), target=str(data_directory),
            lengths=(16, 32), tokens_per_batch=128, **options,
        )  # fmt: skip
    return read_pairs(directory / generate.FILE_NAME)


@pytest.fixture(scope="module")
def written(tmp_path_factory, data_directory, target):
    return generated(tmp_path_factory.mktemp("generated"), data_directory, target)


def greedy_alone(text, target, vocabulary):
    """The output of one row decoded by itself, and whether it ended."""
    config, params = target
    model = TransformerModel(dataclasses.replace(config, dtype="float32"))
    ids = vocabulary.encode(text, add_eos=True)
    length = 16 if len(ids) <= 16 else 32
    inputs = np.zeros((1, length), np.int32)
    inputs[0, : len(ids)] = ids
    result = decode(
        Engine(model), EngineParams(model.pack(params), GREEDY.traced()),
        model.prompt(inputs, np.array([len(ids)])), jnp.zeros(1, jnp.int32), 2 * length, 0,
        output_bucket=64,
    )  # fmt: skip
    tokens = np.asarray(result.tokens[0, : result.num_tokens[0]])
    return vocabulary.decode(tokens), tokens[-1] == config.eos_id


def test_each_distinct_input_once_with_the_targets_own_output(written, data_directory, target):
    outputs = dict(written)
    assert len(outputs) == len(written)
    inputs = {source for source, _ in read_pairs(data_directory / "train.tsv")}
    assert set(outputs) <= inputs
    assert 20 < len(written) < len(inputs)
    vocabulary = Vocabulary(data_directory)
    for text in sorted(inputs)[:30]:
        output, ended = greedy_alone(text, target, vocabulary)
        assert outputs.get(text) == (output if ended and output.strip() else None)


def test_new_inputs_instead_of_the_training_inputs(tmp_path, data_directory, target):
    recombination = Recombination(60)
    texts = list(dict.fromkeys(source for source, _ in read_pairs(data_directory / "train.tsv")))
    new = recombination(texts)
    write_pairs(tmp_path / "held_out.tsv", [(text, "-") for text in new[:30]])
    pairs = generated(
        tmp_path, data_directory, target, recombination=recombination,
        held_out=(str(tmp_path / "held_out.tsv"),),
    )  # fmt: skip
    inputs = {source for source, _ in pairs}
    assert len(inputs) == len(pairs) > 5
    assert not inputs & {*texts, *new[:30]}
    assert len(inputs & {*new[30:]}) > 5
