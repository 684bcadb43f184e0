"""A decode driven call by call: the tokens of the whole program, and times that fit together."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import TINY, changed, random_params

from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.decoding.batches import make_batches
from specdec.drafters.copying import Copying
from specdec.drafters.model import model_draft
from specdec.reproduce.measure import timeline
from specdec.types import SamplingConfig

TEXT = np.array([3, 4, 5, 3, 4, 5, 3, 4, 1])
LENGTH = 20
SAMPLING = {"greedy": SamplingConfig(0.0), "sampled": SamplingConfig(0.7, top_k=9)}
CONFIG = changed(TINY["v1.1"], num_decoder_layers=1)


def load(seed):
    return load_packed(CONFIG, random_params(CONFIG, seed), "random")


@pytest.fixture(scope="module")
def pairs():
    target = load(0)
    drafts = {
        "other": model_draft(load(1)), "itself": model_draft(target),
        "copying": Copying().open(SimpleNamespace(target=target)),
    }  # fmt: skip
    return {name: Pair(target, draft, None) for name, draft in drafts.items()}


def batch_of(pair, *texts):
    (batch,) = make_batches(texts, len(texts), pair.target.model)
    return batch


def record(pair, gamma, sampling, length, seed):
    """TEXT's decode; plain for gamma = 0."""
    decoder = pair.decoder(
        method="speculative" if gamma else "autoregressive", gamma=gamma, sampling=sampling,
        max_decode_len=length, seed=seed,
    )  # fmt: skip
    return timeline.record(decoder, batch_of(pair, TEXT))


@pytest.fixture(scope="module")
def recorded(pairs):
    return record(pairs["itself"], 3, SAMPLING["greedy"], LENGTH, 0)


@pytest.mark.parametrize(("draft", "gamma"), [("other", 3), ("copying", 3), ("other", 0)])
def test_the_tokens_are_those_of_generate(draft, gamma, pairs):
    pair, sampling, seen = pairs[draft], SAMPLING["sampled"], set()
    for seed in (0, 5):
        found = record(pair, gamma, sampling, LENGTH, seed)
        expected = pair.generate(
            [TEXT], method="speculative" if gamma else "autoregressive", gamma=gamma or 4,
            sampling=sampling, max_decode_len=LENGTH, seed=seed, trace=True,
        )  # fmt: skip
        np.testing.assert_array_equal(found.tokens, expected.tokens[0])
        seen.add(tuple(found.tokens))
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
    assert len(seen) == 2  # Else the comparisons could not fail.


def test_events_follow_one_another_and_leave_little_out(recorded):
    events = recorded.events
    # It accepts its own guesses; the last block is cut at the limit.
    assert [e.emitted for e in events if e.kind == "target"] == [4] * 5
    assert len(recorded.tokens) == LENGTH
    assert 0 <= events[0].start_ms < 0.1 * recorded.total_ms
    assert all(event.start_ms < event.end_ms for event in events)
    assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(events))
    assert recorded.total_ms == events[-1].end_ms - events[0].start_ms
    gaps = [b.start_ms - a.end_ms for a, b in itertools.pairwise(events)]
    durations = [event.end_ms - event.start_ms for event in events]
    assert np.median(gaps) < 0.5 * np.median(durations)  # Medians: the machine may be busy.
