"""Several data sets as one."""

import pytest

from specdec.data.text import read_pairs, write_pairs
from specdec.training.mixture import PairsPart, RestorationPart, mixture

BOOK = """# A Title

It was the best of times, it was the worst of times, it was the age. "Indeed," said he. Too
short. This sentence here is long enough to be kept by the rule of words!
"""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "split").mkdir()
    for name, size in (("train", 3), ("validation", 10)):
        write_pairs(
            tmp_path / "split" / f"{name}.tsv", [(f"in {i}", f"out {i}") for i in range(size)]
        )
    (tmp_path / "book.md").write_text(BOOK)
    return tmp_path


def test_parts_are_put_together(data, tmp_path):
    parts = [
        PairsPart("split: ", "split", repeat=2, validation_examples=5),
        RestorationPart("restore: ", texts=["book.md"], corrupt=0.3),
    ]
    mixture(tmp_path, data=data, parts=parts)
    train, validation = (read_pairs(tmp_path / f"{s}.tsv") for s in ("train", "validation"))
    assert train[:6] == [(f"split: in {i}", f"out {i}") for i in (0, 1, 2)] * 2
    assert validation == [(f"split: in {i}", f"out {i}") for i in (0, 2, 4, 6, 8)]
    restored = train[6:]
    assert [target for _, target in restored] == [
        "It was the best of times, it was the worst of times, it was the age.",
        "This sentence here is long enough to be kept by the rule of words!",
    ]
    for source, target in restored:
        words = source.removeprefix("restore: ").split()
        assert source.startswith("restore: ")
        assert set(words) <= set(target.split())
        assert words != target.split()
    # Some words were dropped, and not only replaced.
    assert sum(len(a.split()) - 1 for a, _ in restored) < sum(len(b.split()) for _, b in restored)


def test_the_same_seed_gives_the_same_file(data, tmp_path):
    parts = [RestorationPart("", texts=["book.md"], corrupt=0.5)]
    texts = []
    for seed in (0, 0, 1):
        mixture(tmp_path, data=data, parts=[PairsPart("", "split"), *parts], seed=seed)
        texts.append((tmp_path / "train.tsv").read_text())
    assert texts[0] == texts[1] != texts[2]


def test_inputs_of_tables_are_restored_too(data):
    import numpy as np

    part = RestorationPart("", tables=["split/train.tsv"], words=(1, 9), corrupt=0.0)
    found = part.pairs(data, "train", np.random.default_rng(0))
    assert found == [(f"in {i}", f"in {i}") for i in range(3)]


def test_a_missing_part_is_named(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"elsewhere.train\.tsv"):
        mixture(tmp_path, data=data, parts=[PairsPart("", "elsewhere")])
