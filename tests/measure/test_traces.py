import dataclasses
import io
import re
from html.parser import HTMLParser

import jax
import numpy as np
import pytest

from specdec.core.topology import Topology
from specdec.decoding.blocks import Block, SearchedBlock, blocks_of
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.drafters.base import DraftParams
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.measure import traces
from specdec.measure.traces import Span
from specdec.models.toy import ToyModel
from specdec.text.opening import open_tokenizer
from specdec.text.streaming import Piece
from specdec.text.vocabulary import EOS_ID, train_vocabulary
from specdec.types import BlockInfo, SamplingConfig
from specdec.verifiers.recursive import RecursiveVerifier
from tests.measure.test_kept_rows import BEAMS, ROW


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


def test_a_text_that_is_being_generated(vocabulary):
    """What is shown grows; accepted tokens and the target's own are told apart."""
    the, cat = vocabulary.encode("the"), vocabulary.encode("cat sat")
    pieces = [
        Piece("the", np.array(the), len(the)), Piece("cat sat", np.array(cat), len(cat) - 1),
        Piece("", np.array([EOS_ID]), 0, "eos"),
    ]  # fmt: skip
    shown = list(traces.live(pieces, vocabulary))
    texts = [re.sub("<style>.*</style>|<[^>]*>", "", each, flags=re.DOTALL) for each in shown]
    assert [text.strip() for text in texts] == ["the", "the cat sat", "the cat sat &lt;/s&gt;"]
    kinds = [re.findall('class="(accepted|bonus)"', each) for each in shown]
    assert kinds == [["accepted"], ["accepted"] * 2 + ["bonus"], ["accepted"] * 2 + ["bonus"] * 2]


def test_terminal(row, vocabulary):
    text = traces.terminal([row], vocabulary, colour=False)
    assert "\033" not in text
    assert "(38 tokens in 9 target runs)" in text
    assert "    1 the cat [-<b> mat-]" in text
    assert "{+</s>+}" in text
    coloured = traces.terminal([row], vocabulary, colour=True)
    for part in ("\033[32mthe cat\033[0m", "\033[31;9m<b> mat\033[0m", "\033[94;4m</s>\033[0m"):
        assert part in coloured


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


def test_beams():
    """Levels with what was guessed and what was not, why blocks ended, and the n-best list."""
    row = dataclasses.replace(ROW, blocks=[], mismatch=None, **BEAMS)
    assert traces.lines(row, None) == [
        [
            Span("accepted", " 5|6"), Span("note", " /"), Span("accepted", " 8"),
            Span("correction", " 4"), Span("note", " (missed)"),
        ],
        [Span("accepted", " 9|1"), Span("note", " (done)")],
    ]  # fmt: skip
    text = traces.terminal([row], None, colour=False)
    assert "    1  5|6 / 8 {+4+} (missed)" in text
    assert "   -1.500  an<b>other" in text
    assert "Guesses" not in text
    page = traces.page([row], None, "beams")
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert tags.classes == [
        "accepted", "correction", "counts", "accepted", "note", "accepted", "correction", "note",
        "accepted", "note",
    ]  # fmt: skip
    assert "<td>-1.500</td><td>an&lt;b&gt;other</td>" in page
    # After all guesses the target goes on alone.
    last = SearchedBlock([[5, 6]], [[5, 5], [7, 8]], [], "depth")
    row = dataclasses.replace(row, searched=[last])
    assert [span.kind for span in traces.lines(row, None)[0]] == [
        "accepted", "note", "bonus", "note"
    ]  # fmt: skip
    plain = dataclasses.replace(row, searched=None)
    assert "target's" not in traces.terminal([plain], None, colour=False)


def info(**leaves):
    """One block of one row."""
    return BlockInfo(**{name: np.array([[leaf]]) for name, leaf in leaves.items()})


# Guesses 0 to 6 of a tree: two of the next token, two after the first of them, one after the
# second, and two after guess 3.
PARENTS = [-1, -1, 0, 0, 1, 3, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Block([10, 13], [15, 16], 7, [[11], [12]])),
        # Nothing accepted: the guesses of the first position.
        ({"num_accepted": 0, "num_emitted": 1}, Block([], [10, 11], 10, [])),
        # A leaf: nothing follows.
        (
            {"path": [0, 2, 5, 0], "tokens": [11, 14, 8, 0]},
            Block([11, 14], [], 8, [[10], []]),
        ),
        # Guess 3 is EOS, so the row ended with it, though the verifier had gone on to guess 6.
        ({"path": [0, 1, 4, 7], "num_emitted": 2}, Block([10, 13], [15, 16], None, [[11], [12]])),
        # Only 4 of them are guesses.
        ({"num_guesses": 4}, Block([10, 13], [], 7, [[11], [12]])),
        # The tree of this block is a chain.
        (
            {"parents": list(range(-1, 6)), "path": [0, 1, 2, 3]},
            Block([10, 11], [12, 13, 14, 15, 16], 7),
        ),
        ({"num_guesses": 1, "num_accepted": 0, "num_emitted": 1}, Block([], [10], 10)),
    ],
)  # fmt: skip
def test_a_block_of_a_tree(changes, expected):
    fields = {
        "draft_tokens": list(range(10, 17)), "parents": PARENTS, "num_guesses": 7,
        "tokens": [10, 13, 7, 0], "path": [0, 1, 4, 0], "num_accepted": 2, "num_emitted": 3,
    }  # fmt: skip
    assert blocks_of(info(**fields | changes), 0) == [expected]


TOY = ToyModel(7)


@pytest.mark.parametrize(
    "drafter",
    [ModelTreeDrafter(TOY, Topology.branching((3, 2))), BestFirstDrafter(TOY, 5, 3, 2)],
    ids=["static", "dynamic"],
)
def test_blocks_of_trees_that_were_decoded(drafter):
    """Rows end at EOS and at the limit; tokens, counts and guesses are those of the decode."""
    tables = (jax.random.normal(jax.random.key(seed), (31, 7)) for seed in (0, 0))
    sampling = SamplingConfig(1.0).traced()
    target, draft = tables
    params = EngineParams(target, sampling, DraftParams(draft, sampling))
    engine = Engine(TOY, drafter, RecursiveVerifier())
    prompt = TOY.prompt(np.arange(48).reshape(24, 2) % 7, np.full(24, 2))
    result = jax.tree.map(
        np.asarray,
        decode(engine, params, prompt, np.arange(24), 9, 0, output_bucket=16, trace=True),
    )
    ended_by_a_guess = 0
    for row in range(24):
        blocks = blocks_of(result.trace, row)
        assert all(block.siblings is not None for block in blocks)
        assert all(len(block.siblings) == len(block.accepted) for block in blocks)
        last = [[] if b.correction is None else [b.correction] for b in blocks]
        said = [t for b, end in zip(blocks, last, strict=True) for t in [*b.accepted, *end]]
        assert said == result.tokens[row, : result.num_tokens[row]].tolist()
        ended_by_a_guess += blocks[-1].correction is None
        assert len(blocks) == result.stats.target_calls[row]
        for block in blocks:
            if isinstance(drafter, ModelTreeDrafter):
                # Drawn without replacement, so all differ.
                for taken, others, size in zip(
                    block.accepted, block.siblings, (3, 2), strict=False
                ):
                    assert len({taken, *others}) == size
                assert len(block.rejected) == (3, 2, 0)[len(block.accepted)]
    assert result.stats.accepted.sum() > 20
    assert 0 < ended_by_a_guess < 24


@pytest.fixture(scope="module")
def tree_row(vocabulary):
    """Two accepted guesses, others of the first's position, and the siblings where it stopped."""
    the, cat, mat, sat, on = (vocabulary.encode(t)[1] for t in ("the", "cat", "mat", "sat", "on"))
    block = Block([the, cat], [sat, on], mat, [[cat, mat], []])
    return dataclasses.replace(ROW, input="a", blocks=[block], output=None)


def test_siblings_that_were_not_taken(tree_row, vocabulary):
    spans = traces.lines(tree_row, vocabulary)[0]
    kinds = ["accepted", "siblings", "accepted", "rejected", "correction"]
    assert [span.kind for span in spans] == kinds
    pieces = [vocabulary.decode([t]) for t in tree_row.blocks[0].siblings[0]]
    assert spans[1].text == " " + "|".join(pieces)
    text = traces.terminal([tree_row], vocabulary, colour=False)
    assert f"[-{'|'.join(pieces)}-]" in text
    assert "After an accepted guess [-the others|of its position-]." in text.splitlines()
    rejected = "|".join(vocabulary.decode([t]) for t in tree_row.blocks[0].rejected)
    assert rejected == "s|o"
    assert f"[-{rejected}-]" in text
    coloured = traces.terminal([tree_row], vocabulary, colour=True)
    assert f"[\033[2;9m{'|'.join(pieces)}\033[0m]" in coloured
    page, tags = traces.page([tree_row], vocabulary, "trees"), Tags()
    tags.feed(page)
    assert tags.classes[4:] == ["counts", *kinds]  # After the legend.
    assert f"[{'|'.join(pieces)}]</span>" in page


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def spelling(request, vocabulary, tmp_path_factory):
    """A tokenizer to which a character is several tokens."""
    if request.param == "pieces":
        return vocabulary
    path = tmp_path_factory.mktemp("bytes") / "tokenizer_config.json"
    path.write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    return open_tokenizer(path)


def test_characters_spread_over_blocks_are_shown_whole(spelling):
    """Where their last token is; a part alone, which was never completed, is an id."""
    first, second, *rest = spelling.encode("the \N{SLIGHTLY SMILING FACE}ü")[-6:]
    smile, umlaut = rest[:2], rest[2:]
    the = spelling.encode("the \N{SLIGHTLY SMILING FACE}ü")[:-6]
    other = spelling.encode("ö")[-1]
    end = spelling.eos_id
    blocks = [
        Block([*the, first], [other], second),
        Block(smile, [end], umlaut[0]),
        Block([], [other], umlaut[1]),
        Block([], [first], end),
    ]
    row = dataclasses.replace(ROW, input="a", blocks=blocks, output=None)
    before, smiling, *after = traces.lines(row, spelling)
    assert next((span.kind, span.text) for span in before) == ("accepted", "the ")
    assert smiling == [Span("accepted", "\N{SLIGHTLY SMILING FACE}"), Span("rejected", " </s>")]
    assert after == [
        [Span("rejected", "ö"), Span("correction", "ü")],
        [Span("rejected", f"<{first}>"), Span("correction", " </s>")],
    ]
    text = traces.terminal([row], spelling, colour=False)
    assert "\N{REPLACEMENT CHARACTER}" not in text + traces.page([row], spelling, "whole")
    assert "[-ö-]{+ü+}" in text
