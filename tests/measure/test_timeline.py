"""A decode driven call by call: the tokens of the whole program, and times that fit together."""

import dataclasses
import itertools

import numpy as np
import pytest
from tiny import TINY, random_t5_params

from specdec.api import Pair
from specdec.checkpoints.loading import LoadedModel
from specdec.core.compilation import DecodeJit
from specdec.drafts import Copying, ModelDraft
from specdec.measure import timeline
from specdec.types import SamplingConfig

TEXT = np.array([3, 4, 5, 3, 4, 5, 3, 4, 1])
LENGTH = 20
SAMPLING = {"greedy": SamplingConfig(0.0), "sampled": SamplingConfig(0.7, top_k=9)}
CONFIG = dataclasses.replace(TINY["v1.1"], num_decoder_layers=1)


def load(seed):
    return LoadedModel.of(CONFIG, random_t5_params(CONFIG, seed), "random")


@pytest.fixture(scope="module")
def pairs():
    target = load(0)
    copying = Copying().open(target, None, "float32")
    drafts = {"other": ModelDraft(load(1)), "itself": ModelDraft(target), "copying": copying}
    return {name: Pair(target, draft, None) for name, draft in drafts.items()}


@pytest.fixture(scope="module")
def recorded(pairs):
    return timeline.record(pairs["itself"], TEXT, 3, SAMPLING["greedy"], LENGTH, 0)


@pytest.mark.parametrize(
    ("draft", "gamma", "sampling"),
    [
        ("other", 0, "greedy"), ("other", 0, "sampled"),
        ("other", 3, "greedy"), ("other", 3, "sampled"), ("copying", 3, "sampled"),
    ],
)  # fmt: skip
def test_the_tokens_are_those_of_generate(draft, gamma, sampling, pairs):
    pair, sampling = pairs[draft], SAMPLING[sampling]
    for seed in (0, 5):
        found = timeline.record(pair, TEXT, gamma, sampling, LENGTH, seed)
        expected = pair.generate(
            [TEXT], method="speculative" if gamma else "autoregressive", gamma=gamma or 4,
            sampling=sampling, max_decode_len=LENGTH, seed=seed, trace=True,
        )  # fmt: skip
        np.testing.assert_array_equal(found.tokens, expected.tokens[0])
        assert found.gamma == gamma
        emitted = [event.emitted for event in found.events if event.kind == "target"]
        assert emitted == [
            len(block.accepted) + (block.correction is not None) for block in expected.traces[0]
        ]
        kinds = [event.kind for event in found.events]
        assert kinds == (
            ["target_encoder", "draft_encoder"] + len(emitted) * ["draft", "target"]
            if gamma
            else ["target_encoder"] + len(emitted) * ["target"]
        )


def test_seeds_matter(pairs):
    """Else the comparisons above could not fail."""
    one, other = (
        timeline.record(pairs["other"], TEXT, 3, SAMPLING["sampled"], LENGTH, seed)
        for seed in (0, 5)
    )
    assert list(one.tokens) != list(other.tokens)


def test_events_count_all_tokens(recorded):
    assert sum(event.emitted for event in recorded.events) == len(recorded.tokens) == LENGTH
    assert all((event.emitted > 0) == (event.kind == "target") for event in recorded.events)
    # It accepts its own guesses; the last block is cut at the limit.
    assert [e.emitted for e in recorded.events if e.emitted] == [4] * 5


def test_events_follow_one_another_and_leave_little_out(recorded):
    events = recorded.events
    assert 0 <= events[0].start_ms < 0.1 * recorded.total_ms
    assert all(event.start_ms < event.end_ms for event in events)
    assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(events))
    assert recorded.total_ms == events[-1].end_ms - events[0].start_ms
    gaps = [b.start_ms - a.end_ms for a, b in itertools.pairwise(events)]
    durations = [event.end_ms - event.start_ms for event in events]
    assert np.median(gaps) < 0.5 * np.median(durations)  # Medians: the machine may be busy.


def test_the_run_of_median_time_is_kept(pairs, recorded, monkeypatch):
    def lasting(ms):
        return dataclasses.replace(recorded, events=(timeline.Event("target", 0.0, ms, 1),))

    runs = map(lasting, [1.0, 9.0, 30.0, 7.0, 6.0, 8.0, 0.0])
    monkeypatch.setattr(timeline, "_decode", lambda *_: next(runs))
    found = timeline.record(pairs["other"], TEXT, 0, SAMPLING["greedy"], LENGTH, 0)
    assert found.total_ms == 8.0
    assert next(runs).total_ms == 0.0


def test_nothing_is_compiled_in_a_run_that_counts(pairs, monkeypatch):
    def programs():
        parts = (timeline._propose, timeline._verify, timeline._plain_step)
        return [part.programs for part in (*parts, timeline.costs.encode)]

    after, decode = [], timeline._decode

    def counted(*args):
        result = decode(*args)
        after.append(programs())
        return result

    monkeypatch.setattr(timeline, "_decode", counted)
    before = programs()
    timeline.record(pairs["other"], TEXT, 2, SAMPLING["greedy"], 33, 0)
    assert before[0] < after[0][0]
    assert before[1] < after[0][1]
    assert len(after) == 1 + timeline.REPETITIONS
    assert all(found == after[0] for found in after)
    assert all(isinstance(part, DecodeJit) for part in (timeline._propose, timeline._verify))


@pytest.mark.parametrize(("gamma", "length"), [(-1, 20), (20, 20), (0, 0)])
def test_arguments_out_of_range(gamma, length, pairs):
    with pytest.raises(ValueError, match="must be"):
        timeline.record(pairs["other"], TEXT, gamma, SAMPLING["greedy"], length, 0)
