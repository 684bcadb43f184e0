"""Drafts that follow given texts, through ``generate`` and ``stream``: outputs are the target's."""

import numpy as np
import pytest
from pairs import V, pair_of, texts

import specdec
from specdec.decoding import loop as loops
from specdec.types import SamplingConfig

LIMIT, COUNT = 24, 9
TEXTS = texts(COUNT, most=26)  # Of two sizes of inputs.


@pytest.fixture(scope="module")
def pair(paths):
    return pair_of(paths, "t5", specdec.Given())


@pytest.fixture(scope="module")
def expected(paths):
    return generated(pair_of(paths, "t5", specdec.Given()), None, method="autoregressive")


def generated(pair, given, **options):
    out = pair.generate(TEXTS, given=given, **{"max_decode_len": LIMIT} | options)
    return [row.tolist() for row in out.tokens]


def edited(outputs):
    """The outputs themselves, edited ones, and texts that are wrong in other ways."""
    found = []
    for i, tokens in enumerate(outputs):
        half = len(tokens) // 2
        found += [
            [
                tokens, np.array(tokens), None, "", [[3, 4, 5], tokens], [1, 1, 1],
                [*tokens[:half], 7, *tokens[half:]], tokens[:half] + tokens[half + 1 :],
                [*tokens, *range(2, V)] * 3,
            ][i]
        ]  # fmt: skip
    return found


WAYS = {
    "chain": {"gamma": 3},
    "block verification": {"gamma": 3, "verifier": specdec.BlockVerifier()},
    "chains": {"tree": (2, 1, 1)},
    "traversal": {"tree": (2, 1), "verifier": specdec.TraversalVerifier()},
    "point masses": {"tree": (2, 1), "verifier": specdec.PointMassVerifier()},
}


@pytest.mark.parametrize("name", WAYS)
def test_greedy_tokens_are_the_targets_whatever_is_given(pair, expected, name):
    for size in (1, 4):
        assert generated(pair, edited(expected), batch_size=size, **WAYS[name]) == expected


def drafts(paths):
    model = str(paths["draft"])
    return {
        "hierarchical": (specdec.Hierarchical(model, specdec.Given()), {"gamma": 3}),
        "merged": (specdec.Merged((model, specdec.Given())), {"tree": (2, 1)}),
    }


@pytest.mark.parametrize("name", ["hierarchical", "merged"])
def test_with_a_model(paths, expected, name):
    draft, options = drafts(paths)[name]
    assert generated(pair_of(paths, "t5", draft), edited(expected), **options) == expected


def test_the_output_itself_is_accepted_whole(pair, expected):
    gamma = 5
    out = pair.generate(TEXTS, given=expected, gamma=gamma, max_decode_len=LIMIT, batch_size=4)
    blocks = sum(-(-len(tokens) // (gamma + 1)) for tokens in expected)
    assert [row.tolist() for row in out.tokens] == expected
    assert out.stats.target_calls == blocks
    none = pair.generate(TEXTS, given=[None] * COUNT, gamma=gamma, max_decode_len=LIMIT)
    assert none.stats.proposed == 0
    assert none.stats.target_calls == none.stats.emitted


def test_samples_do_not_depend_on_the_batch(pair, expected):
    """Rows are refilled, and arrays grow."""
    warm = dict(gamma=3, sampling=SamplingConfig(1.0), seed=3, num_samples=2, exact=True)

    def sampled(**options):
        out = pair.generate(TEXTS, given=edited(expected), max_decode_len=LIMIT, **warm | options)
        return [[sample.tokens.tolist() for sample in row] for row in out.samples]

    assert sampled(batch_size=1) == sampled(batch_size=4)


def test_refilled_rows_of_several_sizes(pair, expected, monkeypatch):
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)
    many = [edited(expected), [[*tokens] * 2 for tokens in expected]]
    for given in many:
        assert generated(pair, given, gamma=3, batch_size=2) == expected


def test_gpt(paths):
    gpt = pair_of(paths, "gpt", specdec.Given(max_match=2))
    alone = generated(gpt, None, method="autoregressive")
    assert generated(gpt, edited(alone), gamma=3, batch_size=4) == alone


def test_stream(pair, expected):
    for text, tokens, given in zip(TEXTS, expected, edited(expected), strict=True):
        if given is not None:
            pieces = pair.stream(text, given=given, gamma=3, max_decode_len=LIMIT)
            accepted, streamed = 0, []
            for piece in pieces:
                accepted += piece.accepted
                streamed += piece.tokens.tolist()
            assert streamed == tokens
            if isinstance(given, list) and given == tokens:
                assert accepted >= len(tokens) * 3 // 4
    with pytest.raises(ValueError, match="The draft follows given texts: give one for each"):
        next(pair.stream(TEXTS[0], gamma=3))


def test_auto(pair, expected):
    out = pair.generate(
        TEXTS, given=edited(expected), gamma="auto", max_decode_len=LIMIT, batch_size=3
    )
    assert [row.tolist() for row in out.tokens] == expected
    assert out.choice is not None


def test_strings_are_texts_of_the_output_with_its_end():
    pair = specdec.load_pair(target="quickstart", draft=specdec.Given())
    text = ["Where is the station?"]
    plain = pair.generate(text, method="autoregressive")
    given = [plain.texts[0]]
    found = pair.generate(text, given=given, gamma=4)
    assert found.texts == plain.texts
    count = len(plain.tokens[0])
    # Pieces of a text are not always those that the model wrote it with.
    assert found.stats.target_calls <= -(-count // 5) + 2 < count
    several = pair.generate(text, given=[("Something else.", *given)], gamma=4)
    assert several.texts == plain.texts
    assert several.stats.accepted > 0
    (packed,) = pair.given_ids(given, 1)
    assert (packed[0], packed[-2], packed[-1]) == (0, pair.vocabulary.eos_id + 1, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "The draft follows given texts: give one for each text"),
        ([None] * (COUNT - 1), "given has 8 entries for 9 texts"),
        ("text", "given must be a list with an entry for each text"),
        ({0: [3]}, "given must be a list with an entry for each text"),
        ([[3]] * 8 + [[V]], r"given 8 has a token outside the vocabulary \[0, 19\)"),
        ([[3]] * 8 + [[-1]], "given 8 has a token outside the vocabulary"),
        ([[3]] * 8 + [[[3], [V]]], "given 8 has a token outside the vocabulary"),
        ([[3]] * 8 + [[0.5]], "given 8 must be a string or a list of token ids"),
        ([[3]] * 8 + [[[3], 4]], "given 8 must be a string or a list of token ids"),
        ([[3]] * 8 + [7], "given 8 must be a string or a list of token ids"),
        (["text"] * 9, "given 0 is a string, but this pair has no vocabulary"),
    ],
)  # fmt: skip
def test_bad_texts(pair, given, message):
    with pytest.raises(ValueError, match=message):
        generated(pair, given, gamma=3)


def test_texts_that_nobody_follows(paths, pair):
    some = [None] * COUNT
    with pytest.raises(ValueError, match="given is for a draft that follows it"):
        generated(pair_of(paths, "t5", specdec.Copying()), some, gamma=3)
    draft, _ = drafts(paths)["hierarchical"]
    with pytest.raises(ValueError, match="and not for beams"):
        generated(pair_of(paths, "t5", draft), some, method="speculative_beam", gamma=2)
    assert generated(pair, some, method="autoregressive")
