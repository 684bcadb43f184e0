"""Damaged files of every kind: one clear error, or outputs that follow the target's own law."""

import pytest
from fuzz_kinds import GOOD, KINDS
from fuzz_pool import outcomes

pytest.importorskip("transformers", reason="makes tokenizers' files")
FEW, MANY = 5, 48  # Mutations of a kind.


@pytest.fixture(scope="session")
def good(once):
    def write(folder):
        for name, make in GOOD.items():
            (folder / name).mkdir()
            make(folder / name)

    return once("good_files", write)


def run(good, count, checked):
    cases = [(kind, count, number) for kind in KINDS for number in range(-1, count)]
    return list(outcomes(good, cases, checked))


def told(found):
    return "\n".join(
        f"{o.kind}: {o.mutation}: {o.verdict}: {o.detail}" for o in found if not o.fine
    )


def test_some_damaged_files(good):
    found = run(good, FEW, checked=False)
    assert not told(found), told(found)
