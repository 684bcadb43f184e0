"""What all choices have in common: the order of steps, the bound on their time, the memory."""

import dataclasses
import threading
import types

import numpy as np
import pytest

from specdec.drafters.shape import Chain, Tree
from specdec.measure import chooser, timing
from specdec.measure.choice import Candidate, Choice, keep, remembered
from specdec.measure.chooser import PLAIN, choose

# Of so many tokens.
BATCHES = [types.SimpleNamespace(tokens=count, shape=(1, 16)) for count in (5, 10)]


class Clock:
    """A clock that work moves on."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(chooser, "time", clock)
    monkeypatch.setattr(timing, "time", clock)
    return clock


class Compiling:
    """A program whose compilation moves the clock, or never ends."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def compile(self):
        if self.seconds is None:
            threading.Event().wait(0.2)
            raise AssertionError("nobody waits for it")
        self.clock.now += self.seconds


@dataclasses.dataclass
class Decoder:
    """Decodes so many tokens a block, each of which takes so many seconds."""

    kind: object
    gamma: int

    def programs(self, batch):
        seconds = self.kind.compiling(f"gamma {self.gamma}" if self.gamma else PLAIN)
        return [Compiling(self.kind.clock, seconds)]

    def decode(self, batch, *, limit=None):
        tokens = min(batch.tokens, limit or batch.tokens)
        calls = -(-tokens // (self.gamma + 1))
        self.kind.clock.now += calls * self.kind.blocks[self.gamma]
        self.kind.ran += 1
        counts = types.SimpleNamespace(emitted=np.array([tokens]), target_calls=np.array([calls]))
        return types.SimpleNamespace(stats=counts)


class Kind:
    """Gammas whose blocks emit as many tokens as they have levels, in these seconds a block."""

    name = "gamma"

    def __init__(self, clock, blocks, *, compiling=0.0):
        self.clock, self.blocks, self.ran = clock, {0: 0.001, **blocks}, 0
        self.compiling = compiling if callable(compiling) else lambda name: compiling

    def decoder(self, shape):
        return Decoder(self, shape.levels)

    def probes(self):
        return {PLAIN: Decoder(self, 0), "gamma 3": Decoder(self, 3)}

    def estimate(self, found):
        assert set(found) == {PLAIN, "gamma 3"}
        candidates = tuple(Candidate(Chain(gamma), 1.5, 1.0 + gamma / 10) for gamma in (5, 3, 1))
        return Choice("gamma", None, (0.5,), 0.1, {3: 1.2}, candidates)

    def shortlist(self, estimate):
        return estimate.candidates


def test_the_fastest_that_was_timed(clock, capsys):
    kind = Kind(clock, {1: 0.001, 3: 0.001, 5: 0.004})
    choice = choose(kind, BATCHES, 16)
    assert (choice.shape, choice.note) == (Chain(3), "")
    assert [each.shape.gamma for each in choice.candidates] == [3, 1, 5]
    # Of 5 and 10 tokens, with blocks of 4: 2 and 3 calls instead of 15.
    assert choice.candidates[0].measured == pytest.approx(15 / 5)
    assert str(choice) == (
        "gamma 3: 3.00 x plain decoding, measured here. Others: gamma 1 1.88, gamma 5 1.25. "
        "With alpha 0.50, c 0.10, v(3) 1.20."
    )
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Choosing gamma, 30 s at most: compiling: 0 of 2 programs"
    whats = ("measuring acceptance and costs: 0 of 6 batches", "compiling: 0 of 2 programs",
             "timing the best: 0 of 6 batches")  # fmt: skip
    for what in whats:
        assert f"Choosing gamma, 30 s at most: {what}" in shown


def test_plain_decoding_where_nothing_is_faster(clock):
    choice = choose(Kind(clock, {1: 0.01, 3: 0.01, 5: 0.01}), BATCHES, 16)
    assert (choice.shape, choice.levels) == (None, 0)
    assert str(choice).startswith(
        "Speculation does not pay here: the best way, gamma 5, is 0.50 times as fast as plain "
        "decoding, measured here. Decoding plainly."
    )


def test_what_is_not_compiled_in_time_is_left_out(clock):
    late = Kind(clock, {3: 0.001}, compiling=lambda name: 0.1 if name != "gamma 5" else None)
    late.shortlist = lambda estimate: estimate.candidates[:2]
    waits = []

    def waiting(futures, timeout, **options):
        done = [each for each in futures if futures[each] != "gamma 5"]
        if timeout and not done:
            waits.append(timeout)
            clock.now += timeout
        return types.SimpleNamespace(done=done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chooser, "wait", waiting)
        began = clock.now
        choice = choose(late, BATCHES, 16)
    assert clock.now - began == pytest.approx(27, abs=1.1), "nine tenths of the time"
    assert max(waits) <= 1, "it shows that it goes on"
    assert choice.shape == Chain(3)
    assert choice.note == "Time was up after 30 s; not timed: gamma 5."
    assert str(choice).endswith(choice.note)


def test_where_nothing_can_be_compiled_in_time_decoding_is_plain(clock, monkeypatch):
    def waiting(futures, timeout, **options):
        clock.now += timeout
        return types.SimpleNamespace(done=[])

    monkeypatch.setattr(chooser, "wait", waiting)
    kind = Kind(clock, {}, compiling=None)
    began = clock.now
    choice = choose(kind, BATCHES, 16)
    assert clock.now - began <= 30
    assert kind.ran == 0
    assert (choice.shape, choice.levels, choice.alpha) == (None, 0, None)
    assert str(choice) == "Nothing could be measured within 30 s. Decoding plainly."


CHOICES = [
    Choice(
        "gamma", Chain(3, 0.5), (0.8,), 0.1, {7: 1.5},
        (Candidate(Chain(3, 0.5), 2.9, 1.7, 1.6), Candidate(Chain(5), 3.1, 1.6)),
    ),
    Choice(
        "tree", Tree((2, 1)), (0.6, 0.2), 0.0, {7: 1.5, 23: 2.5},
        (
            Candidate(Tree((2, 1)), 2.0, 1.5, 1.4),
            Candidate(Tree(nodes=8, depth=4, siblings=3), None, None, 1.2),
            Candidate(Tree(parents=(-1, -1, 0), independent=True), 2.0, 1.1),
        ),
        "Time was up.",
    ),
    Choice("beams", None, (0.0, 0.7, 0.3), 0.1, {1: 2.0}, (Candidate(Chain(1), 1.3, 0.6, 0.5),)),
]  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_remembers(tmp_path, choice):
    directory = tmp_path / "new"
    assert remembered(directory, "here") is None
    keep(directory, "here", choice)
    keep(directory, "there", CHOICES[0])
    assert remembered(directory, "here") == choice
    assert remembered(directory, "nowhere") is None
    assert len(list((directory / "choices").iterdir())) == 2, "and nothing half-written"


def test_beams_tell_levels_a_call():
    assert "With 1.30 levels a call with gamma 1, c 0.10, v(1) 2.00." in str(CHOICES[2])
