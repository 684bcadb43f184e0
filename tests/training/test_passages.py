"""Passages of books."""

import numpy as np

from specdec.training.passages import passages


def book(directory, sentences: int) -> None:
    lines = ["# A heading", "-------"]
    lines += [f'Mr. Number {i} came. He said: "I am {i}."' for i in range(sentences // 2)]
    (directory / "book.md").write_text("\n\n".join(lines), encoding="utf-8")


def read(directory, split):
    return (directory / f"{split}.txt").read_text(encoding="utf-8").splitlines()


def test_every_sentence_is_in_one_passage_of_one_split(tmp_path):
    book(tmp_path, 8000)
    passages(tmp_path, data=tmp_path, texts=["book.md"], lengths=(1, 1, 1))
    found = {split: read(tmp_path, split) for split in ("train", "validation", "test")}
    everything = " ".join(line for lines in found.values() for line in lines)
    assert "heading" not in everything
    assert "---" not in everything
    assert sorted(everything.split()) == sorted(
        word for i in range(4000) for word in f'Mr. Number {i} came. He said: "I am {i}."'.split()
    )
    shares = {split: sum(len(line.split()) for line in lines) for split, lines in found.items()}
    for split in ("validation", "test"):
        assert 0.02 < shares[split] / sum(shares.values()) < 0.03
    # Sentences a passage: 1, 2 and 3 are about as frequent, and a title ends none.
    ends = np.bincount([line.count("came.") + line.count('."') for line in found["train"]])
    assert len(ends) == 4
    assert ends[0] == 0
    assert ends[1:].min() > 0.7 * ends[1:].max()


def test_long_sentences_are_left_out(tmp_path, capsys):
    text = "Short one. " + "Very " + "long " * 30 + "one. Another short one."
    (tmp_path / "book.md").write_text(text, encoding="utf-8")
    passages(tmp_path, data=tmp_path, texts=["book.md"], lengths=(0, 0, 1), max_words=20)
    assert sorted(read(tmp_path, "train")) == ["Another short one.", "Short one."]
    assert "1 sentences of more than 20 words left out" in capsys.readouterr().err
