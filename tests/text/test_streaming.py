"""Streamed pieces are the output of generate, in whole characters; closing them ends the work."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from tiny import TINY, random_params
from tokenizers import decoders, models

import specdec
from specdec.checkpoints import save_huggingface
from specdec.decoding import loop
from specdec.decoding.batches import make_batches
from specdec.rules.spelling import Finish
from specdec.text.hugging_face import HuggingFaceTokenizer
from specdec.text.streaming import settled, sure

TEXT = "The quick brown fox"
LIMIT = 24
WARM = specdec.SamplingConfig(1.0)


@pytest.fixture(autouse=True)
def growing(monkeypatch):
    """Arrays grow on the way."""
    monkeypatch.setattr(loop, "FIRST_BUCKET", 16)


@pytest.fixture(scope="module")
def pair(spiece, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "target"
    config = dataclasses.replace(TINY["v1.1"], vocab_size=54)
    save_huggingface(directory, config, random_params(config, 0), spiece)
    return specdec.load_pair(target=directory, draft=specdec.Quantized())


@pytest.mark.parametrize(
    "options",
    [{"gamma": 3, "stop": True}, {"gamma": 3, "sampling": WARM, "seed": 3, "prefix": "an"}],
)
def test_pieces_are_what_generate_gives(pair, options):
    options = options | {"max_decode_len": LIMIT}
    if options.pop("stop", False):
        out = pair.generate([TEXT], **options)
        assert len(out.tokens[0]) > 16
        options["stop"] = [out.texts[0][-4:-1]]
    out, found = pair.generate([TEXT], **options), list(pair.stream(TEXT, **options))
    assert "".join(map(str, found)) == out.texts[0]
    assert np.concatenate([piece.tokens for piece in found]).tolist() == out.tokens[0].tolist()
    assert sum(piece.accepted for piece in found) == out.stats.accepted
    assert len(found) == out.stats.target_calls
    assert [piece.ended for piece in found] == [None] * (len(found) - 1) + out.ended


def test_closing_ends_the_work(pair):
    stream = pair.stream(TEXT, gamma=3, max_decode_len=LIMIT)
    first = next(stream)
    stream.close()
    assert first.text
    with pytest.raises(StopIteration):
        next(stream)


class Letters:
    """A vocabulary that settles all but its last two characters."""

    finish = Finish(replaces=(("x", "y"),))


def test_what_may_change_is_held_back():
    assert settled("abcdef", Letters(), ()) == "abcd"
    letters = type("Settled", (), {"finish": Finish()})()
    assert settled("ab\ufffd\ufffd", letters, ()) == "ab"
    assert settled("ab STO", letters, ["STOP", 3]) == "ab "
    assert settled("ab STOX", letters, ["STOP"]) == "ab STOX"
    assert settled("aXX", letters, ["XXXY", "Y"]) == "a"


def test_bytes_that_are_torn_later(tmp_path):
    """What was shown stays, though a byte may turn all bytes before it into U+FFFD."""
    names = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "▁b"]
    made = tokenizers.Tokenizer(
        models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True)
    )
    first = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(first)
    made.save(str(tmp_path / "tokenizer.json"))
    words = HuggingFaceTokenizer(tmp_path / "tokenizer.json")
    some = [names.index(name) for name in ("<0x41>", "<0xC3>", "<0xA4>", "a", "▁b")]

    for tokens in np.random.default_rng(0).choice(some, (20, 12)).tolist():
        shown = ""
        for count in range(12):
            text = settled(sure(words.decode, tokens[:count], words), words, ())
            shown += text[len(shown) :]
        assert words.decode(tokens).startswith(shown)


def test_time_that_is_over(pair):
    options = {"gamma": 3, "max_decode_len": LIMIT}
    decoder = pair.decoder(**options)
    (batch,) = make_batches(pair.token_ids([TEXT], max_input_len=64), 1, pair.target.model)
    (pause,) = decoder.pauses(batch, often=True, seconds=1e-9)
    assert pause.over
    assert not pause.finished[0]
    *before, last = decoder.pauses(batch, often=True)
    assert not any(pause.over or pause.finished[0] for pause in before)
    assert last.finished[0]
    assert not last.over
    whole = pair.generate([TEXT] * 3, **options)
    out = pair.generate([TEXT] * 3, time_limit=1e-9, **options)
    assert out.ended == ["time"] * 3
    assert out.texts[1:] == ["", ""]
    first = out.tokens[0].tolist()
    assert 0 < len(first) == out.stats.emitted <= 8
    assert first == whole.tokens[0][: len(first)].tolist()
    assert pair.generate([TEXT], time_limit=600, **options).texts == whole.texts[:1]


@pytest.mark.parametrize(
    "options",
    [{"method": "beam"}, {"gamma": "auto"}, {"method": "speculative_beam", "gamma": 2}],
)
def test_what_cannot_be_streamed(pair, options):
    with pytest.raises(ValueError, match="Only one output that is emitted for good"):
        pair.stream(TEXT, **options)
    with pytest.raises(TypeError, match="did you mean gamma"):
        pair.stream(TEXT, gama=3)
