import dataclasses
import zlib

import pytest

from specdec.decoding.blocks import Block, SearchedBlock
from specdec.measure.kept_rows import LineWriter, Row, line_of, read_rows
from specdec.measure.lossless import Mismatch

ROW = Row(
    id=0, input="Grüße\u2028", output="greetings", reference=None, tokens=[5, 6, 1], num_tokens=3,
    target_calls=2, proposed=4, examined=3, accepted=1, dropped=1, accepted_histogram=[1, 1, 0],
    accepted_by_rank=[1], acceptance_prob_sum=0.1 + 0.2,
    blocks=[Block([5], [7], 6), Block([1], [], None)],
    mismatch=Mismatch(1, 1e-7, [5, 7, 1]),
)  # fmt: skip


# Two hypotheses and two blocks: a level that was guessed and one with a miss, then the end.
BEAMS = {
    "beams": [
        {"tokens": [5, 1], "score": -0.25, "log_prob": -0.5, "text": "one"},
        {"tokens": [6, 1], "score": -1.5, "log_prob": -2.0, "text": "an<b>other"},
    ],
    "searched": [
        SearchedBlock([[5, 6, 7], [8, 9, 5]], [[5, 6], [8, 4]], [4], "miss"),
        SearchedBlock([[5, 6, 7], [8, 9, 5]], [[9, 1]], [], "done"),
    ],
}  # fmt: skip


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "decodes.jsonl"
    other = dataclasses.replace(ROW, id=1, mismatch=None)
    tree = dataclasses.replace(ROW, id=2, blocks=[Block([5], [7, 8], 6, [[9, 5]])])
    beams = dataclasses.replace(ROW, id=3, blocks=[], **BEAMS)
    for row in (ROW, other, tree, beams):
        with LineWriter(path) as writer:
            writer.append(line_of(row))
    assert list(read_rows(path)) == [ROW, other, tree, beams]


def test_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "decodes.jsonl"
    with LineWriter(path) as writer:
        writer.append(line_of(ROW))
    whole = path.read_bytes()
    # Torn inside a character.
    path.write_bytes(whole + whole[: whole.index("ü".encode()) + 1])
    assert list(read_rows(path)) == [ROW]
    with LineWriter(path) as writer:
        writer.append(line_of(dataclasses.replace(ROW, id=1)))
    assert [row.id for row in read_rows(path)] == [0, 1]


def test_two_writers_are_one_too_many(tmp_path):
    path = tmp_path / "decodes.jsonl"
    with LineWriter(path) as writer:
        writer.append(line_of(ROW))
        assert list(read_rows(path)) == [ROW]  # On disk at once.
        with pytest.raises(OSError, match="is being written by another process"), LineWriter(path):
            pass
        writer.append(line_of(ROW), line_of(ROW))
    assert list(read_rows(path)) == [ROW, ROW, ROW]


def with_checksum(content):
    return f'{content}, "checksum": "{zlib.crc32(content.encode()):08x}"}}'


@pytest.mark.parametrize("line", ['{"id": 1}', with_checksum('{"id": NaN'), '[3, "checksum": "0"}'])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / "decodes.jsonl"
    path.write_text(f"{line_of(ROW)}\n{line}\n")
    with pytest.raises(ValueError, match=r"decodes\.jsonl:2 (is not a row|was changed)"):
        list(read_rows(path))


@pytest.mark.parametrize("change", [("greetings", "greeting"), ("[5, 6, 1]", "[5, 7, 1]")])
def test_a_line_that_was_edited_is_noticed(tmp_path, change):
    path = tmp_path / "decodes.jsonl"
    lines = [line_of(dataclasses.replace(ROW, id=i)) for i in range(2)]
    path.write_text("\n".join([lines[0], lines[1].replace(*change)]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"decodes\.jsonl:2 was changed after it was written"):
        list(read_rows(path))


def test_totals():
    stats = ROW.stats(gamma=2) + ROW.stats(gamma=2)
    assert stats.num_rows == stats.gamma == 2
    assert stats.emitted == 6
    assert stats.accepted_histogram == (2, 2, 0)
    assert stats.accepted_by_rank == (2,)
    assert stats.acceptance_prob_sum == pytest.approx(0.6)
    assert stats.alpha == pytest.approx(0.1)
    assert stats.block_efficiency == 1.5
