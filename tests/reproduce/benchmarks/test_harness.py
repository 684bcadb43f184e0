"""The harness: what it computes, what it refuses, and that real processes answer it."""

import dataclasses

import pytest

from specdec.decoding.beam_rules import BeamConfig
from specdec.reproduce.benchmarks import harness, worker
from specdec.reproduce.benchmarks.contract import WorkloadError
from specdec.reproduce.benchmarks.harness import check_systems, measure

PLAIN, SPECULATIVE = "specdec autoregressive", "specdec speculative"
BEAMS = "specdec beams"
CT2, INT8, T5X = "CTranslate2 float32", "CTranslate2 int8", "T5X"


@pytest.fixture
def natural(tiny_workload):
    """Two rows that end by themselves, one at a time, from checkpoints."""
    return dataclasses.replace(
        tiny_workload, lengths=None, batch_size=1, forced_alpha=None,
        target="target", draft="draft",
    )  # fmt: skip


class Answers:
    """What each system answers in place of a process, and who was asked what in which order."""

    def __init__(self, tokens, absent=(), seconds=None):
        self.tokens, self.absent, self.seconds, self.asked = tokens, absent, seconds or {}, []

    def __call__(self, name, function, *args):
        if function is worker.load:
            if name in self.absent:
                return {"absent": "not installed"}
            return {"load_seconds": 2.0, "versions": {"x": "1"}}
        lengths, first_token = args
        first_time = all(name != asked for asked, *_ in self.asked)
        self.asked.append((name, first_token, lengths))
        return {
            "seconds": 10.0 if first_time else self.seconds.get(name, 1.0),
            "tokens": self.tokens[name],
            "memory_bytes": 250,
        }


@pytest.fixture
def answer(monkeypatch):
    def use(*args, **kwargs):
        answers = Answers(*args, **kwargs)

        monkeypatch.setattr(
            harness._System, "_ask", lambda self, *asked: answers(self.name, *asked)
        )
        monkeypatch.setattr(harness, "REST_SECONDS", 0.0)
        return answers

    return use


TOKENS = [[5, 6, 1], [7, 1]]


def test_ratios_memory_and_compile_time(natural, answer):
    answer({PLAIN: TOKENS, SPECULATIVE: TOKENS}, seconds={PLAIN: 3.0, SPECULATIVE: 1.5})
    plain, speculative = measure(natural, (PLAIN, SPECULATIVE), 3, {"threads": 1})
    assert plain.ms_per_token().median == 1e3 * 3.0 / 5
    assert speculative.speedup_over(plain).median == 2.0
    assert plain.compile_seconds == 7.0
    assert plain.memory_bytes == 250
    assert plain.same_rows == 2
    assert plain.load_seconds == 2.0


def test_a_system_is_compared_with_the_one_it_is_like(natural, answer):
    exact, chain = "specdec autoregressive, exact", "specdec speculative, Quantized, exact"
    others = [[5, 7, 1], [7, 1]]
    answer({PLAIN: TOKENS, exact: others, chain: others})
    found = measure(natural, (PLAIN, exact, chain), 1, {"threads": 1})
    assert [each.same_rows for each in found] == [2, 1, 2]
    (alone,) = measure(natural, (PLAIN, chain), 1, {"threads": 1})[1:]
    assert alone.same_rows == 1


def test_rows_at_once_need_prescribed_lengths(natural):
    with pytest.raises(WorkloadError, match="one at a time"):
        check_systems(natural, (PLAIN, "transformers greedy, bfloat16, 8 at once"))


def test_the_reference_sets_the_lengths_of_the_others(natural, answer):
    answers = answer({PLAIN: TOKENS, CT2: TOKENS})
    measure(natural, (PLAIN, CT2), 2, {"threads": 1})
    assert answers.asked[0] == (PLAIN, False, None)
    assert all(lengths == [3, 2] for name, _, lengths in answers.asked if name == CT2)


def test_every_other_repetition_goes_the_other_way_round(natural, answer):
    answers = answer({PLAIN: TOKENS, CT2: TOKENS})
    measure(natural, (PLAIN, CT2), 2, {"threads": 1})
    timed = [name for name, first, _ in answers.asked if not first][2:]
    assert timed == [PLAIN, CT2, CT2, PLAIN]


def test_another_length_is_refused(natural, answer):
    answer({PLAIN: TOKENS, INT8: [[5, 6, 1], [7, 7, 1]]})
    with pytest.raises(WorkloadError, match="int8 emitted 3 tokens for row 1 where 2 were asked"):
        measure(natural, (PLAIN, INT8), 1, {"threads": 1})


def test_other_weights_are_refused(natural, answer):
    answer({PLAIN: TOKENS, CT2: [[5, 6, 1], [8, 1]]})
    with pytest.raises(WorkloadError, match=r"only 1 of 2 rows .* not decode the same weights"):
        measure(natural, (PLAIN, CT2), 1, {"threads": 1})


@pytest.mark.parametrize(
    ("systems", "changes", "message"),
    [
        ((PLAIN, "vLLM"), {}, "Unknown system 'vLLM'"),
        ((SPECULATIVE,), {}, "first system must be"),
        ((), {}, "first system must be"),
        ((PLAIN, CT2), {"temperature": 1.0}, "compared greedily only"),
        ((PLAIN, CT2), {"batch_size": 2}, "one at a time"),
        ((PLAIN,), {"beam": BeamConfig(2)}, 'first system must be "specdec beams"'),
        ((BEAMS, CT2), {"beam": BeamConfig(2)}, "it searches beams, which CTranslate2 float32 is"),
        ((PLAIN, "T5X beams"), {}, "it searches no beams, which T5X beams is not for"),
    ],
)
def test_systems_that_cannot_do_it(natural, systems, changes, message):
    with pytest.raises(WorkloadError, match=message):
        check_systems(dataclasses.replace(natural, **changes), systems)


def test_a_process_that_fails_says_why(natural):
    with pytest.raises(RuntimeError, match=r"specdec autoregressive: CheckpointError: .*target"):
        measure(natural, (PLAIN,), 1, {"threads": 1})
