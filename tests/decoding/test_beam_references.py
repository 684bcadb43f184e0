"""Beam search against transformers: the same n-best lists, and scores within 1e-4.

Against T5X: tests/integrations.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.checkpoints import save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.beam_rules import BeamConfig

# What they import warns of much that is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

STOPPING = list(itertools.product((False, True, "never"), (0.0, 0.6, 1.0, 2.0)))
TOLERANCE, LIMIT = 1e-4, 12
SEVERAL_ENDS = dataclasses.replace(TINY["v1.1"], more_eos_ids=(7,))
CASES = {"v1.1": (TINY["v1.1"], 3), "v1.0": (TINY["v1.0"], 1), "several ends": (SEVERAL_ENDS, 3)}


class Reference:
    """transformers, on a checkpoint that we read too."""

    def __init__(self, torch, path):
        transformers = pytest.importorskip("transformers", reason="compares with transformers")
        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        self._torch, self.loaded = torch, load_model(str(path), "float32")
        model = transformers.T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
        # transformers gives the decoder's cache as many layers as the encoder has.
        model.config.num_layers = model.config.num_decoder_layers
        self._model = model.eval()

    def check(self, config, batch, limit):
        """Fails unless both give the same lists."""
        ours = BeamDecoder(self.loaded, config, limit).decode(batch)
        inputs, counts = np.asarray(batch.prompt.inputs, np.int64), batch.prompt.input_lengths
        mask = np.arange(inputs.shape[1]) < np.asarray(counts)[:, None]
        given = self._model.generate(
            self._torch.tensor(inputs), attention_mask=self._torch.tensor(mask.astype(np.int64)),
            num_beams=config.num_beams, num_return_sequences=config.num_beams,
            length_penalty=config.length_penalty, early_stopping=config.early_stopping,
            max_new_tokens=limit, do_sample=False, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        shape = (len(inputs), config.num_beams, -1)
        theirs = given.sequences[:, 1:].numpy().reshape(shape)
        eos_ids = self.loaded.model.eos_ids
        if config.num_beams > 1:  # Greedy search has none.
            scores = given.sequences_scores.numpy().reshape(shape[:2])
            real = batch.row_ids >= 0
            np.testing.assert_allclose(ours.scores[real], scores[real], atol=TOLERANCE, rtol=0)
        for row in np.flatnonzero(batch.row_ids >= 0):
            found = [_until_end(tokens, eos_ids) for tokens in theirs[row].tolist()]
            mine = [
                tokens[:count]
                for tokens, count in zip(
                    ours.tokens[row].tolist(), ours.num_tokens[row], strict=True
                )
            ]
            assert mine == found, (config, row)


def _until_end(tokens, eos_ids):
    """(transformers fills up with EOS where padding is 0.)"""
    ends = [index for index, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.fixture(scope="module")
def tiny(request, torch, tmp_path_factory):
    config, seed = CASES[request.param]
    path = tmp_path_factory.mktemp("tiny")
    save_huggingface(path, config, jax.device_get(random_params(config, seed)))
    return Reference(torch, path)


def batch_of(model, rows, seed):
    inputs = np.asarray(ragged_inputs(rows, 8, 19, seed=seed))
    return Batch(prompt_of(model, inputs), np.arange(rows))


@pytest.mark.parametrize(
    ("tiny", "width"),
    [("v1.1", 1), ("v1.1", 4), ("v1.0", 2), ("v1.0", 8), ("several ends", 2)],
    indirect=["tiny"],
    scope="module",
)
def test_transformers(tiny, width):
    """All forms of early_stopping with all penalties, on different rows each."""
    for seed, (early, penalty) in enumerate(STOPPING):
        if width == 1 and early == "never":
            continue  # transformers has no beams there; ours may go on after EOS.
        config = BeamConfig(width, "huggingface", length_penalty=penalty, early_stopping=early)
        tiny.check(config, batch_of(tiny.loaded.model, 8, seed), LIMIT)
