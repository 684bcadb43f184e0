"""The study of rules: what is compared is the same work, and what it says of samples."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from specdec.data.tasks import Example, Task
from specdec.drafters.copying import Copying
from specdec.rules.automata import AllowedSequences
from specdec.rules.forbidden import Forbidden
from specdec.rules.penalties import RepetitionPenalty
from specdec.studies.runs import rule_runs
from specdec.studies.runs.rule_runs import FollowedRules, RuleCosts, SampledRules
from tests.runs.conftest import TARGET, TEXTS

TASK = Task.of("texts", [Example(text, f"die {text}", text) for text in TEXTS])


def test_random_entries_have_what_is_needed_and_no_eos():
    needed = [(5, 6, 7), (5, 8), (), (5, 6, 7)]
    entries = rule_runs.random_entries(needed, 300, SimpleNamespace(vocab_size=20, eos_ids=(1,)))
    assert len(set(entries)) == len(entries) == 300
    assert entries[:2] == [(5, 6, 7), (5, 8)]
    assert all(each and 1 not in each for each in entries)
    assert sum(each[:1] == (5,) for each in entries) > 100, "few share a beginning"


def test_homogeneity():
    random = np.random.default_rng(0)
    outputs = [(2, 3, 1), (2, 4, 1), (5, 1), (6, 7, 1), (6, 8, 1)]
    share = np.array([0.5, 0.3, 0.1996, 0.0002, 0.0002])
    shifted = np.array([0.45, 0.35, 0.1996, 0.0002, 0.0002])

    def sample(probs, size=8_000):
        return Counter(outputs[i] for i in random.choice(5, size, p=probs))

    same = [rule_runs.homogeneity(sample(share), sample(share)) for _ in range(200)]
    assert {each["freedom"] for each in same} == {2, 3, 4}  # By how many begin with 6.
    p = np.array([each["p"] for each in same])
    assert np.mean(p < 0.1) == pytest.approx(0.1, abs=0.07)
    assert rule_runs.homogeneity(sample(share), sample(shifted))["p"] < 1e-6
    # By hand: (60 - 40)^2 / 100 + (40 - 60)^2 / 100, and three of each of what begins with 4.
    one = Counter({(2,): 60, (3,): 40, (4, 2): 3, (4, 3, 1): 3})
    other = Counter({(2,): 40, (3,): 60, (4, 3, 2): 6})
    found = rule_runs.homogeneity(one, other)
    assert found == {"statistic": 8, "freedom": 2, "p": pytest.approx(0.018316, abs=1e-6)}


@pytest.mark.parametrize(
    "draft",
    ["copying", *(pytest.param(each, marks=pytest.mark.slow) for each in ("model", "random"))],
)
def test_costs_are_of_the_same_work(tiny, tmp_path, draft):
    drafts = {"model": str(tiny.draft), "copying": Copying(), "random": TARGET}
    known = draft != "random"
    runs = RuleCosts(
        "Tiny", str(tiny.target) if known else TARGET, drafts[draft], gamma=2, max_decode_len=8,
        num_texts=2, entries=40, repetitions=2, task=(lambda: TASK) if known else None,
    )  # fmt: skip
    pieces = {"/".join(path): make for path, make in runs.pieces()}
    names = [f"{part}/{how}" for how in ("plain", "speculative") for part in ("costs", "stream")]
    assert list(pieces) == [f"tiny/rules/{name}" for name in names]
    found = {name: pieces[f"tiny/rules/{name}"](tmp_path / "tiny/rules" / name) for name in names}
    for how in ("plain", "speculative"):
        costs, stream = found[f"costs/{how}"], found[f"stream/{how}"]
        ways = costs["ways"]
        assert list(ways) == ["without", "penalty", "trie", "log_probs", "top_log_probs"]
        assert {way["differ"] for way in ways.values()} == {0}
        assert ways["without"]["over"] == {"median": 1, "low": 1, "high": 1}
        assert ways["trie"]["seconds_to_open"] > 0
        over = ways["trie"]["over"]
        assert 0 < over["low"] <= over["median"] <= over["high"]
        assert costs["num_texts"] == 2
        assert costs["blocks"] <= costs["num_tokens"] == stream["num_tokens"]
        assert stream["differ"] == 0
        assert stream["pieces"] == costs["blocks"]
    assert found["costs/plain"]["blocks"] == found["costs/plain"]["num_tokens"]
    again = pieces["tiny/rules/costs/plain"](tmp_path / "tiny/rules/costs/plain")
    assert again["ways"] == found["costs/plain"]["ways"], "it was measured again"


def test_a_draft_that_does_not_follow(tiny, tmp_path):
    runs = FollowedRules(
        "Drafts", lambda: TASK, str(tiny.target), str(tiny.draft), gamma=2,
        rules=(RepetitionPenalty(5.0),), num_texts=3, repetitions=1,
    )  # fmt: skip
    pieces = {"/".join(path): make for path, make in runs.pieces()}
    named = ("none", "repetitionpenalty_penalty_5.0", "allowedsequences_4_of_them")
    assert list(pieces) == [f"drafts/rules/t{t}/{name}" for t in (0, 1) for name in named]
    chosen = ("t0/none", f"t0/{named[1]}", f"t1/{named[2]}")
    found = {name: pieces[f"drafts/rules/{name}"](tmp_path / name) for name in chosen}
    for name, each in found.items():
        assert (each["apart"] is None) == name.endswith("none")
        for way in filter(None, (each["following"], each["apart"])):
            assert way["differ"] == (0 if name.startswith("t0") else None)
            assert 0 <= way["alpha"] <= 1
            assert way["interval"][0] <= way["block_efficiency"] <= way["interval"][1]
            assert way["speedup"]["median"] > 0
    allowed = found[f"t1/{named[2]}"]
    assert allowed["following"]["alpha"] > allowed["apart"]["alpha"] + 0.3


def test_samples(tiny, tmp_path):
    rules = (AllowedSequences([[5, 6], [5, 7], [9]]), Forbidden([[5]]))
    runs = SampledRules(
        "Samples", str(tiny.target), str(tiny.draft), "a dog", gamma=2, rules=rules,
        samples=600, max_decode_len=3, batch_size=128,
    )  # fmt: skip
    pieces = {"/".join(path): make for path, make in runs.pieces()}
    allowed, forbidden = pieces
    found = pieces[allowed](tmp_path / allowed)
    ways = found["ways"]
    assert (found["kinds"], ways["chain"]["freedom"]) == (3, 2)
    assert list(ways) == ["chain", "apart", "without"]
    assert all(ways[name]["p"] > 1e-6 for name in ("chain", "apart"))
    assert ways["without"]["p"] < 1e-6
    assert forbidden == "samples/rules/forbidden_sequences_5"
