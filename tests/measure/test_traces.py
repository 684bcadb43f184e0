import dataclasses
import io
import re
from html.parser import HTMLParser

import pytest

from specdec.data.vocabulary import EOS_ID, train_vocabulary
from specdec.decoding.batches import Block
from specdec.measure import traces
from specdec.measure.traces import Span
from tests.measure.test_decodes import ROW


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    return train_vocabulary(["the cat sat on the mat <b>"] * 50, 272, path)


@pytest.fixture(scope="module")
def row(vocabulary):
    """Two blocks: one guess of three rejected; then all accepted and EOS as the bonus."""
    cat, mat, sat = (vocabulary.encode(text) for text in ("the cat", "<b> mat", "sat"))
    blocks = [Block(cat, mat, sat[0]), Block(sat[1:] or cat[:1], [], EOS_ID)]
    return dataclasses.replace(
        ROW, input="a <b> c", blocks=blocks, num_tokens=38, target_calls=9, output="the <cat>"
    )


def test_spans_of_each_block(row, vocabulary):
    first, second = traces.lines(row, vocabulary)
    assert [span.kind for span in first] == ["accepted", "rejected", "correction"]
    assert [span.kind for span in second] == ["accepted", "bonus"]
    assert first[0] == Span("accepted", "the cat")
    assert first[1] == Span("rejected", " <b> mat")
    assert second[1] == Span("bonus", " </s>")


def test_kept_spans_make_up_the_output(row, vocabulary):
    kept = [s.text for line in traces.lines(row, vocabulary) for s in line if s.kind != "rejected"]
    tokens = [t for b in row.blocks for t in [*b.accepted, b.correction]]
    assert "".join(kept) == vocabulary.decode(tokens) + " </s>"


def test_without_a_vocabulary_tokens_are_ids():
    assert traces.lines(ROW, None)[0] == [
        Span("accepted", " 5"), Span("rejected", " 7"), Span("correction", " 6"),
    ]  # fmt: skip


def test_plain_terminal(row, vocabulary):
    text = traces.terminal([row], vocabulary, colour=False)
    assert "\033" not in text
    assert "(38 tokens in 9 target runs)" in text
    assert "    1 the cat [-<b> mat-]" in text
    assert "{+</s>+}" in text


def test_coloured_terminal(row, vocabulary):
    text = traces.terminal([row], vocabulary, colour=True)
    assert "\033[32mthe cat\033[0m" in text
    assert "\033[31;9m<b> mat\033[0m" in text
    assert "\033[94;4m</s>\033[0m" in text


def test_control_characters_do_not_reach_the_terminal(row, vocabulary):
    escape = [next(i for i in range(len(vocabulary)) if vocabulary.decode([i]) == "\x1b")]
    hostile = dataclasses.replace(row, input="a\x1b[2J", blocks=[Block(escape, [], EOS_ID)])
    text = traces.terminal([hostile], vocabulary, colour=False)
    assert "\x1b" not in text
    assert text.count("␛") == 2


def test_colour_is_for_terminals(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not traces.wants_colour(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert traces.wants_colour(io.StringIO())


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.classes, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.classes += [value for name, value in attrs if name == "class"]
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open.pop() != tag:
            pass


def test_page(row, vocabulary):
    page = traces.page([row, row], vocabulary, "a <title>")
    tags = Tags()
    tags.feed(page)
    body = tags.classes[3:]  # After the legend.
    assert body == ["counts", "accepted", "rejected", "correction", "accepted", "bonus"] * 2
    assert not tags.links
    assert not tags.open
    assert "38 tokens in 9 target runs" in page
    assert "<title>a &lt;title&gt;</title>" in page
    assert "&lt;b&gt; mat" in page
    assert "<b>" not in page
    for kind in ("accepted", "rejected", "correction", "bonus"):
        assert re.search(rf"\.{kind}\b.*{{", page)
    assert "prefers-color-scheme: dark" in page
