"""gamma by measurement: the arithmetic, the memory, and what generate makes of it."""

import json

import jax
import numpy as np
import pytest
from tiny import TINY, random_t5_params

from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core import platforms, theory
from specdec.drafters.model import model_draft
from specdec.measure import gamma as tuning
from specdec.measure.gamma import Costs, choose
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.forced import ForcedAcceptance

FAST = Costs(cost_ratio=0.05, verify_ratio={1: 1.0, 3: 1.1, 7: 1.8}, encoders=(3.0, 1.0))
TEXTS = [[5, 6, 7, 1], [8, 9, 1]]


def test_chooses_what_theory_and_the_encoders_say():
    choice = choose(0.8, 20.0, FAST)
    for gamma, v in FAST.verify_ratio.items():
        decoder = theory.speedup(0.8, gamma, 0.05, v)
        assert choice.predicted[gamma] == pytest.approx(23 / (4 + 20 / decoder))
    assert choice.gamma == 3
    assert str(choice).startswith("gamma 3: 1.8")


def test_a_better_draft_wants_a_larger_gamma():
    assert choose(0.95, 20.0, FAST).gamma == 7
    assert choose(0.3, 20.0, FAST).gamma == 1


def test_plain_decoding_where_speculation_does_not_pay():
    choice = choose(0.05, 20.0, FAST)
    assert choice.gamma == 0
    assert "does not pay" in str(choice)
    # The draft's encoder alone can make it so.
    slow_encoder = Costs(0.05, FAST.verify_ratio, (3.0, 30.0))
    assert choose(0.8, 20.0, slow_encoder).gamma == 0


def test_remembers(tmp_path):
    choice = choose(0.8, 20.0, FAST)
    assert tuning.remembered(tmp_path, "here") is None
    tuning.remember(tmp_path / "new", "here", choice)
    tuning.remember(tmp_path / "new", "there", choose(0.05, 20.0, FAST))
    assert tuning.remembered(tmp_path / "new", "here") == choice
    assert tuning.remembered(tmp_path / "new", "there").gamma == 0
    assert tuning.remembered(tmp_path / "new", "nowhere") is None
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["gamma.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"here": {}}', '{"here": 3}', "\x00"])
def test_a_damaged_memory_is_forgotten(tmp_path, content):
    (tmp_path / "gamma.json").write_text(content)
    assert tuning.remembered(tmp_path, "here") is None
    tuning.remember(tmp_path, "there", choose(0.8, 20.0, FAST))
    assert tuning.remembered(tmp_path, "there").gamma == 3


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    tuning.remember(tmp_path / "file", "here", choose(0.8, 20.0, FAST))


@pytest.fixture
def pair():
    return _pair()


def _pair():
    target, draft = (
        load_packed(TINY["v1.1"], random_t5_params(TINY["v1.1"], seed), "random") for seed in (0, 1)
    )
    return Pair(target, model_draft(draft), None)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Costs in place of a measurement, and how often they were asked for."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "PROBE", 2)  # The gamma that is then chosen: one program for both.
    calls = []

    def use(costs):
        monkeypatch.setattr(tuning, "measure", lambda *a: calls.append(a) or costs)
        return calls

    return use


def _generate(pair, **kwargs):
    return pair.generate(TEXTS, max_decode_len=12, **kwargs)


def test_auto_decodes_with_the_chosen_gamma(pair, measured):
    # Speculation is free here: it pays whatever alpha is.
    calls = measured(Costs(0.0, {2: 0.1}, (0.0, 0.0)))
    out = _generate(pair, gamma="auto")
    assert out.choice.gamma == out.stats.gamma == 2
    plain = _generate(pair, method="autoregressive")
    for ours, theirs in zip(out.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    *_, max_gamma = calls[0]
    assert max_gamma == 11
    _generate(pair, gamma="auto")
    assert len(calls) == 1


def test_auto_decodes_plainly_where_that_is_faster(pair, measured):
    measured(Costs(5.0, {2: 9.0}, (0.0, 0.0)))
    out = _generate(pair, gamma="auto")
    assert out.choice.gamma == out.stats.gamma == 0
    assert out.stats.target_calls == out.stats.emitted


@pytest.mark.parametrize(
    "option",
    [
        {"sampling": SamplingConfig(temperature=1.0)}, {"verifier": BlockVerifier()},
        {"stop_below": 0.3}, {"draft_sampling": SamplingConfig(1.0)},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_what_is_measured_is_what_will_decode(pair, monkeypatch, tmp_path, option):
    """And is remembered for that alone."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    measured = []

    def choose_by_measurement(decoder, batches, max_gamma):
        measured.append(decoder)
        return choose(0.8, 20.0, FAST)

    monkeypatch.setattr(tuning, "choose_by_measurement", choose_by_measurement)
    ids = pair.token_ids(TEXTS, max_input_len=16)
    for _ in range(2):
        for options in ({}, option):
            pair.choose_gamma(ids, max_decode_len=12, **options)
    assert len(measured) == 2
    decoder = measured[1]
    assert decoder(0).engine.drafter is None
    wanted = {"method": "speculative", "gamma": 5, "max_decode_len": 12, "seed": 0}
    expected = pair.decoder(**wanted | {"sampling": SamplingConfig(0.0)} | option)
    assert decoder(5).engine == expected.engine
    for found, wanted in (
        (decoder(5).params.sampling, expected.params.sampling),
        (decoder(5).params.drafter.sampling, expected.params.drafter.sampling),
    ):
        assert found.greedy == wanted.greedy


@pytest.mark.slow  # test_what_is_measured_is_what_will_decode shows that it decodes with it.
def test_alpha_is_that_of_the_verifier(pair, measured):
    measured(Costs(0.0, {2: 0.1}, (0.0, 0.0)))
    choice = _generate(pair, gamma="auto", verifier=ForcedAcceptance(1.0)).choice
    assert choice.alpha == 1


def test_plain_decoding_chooses_nothing(pair, measured):
    calls = measured(None)
    assert _generate(pair, method="autoregressive", gamma="auto").choice is None
    assert calls == []


def test_measures_the_real_loops(pair, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "CANDIDATES", (1, 2))
    monkeypatch.setattr(tuning, "PROBE", 2)
    choice = _generate(pair, gamma="auto").choice
    shown = capsys.readouterr().err
    assert "Choosing gamma: decoding, for alpha" in shown
    assert "Choosing gamma: timing the parts of a block" in shown
    assert set(choice.verify_ratio) == {1, 2}
    assert all(v > 0 for v in choice.verify_ratio.values())
    assert 0 <= choice.alpha <= 1
    (known,) = json.loads((tmp_path / "gamma.json").read_text())
    assert jax.__version__ in known


def test_nothing_in_it_is_a_cpus(monkeypatch, tmp_path):
    """The same with programs as they are on an accelerator: what is chosen is what was measured."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "CANDIDATES", (1, 2))
    monkeypatch.setattr(tuning, "PROBE", 2)
    with platforms.compiling_for(platforms.TPU):
        pair = _pair()
        assert pair.target.model.layout == "in_out"
        out = _generate(pair, gamma="auto")
        plain = _generate(pair, method="autoregressive")
    assert set(out.choice.verify_ratio) == {1, 2}
    for ours, theirs in zip(out.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_gamma_is_a_number_or_auto(pair):
    with pytest.raises(ValueError, match='gamma must be a whole number or "auto"'):
        _generate(pair, gamma="often")


def test_nothing_to_guess(pair):
    with pytest.raises(ValueError, match="max_decode_len >= 2"):
        pair.generate(TEXTS, gamma="auto", max_decode_len=1)
    with pytest.raises(ValueError, match="at least one row"):
        pair.choose_gamma([])
