"""Damaged files of every kind: one clear error, or the target's own distribution."""

import collections
from concurrent.futures import ThreadPoolExecutor

import pytest
from fuzz_good import GOOD
from fuzz_kinds import KINDS
from fuzz_pool import Outcome, outcomes

pytest.importorskip("transformers", reason="makes tokenizers' files")
FEW, MANY = 5, 56  # Mutations of a kind, of which each has 59 at least.
PROCESSES = 2


@pytest.fixture
def run(once):
    """Damages files of some kinds, ``count`` times each; all outcomes."""

    def directory(name):
        return once(f"fuzz_{name}", GOOD[name])

    def run(kinds, count, *, checked):
        good = {name: directory(name) for name in {KINDS[kind].good for kind in kinds}}

        def of(share):
            # The first of each is the good file itself.
            cases = [(kind, count, number) for kind in share for number in range(-1, count)]
            return list(outcomes(good, cases, checked))

        shares = [kinds[first::PROCESSES] for first in range(PROCESSES)]
        with ThreadPoolExecutor(PROCESSES) as threads:
            return [outcome for found in threads.map(of, shares) for outcome in found]

    return run


def faults(found: list[Outcome]) -> str:
    return "\n".join(
        f"{o.kind}: {o.mutation}: {o.verdict}: {o.detail}" for o in found if not o.fine
    )


def test_some_damaged_files(run):
    """All kinds but those for which a run must have decoded."""
    kinds = [name for name, kind in KINDS.items() if kind.good != "decoded"]
    found = run(kinds, FEW, checked=False)
    assert not faults(found), faults(found)


@pytest.mark.slow
def test_damaged_files(run):
    found = run(list(KINDS), MANY, checked=True)
    counts = collections.defaultdict(collections.Counter)
    for outcome in found:
        counts[outcome.kind][outcome.verdict] += 1
    for kind, verdicts in counts.items():
        print(f"{kind:40}", *(f"{name} {count}" for name, count in sorted(verdicts.items())))
    assert not faults(found), faults(found)
    assert len(found) - len(KINDS) >= 2000
