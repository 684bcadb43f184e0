"""Models that listen, as shapes: a draft with its target's encoder has none of its own."""

import dataclasses

import pytest

from specdec.compile.shapes import shaped_decoder
from specdec.core import platforms
from specdec.decoding.options import Decoding
from specdec.models.whisper.config import WhisperConfig

TARGET = WhisperConfig(
    vocab_size=24, features=4, d_model=8, num_encoder_layers=2, num_decoder_layers=2, num_heads=2,
    d_ff=12, encoder_positions=6, decoder_positions=80, pad_id=0, eos_id=1, decoder_start_id=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("encoder", "features", "own"),
    [({}, 4, False), ({"num_layers": 1}, 4, True), ({"d_ff": 16}, 4, True), ({}, 6, True)],
    ids=str,
)
def test_a_draft_shares_an_encoder_of_its_targets_shape(encoder, features, own):
    draft = dataclasses.replace(
        TARGET, features=features, encoder=dataclasses.replace(TARGET.encoder, **encoder),
        decoder=dataclasses.replace(TARGET.decoder, num_layers=1),
    )  # fmt: skip
    with platforms.compiling_for(platforms.TPU):
        decoder, params = shaped_decoder(TARGET, draft, Decoding(gamma=2))
    assert decoder.target.model.input_shape == (12, 4)
    assert params.target.encoder is not None
    assert (params.drafter.weights.encoder is not None) == own
