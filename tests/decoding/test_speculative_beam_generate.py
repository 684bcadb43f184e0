"""``pair.generate(method="speculative_beam")``: the bundled pair, what it says of bad arguments."""

import re

import jax
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.core.theory_beams import beam_speedup, levels_per_call
from specdec.measure import beam_choice, chooser
from specdec.measure.chooser import PLAIN, Timed

TEXTS = [
    "The house is old, but I like it.",
    "She said that she would come tomorrow.",
]
METHOD = "speculative_beam"


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart")


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.slow
def test_the_bundled_pair(pair, width):
    config = specdec.BeamConfig(width)
    options = {"beam": config, "num_return": width, "max_decode_len": 16}
    plain = pair.generate(TEXTS, method="beam", **options)
    found = pair.generate(
        TEXTS, method=METHOD, gamma=2, draft_beams=width + 2, trace=True, **options
    )
    assert found.texts == plain.texts
    for row, expected in zip(found.beams, plain.beams, strict=True):
        assert [one.tokens.tolist() for one in row] == [one.tokens.tolist() for one in expected]
        scores = [one.score for one in row]
        np.testing.assert_allclose(scores, [one.score for one in expected], atol=1e-4)
    searched, calls = found.searched, found.stats.target_calls
    assert searched.target_calls == sum(searched.levels) == sum(searched.ends.values()) == calls
    assert searched.levels_per_call == pytest.approx(plain.stats.target_calls / calls)
    assert found.stats.accepted == plain.stats.target_calls - calls
    assert found.stats.emitted == sum(map(len, found.tokens))
    for blocks in found.traces:
        assert [len(block.guesses) for block in blocks] == [2] * len(blocks)
        assert {len(level) for block in blocks for level in block.survivors} == {width}
        assert all(bool(block.lost) == (block.end == "miss") for block in blocks)
        assert blocks[-1].end in ("done", "limit")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("pair")
    save_huggingface(path, TINY["v1.1"], jax.device_get(random_params(TINY["v1.1"], 3)))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"draft_beams": 3}, "draft_beams must be at least 4, got 3"),
        ({"draft_beams": 20}, "draft_beams is 20, more than the vocabulary's 19 tokens"),
        ({"beam": specdec.BeamConfig(20)}, "num_beams is 20, more than the vocabulary's 19"),
        ({"num_return": 5}, "num_return must be in 1..4, got 5"),
        ({"sampling": specdec.SamplingConfig(1.0)}, "Beam search draws nothing"),
        ({"gamma": 0}, 'got 0; for plain decoding use method="beam"'),
        ({"gamma": 10}, "gamma must be in [1, max_decode_len - 1] = [1, 9], got 10"),
        ({"gamma": "many"}, 'gamma must be a whole number or "auto"'),
        ({"tree": (2, 1)}, "leave tree out"),
        ({"verifier": specdec.TokenVerifier()}, "leave verifier out"),
        ({"stop_below": 0.5}, "leave stop_below out, got 0.5"),
        ({"draft_sampling": specdec.SamplingConfig(0.0)}, "leave draft_sampling out"),
        ({"method": "beam", "draft_beams": 4}, 'draft_beams belongs to method="speculative_beam"'),
    ],
)
def test_bad_arguments(tiny, arguments, words):
    pair = specdec.load_pair(target=tiny, draft=str(tiny))
    with pytest.raises(ValueError, match=re.escape(words)):
        pair.generate([[5, 9, 1]], max_decode_len=10, **{"method": METHOD, **arguments})


@pytest.mark.parametrize("draft", [specdec.Copying(), specdec.Random()], ids=["copying", "random"])
def test_a_draft_without_a_distribution(tiny, draft):
    pair = specdec.load_pair(target=tiny, draft=draft)
    with pytest.raises(ValueError, match="need a draft with a distribution over tokens"):
        pair.generate([[5, 9, 1]], max_decode_len=10, method=METHOD)


def test_fewer_tokens_than_draft_beams_would_be(tiny):
    pair = specdec.load_pair(target=tiny, draft=str(tiny))
    options = {"beam": specdec.BeamConfig(7), "max_decode_len": 10}
    found = pair.generate([[5, 9, 1]], method=METHOD, gamma=1, **options)
    plain = pair.generate([[5, 9, 1]], method="beam", **options)
    np.testing.assert_array_equal(found.tokens[0], plain.tokens[0])
    assert pair.generate([], method=METHOD).beams == []


@pytest.mark.slow
def test_auto_searches_plainly_where_speculation_does_not_pay(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(beam_choice, "GAMMAS", (1, 2, 3))
    pair = specdec.load_pair(target=tiny, draft=str(tiny))
    seconds = {PLAIN: 1.0, "gamma 1": 1.1, "gamma 2": 1.2, "gamma 3": 1.3}
    seconds["plain beams in wide calls"] = 2.5
    monkeypatch.setattr(chooser, "SECONDS", {"beams": 600.0})

    def timed(runners, batches, **options):
        return {
            name: Timed(seconds[name], 0.0, tuple(map(runner.run, batches)))
            for name, runner in runners.items()
        }

    monkeypatch.setattr(chooser, "time_in_turns", timed)
    options = {"gamma": "auto", "max_decode_len": 10, "beam": specdec.BeamConfig(2)}
    texts = [[5, 9, 1], [3, 4, 8, 12, 1]]
    found = pair.generate(texts, method=METHOD, **options)
    assert found.choice.shape is None
    assert found.searched is None
    assert str(found.choice).startswith("Speculation does not pay here: the best way, gamma ")
    assert found.choice.verify_ratio == pytest.approx({3: 2.5})
    ids = [np.array(t) for t in texts]
    how = specdec.Decoding(
        "speculative_beam", "auto", beam=specdec.BeamConfig(2), max_decode_len=10
    )
    again = pair.choose(ids, how)
    assert again == found.choice, "it was remembered"
    seconds |= dict.fromkeys(("gamma 1", "gamma 2", "gamma 3"), 0.5)
    faster = pair.choose(ids, how, remember=False)
    assert faster.levels > 0
    assert str(faster).startswith(f"gamma {faster.levels}: 2.00 x plain decoding, ")


def test_predictions():
    counts = [0, 5, 3, 2]
    assert levels_per_call(counts, 2) == pytest.approx(1.7)
    assert levels_per_call(counts, 1) == pytest.approx(1.5)
    assert levels_per_call(counts, 0) == 1
    assert beam_speedup(1.7, 2, 0.1, 1.5) == pytest.approx(1.0)
