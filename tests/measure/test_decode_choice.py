"""gamma and trees by measurement: the arithmetic, what is tried, and what generate makes of it."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from tiny import TINY, random_params

from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core import theory
from specdec.core.stats import RunStats
from specdec.decoding.batches import make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.copying import Copying
from specdec.drafters.heads import Heads
from specdec.drafters.merged import Merged
from specdec.drafters.model import model_draft
from specdec.drafters.random import Random
from specdec.drafters.shape import Chain, Tree
from specdec.measure import chooser, decode_choice
from specdec.measure.choice import Candidate, Choice
from specdec.measure.chooser import PLAIN
from specdec.measure.decode_choice import DecodeSpace, acceptance_by_rank
from specdec.measure.timing import Timed
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier

TEXTS = [[5, 6, 7, 1], [8, 9, 1]]
FREE = {size: f"{size} guesses that cost nothing" for size in decode_choice.FREE}


@pytest.fixture(scope="module")
def models():
    return [load_packed(TINY["v1.1"], random_params(TINY["v1.1"], i), "tiny") for i in (0, 1)]


@pytest.fixture(scope="module")
def pair(models):
    return Pair(models[0], model_draft(models[1]), None)


class Opening:
    """What drafts are opened for."""

    def __init__(self, models, make_heads=None):
        self.target, self._draft = models
        self._make_heads = make_heads

    def model(self, source):
        return self._draft

    def heads(self, path):
        return self._make_heads, (), 2


@pytest.fixture(scope="module")
def drafts(models):
    """Opened drafts by name."""
    from specdec.drafters.heads import OffsetHeadsDrafter

    heads = types.SimpleNamespace(count=2, width=16)
    opening = Opening(
        models, lambda shape, independent: OffsetHeadsDrafter(heads, shape, independent)
    )
    specs = {
        "copying": Copying(), "random": Random(), "heads": Heads("two"),
        "merged": Merged(("draft", Copying())), "merged models": Merged(("draft", "draft")),
    }  # fmt: skip
    return {"model": model_draft(models[1])} | {n: s.open(opening) for n, s in specs.items()}


def kind_of(models, draft, name, *, verifier=None, temperature=0.0, longest=63):
    decoding = Decoding(
        **{name: "auto"}, sampling=SamplingConfig(temperature), max_decode_len=longest + 1,
        verifier=verifier,
    )  # fmt: skip
    return DecodeSpace(models[0], draft, decoding)


def tree_of(candidate):
    """None for a chain."""
    return candidate.shape if isinstance(candidate.shape, Tree) else None


def timed(block, start=0.0, *, blocks=20, rates=(12,), examined=20, alpha=0.6):
    """Decodes of a row in that many blocks, of so many seconds each."""
    counts = types.SimpleNamespace(
        emitted=np.array([blocks]), target_calls=np.array([blocks]), proposed=np.array([60]),
        examined=np.array([examined]), accepted=np.array([12]), dropped=np.array([0]),
        accepted_histogram=np.array([[8, 12]]), accepted_by_rank=np.array([rates]),
        acceptance_prob_sum=np.array([alpha * examined]),
    )  # fmt: skip
    return Timed(start + blocks * block, start + block, (types.SimpleNamespace(stats=counts),))


def found(slope, cost, *, ranks=(12, 3, 1), start=0.0, chain_of=3):
    """What the probes say where a call on n guesses takes 1 + slope n, a draft's level ``cost``."""
    v = {n: 1 + slope * n for n in (7, 23, chain_of, 24)}
    return {
        PLAIN: timed(1.0, start),
        f"gamma {chain_of}": timed(v[chain_of] + chain_of * cost, 2 * start),
        FREE[7]: timed(v[7], start), FREE[23]: timed(v[23], start),
        "acceptance by rank": timed(v[24] + 3 * cost, rates=ranks),
    }  # fmt: skip


def test_gamma_is_predicted_from_alpha_c_and_v(models, drafts):
    """Encoders do not count."""
    kind = kind_of(models, drafts["model"], "gamma")
    estimate = kind.estimate(found(0.1, 0.05, start=3.0))
    assert estimate.accepted == pytest.approx((0.6,))
    assert estimate.cost_ratio == pytest.approx(0.05)
    assert estimate.verify_ratio == pytest.approx({7: 1.7, 23: 3.3})
    for each in estimate.candidates:
        gamma = each.shape.gamma
        assert each.predicted == pytest.approx(theory.speedup(0.6, gamma, 0.05, 1 + 0.1 * gamma))
    best = max(range(1, 16), key=lambda n: theory.speedup(0.6, n, 0.05, 1 + 0.1 * n))
    assert estimate.candidates[0].shape.gamma == best
    assert [each.shape.gamma for each in kind.shortlist(estimate)][:2] == [
        each.shape.gamma for each in estimate.candidates[:2]
    ]
    assert 3 in {each.shape.gamma for each in kind.shortlist(estimate)}, (
        "its program is there already"
    )


def tree_estimate(models, draft, slope, cost=0.02, **options):
    kind = kind_of(models, draft, "tree", **options)
    return kind, kind.estimate(found(slope, cost))


def test_where_a_wide_call_costs_nothing_large_trees_come_first(models, drafts):
    kind, estimate = tree_estimate(models, drafts["model"], 0.0)
    assert estimate.accepted == pytest.approx((12 / 20, 3 / 20, 1 / 20))
    assert estimate.candidates[0].shape.size >= 16
    assert estimate.candidates[0].shape.parents.count(-1) > 1
    tried = kind.shortlist(estimate)
    assert sum(tree_of(each) is None for each in tried) == 3
    assert sum(bool(tree_of(each) and tree_of(each).nodes) for each in tried) == 1


def test_acceptance_by_rank():
    """Of 10 blocks the first guess was accepted 6 times and tried 14 times, at all levels."""
    stats = RunStats(3, 1, 10, 240, 14, 9, 20, 0, (2, 6, 1, 1), (7, 2, 0), 0.0)
    assert acceptance_by_rank(stats) == pytest.approx((0.5, 0.2, 0.0))


@pytest.mark.parametrize("longest", [2, 63])
@pytest.mark.parametrize("name", ["gamma", "tree"])
@pytest.mark.parametrize("draft", ["model", "copying", "random", "heads", "merged"])
def test_every_candidate_can_decode(models, drafts, draft, name, longest):
    """Made without an error, by drafts of all kinds; and none has too many guesses in a row."""
    if name == "gamma" and draft.startswith("merged"):
        return
    kind = kind_of(models, drafts[draft], name, longest=longest)
    most = min(longest, drafts[draft].most_guesses)
    kind.probes()
    probe = kind._probe
    every = found(0.0, 0.02, chain_of=min(3, most))
    every[str(probe)] = every.pop(f"gamma {min(3, most)}")
    estimate = kind.estimate(every)
    for each in estimate.candidates:
        kind.decoder(each.shape)
        assert each.shape.levels <= most
    assert kind.shortlist(estimate)
    assert estimate.candidates[0].predicted > 1
    if name == "tree":
        assert any(
            tree_of(each) and tree_of(each).most_siblings > 1 for each in kind.shortlist(estimate)
        )


def test_siblings_are_independent_where_the_verifier_needs_that(models, drafts):
    verifier = KSeqVerifier()
    kind = kind_of(models, drafts["model"], "tree", verifier=verifier, temperature=1.0)
    pair = Pair(models[0], drafts["model"], None)
    ids = pair.token_ids(TEXTS, max_input_len=16)
    batch = next(make_batches(ids, 1, models[0].model))
    kind.decoder(Tree((8, 1, 1), independent=True)).check(batch)
    estimate = kind.estimate(found(0.0, 0.02))
    trees = [tree_of(each) for each in estimate.candidates if tree_of(each)]
    assert trees
    assert all(tree.independent for tree in trees)
    assert estimate.candidates[0].shape.most_siblings > 1
    kind.decoder(estimate.candidates[0].shape).check(batch)


def test_point_masses_where_the_verifier_takes_no_others(models, drafts):
    """What a call costs is measured with guesses of the draft's kind."""
    kind = kind_of(
        models, drafts["copying"], "gamma", verifier=PointMassVerifier(), temperature=1.0
    )
    ids = Pair(models[0], drafts["copying"], None).token_ids(TEXTS, max_input_len=16)
    batch = next(make_batches(ids, 1, models[0].model))
    for decoder in kind.probes().values():
        decoder.programs(batch)


# With generate: real programs, times that are made up.


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """Seconds of a decode by its name; what is absent takes one. Counts the choices."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(decode_choice, "GAMMAS", (2, 3))
    monkeypatch.setattr(decode_choice, "PROBE_DEPTH", 2)  # Fewer programs.
    monkeypatch.setattr(decode_choice, "_CHAINS", 1)
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 600.0))
    names, calls = {}, []

    def time_in_turns(decoders, batches, repetitions, *, starts=False, **options):
        calls.append(list(decoders))
        return [{
            name: Timed(
                names.get(name, 1.0), 0.1 if starts else 0.0, tuple(map(decoder.decode, batches))
            )
            for name, decoder in decoders.items()
        }]  # fmt: skip

    monkeypatch.setattr(chooser, "time_in_turns", time_in_turns)
    return names, calls


def _generate(pair, **kwargs):
    return pair.generate(TEXTS, max_decode_len=12, **kwargs)


def test_auto_decodes_with_what_is_fastest(pair, seconds, monkeypatch, tmp_path):
    """With a gamma, or plainly; what was measured is remembered."""
    (names, calls), plain = seconds, _generate(pair, method="autoregressive")
    for gamma, times in ((2, {"gamma 2": 0.1}), (0, {"gamma 2": 9.0, "gamma 3": 9.0})):
        names.update(times)
        monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / str(gamma)))
        out = _generate(pair, gamma="auto")
        assert out.choice.levels == out.stats.gamma == gamma
        for ours, theirs in zip(out.tokens, plain.tokens, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        count = len(calls)
        assert _generate(pair, gamma="auto").choice == out.choice
        assert len(calls) == count, "it was remembered"
    assert out.stats.target_calls == out.stats.emitted


def test_what_was_not_measured_is_not_remembered(pair, seconds, monkeypatch):
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 0.0))
    ids = pair.token_ids(TEXTS, max_input_len=16)
    choice = pair.choose(ids, max_decode_len=12, gamma="auto")
    assert choice.note.startswith("Nothing could be measured within 0 s")
    assert choice.alpha is None
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 600.0))
    again = pair.choose(ids, max_decode_len=12, gamma="auto")
    assert again.note == ""


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
    kinds = []

    def choose(kind, batches, max_decode_len, agree):
        kinds.append(kind)
        return Choice("gamma", Chain(3), (0.8,), 0.1, {7: 1.5}, (Candidate(Chain(3), 2, 2, 2),))

    monkeypatch.setattr(chooser, "choose", choose)
    ids = pair.token_ids(TEXTS, max_input_len=16)
    for _ in range(2):
        for options in ({}, option):
            pair.choose(ids, gamma="auto", max_decode_len=12, **options)
    assert len(kinds) == 2
    decoder, chain = kinds[1].decoder, Chain(5, option.get("stop_below", 0.0))
    assert decoder(None).engine.drafter is None
    wanted = {"method": "speculative", "gamma": 5, "max_decode_len": 12, "seed": 0}
    expected = pair.decoder(**wanted | {"sampling": SamplingConfig(0.0)} | option)
    assert decoder(chain).engine == expected.engine
    for ours, theirs in (
        (decoder(chain).params.sampling, expected.params.sampling),
        (decoder(chain).params.drafter.sampling, expected.params.drafter.sampling),
    ):
        assert ours.greedy == theirs.greedy


def test_measures_the_real_loops(pair, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(decode_choice, "GAMMAS", (1, 2))
    monkeypatch.setattr(decode_choice, "PROBE_DEPTH", 2)
    monkeypatch.setattr(chooser, "SECONDS", dict.fromkeys(chooser.SECONDS, 600.0))
    choice = _generate(pair, gamma="auto").choice
    shown = capsys.readouterr().err
    assert "Choosing gamma, 600 s at most: compiling: 0 of 3 programs\n" in shown
    assert "measuring acceptance and costs: 6 of 6 batches" in shown
    assert choice.note == ""
    assert {each.shape.gamma for each in choice.candidates if each.measured} == {1, 2}
    assert all(v > 0 for v in choice.verify_ratio.values())
    assert 0 <= choice.alpha <= 1
    (path,) = (tmp_path / "choices").iterdir()
    assert jax.__version__ in json.loads(path.read_text())["key"]


def test_what_cannot_be_chosen_is_one_error(models, drafts, pair):
    ids = pair.token_ids(TEXTS, max_input_len=16)
    with pytest.raises(ValueError, match='BlockVerifier verifies chains only: give gamma="auto"'):
        pair.choose(ids, tree="auto", verifier=BlockVerifier())
    with pytest.raises(ValueError, match="instead of gamma"):
        Pair(models[0], drafts["merged"], None).choose(ids, gamma="auto")
    chains = dataclasses.replace(drafts["model"], trees=None)
    with pytest.raises(ValueError, match="makes chains only: give gamma instead of tree"):
        Pair(models[0], chains, None).choose(ids, tree="auto")
    with pytest.raises(ValueError, match="stop_below must be 0"):
        pair.choose(ids, tree="auto", stop_below=0.5)
    with pytest.raises(ValueError, match='gamma must be a whole number or "auto"'):
        _generate(pair, gamma="often")
    with pytest.raises(ValueError, match="at least one row"):
        pair.choose([], gamma="auto")
    with pytest.raises(ValueError, match="max_decode_len >= 2"):
        pair.choose(ids, max_decode_len=1, gamma="auto")
