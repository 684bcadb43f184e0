"""Where the drafter of given texts goes on, and what it makes of what was emitted."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.topology import Topology
from specdec.drafters.given import GivenDrafter
from specdec.types import Prompt, Verdict

EOS = 1
GAMMA = 3
CHAIN = Topology.chain(GAMMA)
TEXT = [5, 6, 7, 8, 2, 3, 4, 9, EOS]


def prompt_of(rows, size=32):
    """Rows of texts, as :class:`Prompt` has them."""
    given = np.zeros((len(rows), size), np.int32)
    for row, texts in zip(given, rows, strict=True):
        packed = [token for text in texts for token in (0, *(id + 1 for id in text))]
        row[: len(packed)] = packed
    ones = np.ones(len(rows), np.int32)
    return Prompt(given[:, :0], 0 * ones, given[:, :1], ones, given=given)


def verdict_of(tokens, count):
    none = np.zeros(len(tokens), np.int32)
    return Verdict(
        jnp.asarray(tokens), jnp.asarray(count), none, np.zeros_like(tokens),
        np.zeros((len(tokens), tokens.shape[1] - 1), np.float32), none,
    )  # fmt: skip


def propose(rows, *blocks, topology=CHAIN, max_match=8, size=32):
    """The guesses after blocks of emitted tokens, one list a row."""
    drafter = GivenDrafter(topology, max_match)
    state = drafter.init((), prompt_of(rows, size), 16, None)
    for block in blocks:
        count = np.array([len(tokens) for tokens in block])
        tokens = np.array([tokens + [0] * (GAMMA + 1 - len(tokens)) for tokens in block])
        _, state = drafter.propose((), state, None, ())
        state = drafter.observe(state, verdict_of(tokens, count), jnp.zeros((*tokens.shape, 1)))
    draft, _ = drafter.propose((), state, None, ())
    assert draft.probs is None
    return [
        row[:count] for row, count in zip(draft.tokens.tolist(), draft.num_guesses, strict=True)
    ]


def after(*blocks, texts=(TEXT,), **options):
    """The guesses of one row after blocks of its tokens."""
    return propose([texts], *([block] for block in blocks), **options)[0]


def test_a_text_is_followed_from_its_beginning():
    assert after() == [5, 6, 7]
    assert after([5, 6, 7, 8]) == [2, 3, 4]
    assert after([5, 6, 7, 8], [2, 3]) == [4, 9, EOS]


def test_guesses_end_with_the_text():
    assert after([5, 6, 7, 8], [2, 3, 4]) == [9, EOS]
    assert after([5, 6, 7, 8], [2, 3, 4, 9]) == [EOS]
    # Its end is no place to go on from, also when the output goes on.
    assert after([5, 6, 7, 8], [2, 3, 4, 9], [EOS]) == []
    assert after([5, 6, 7, 8], [2, 3, 4, 9], [10]) == []
    assert after([5, 6, 7, 8], [2, 3, 4, 9], [10], [12, 13]) == []


def test_a_text_that_fills_its_array_ends_there():
    assert after([5, 6, 7, 8], [2, 3, 4], size=len(TEXT) + 2) == [9, EOS]
    assert after([5, 6, 7, 8], [2, 3, 4, 9], [EOS], [10], size=len(TEXT) + 2) == []


def test_behind_a_replaced_token_the_text_goes_on():
    assert after([5, 6, 12]) == [8, 2, 3]
    assert after([12]) == [6, 7, 8]
    assert after([5, 12], [13]) == [8, 2, 3], "two of them"


def test_a_text_is_found_again_behind_tokens_that_were_left_out():
    assert after([5, 6, 2]) == [3, 4, 9]


def test_a_text_is_found_again_behind_tokens_that_were_put_in():
    assert after([5, 6, 12]) == [8, 2, 3], "as if it were a replaced one"
    assert after([5, 6, 12], [7]) == [8, 2, 3]
    assert after([5, 6, 12], [13, 14], [7, 8]) == [2, 3, 4]


def test_one_token_alone_is_found_near_the_expected_position():
    """And two are found everywhere."""
    far = [5, 6, 7, *[10] * 12, 12, 13, 14]
    assert after([5, 12], texts=[far]) == [7, 10, 10]
    assert after([5, 12, 13], texts=[far]) == [14]
    assert after([5, 12], texts=[far], max_match=16) == [13, 14]


def test_the_longest_match_wins_and_then_the_nearest():
    text = [5, 7, 2, 3, 6, 7, 4, 4, 8, 3, 7, 9, 9]
    assert after([6, 7], texts=[text]) == [4, 4, 8]
    assert after([6, 7], texts=[text], max_match=1) == [2, 3, 6], "expected there"
    assert after([5, 7, 2, 3], [6, 10, 7], texts=[text]) == [4, 4, 8]


def test_the_expected_position_wins_over_one_before_it():
    """After two equal tokens, both of which the text has."""
    assert after([5, 6], texts=[[5, 6, 8, 9, 5, 6, 3]]) == [8, 9, 5]
    assert after([5, 6, 8, 9], [5, 6], texts=[[5, 6, 8, 9, 5, 6, 3]], max_match=2) == [3]


def test_an_output_that_begins_as_another_text_moves_there():
    texts = [[5, 6, 7, 8], [5, 9, 3, 3, 4], []]
    assert after(texts=texts) == [5, 6, 7]
    assert after([5, 9], texts=texts) == [3, 3, 4]
    # No guess is of the next text, also when the output goes on behind its own.
    assert after([5, 6, 7], texts=texts) == [8]
    assert after([5, 6, 7, 8], texts=texts) == []
    assert after([5, 6, 7, 8], [12], texts=texts) == []
    # Where one ends, another may go on.
    assert after([5, 6, 7], texts=[[5, 6, 7], [4, 6, 7, 8]]) == [8]


def test_rows_are_apart_and_one_without_a_text_makes_no_guess():
    rows = [[TEXT], [], [[]], [[7, 7, 3], TEXT]]
    blocks = [[5, 12], [5], [5], [7, 4]]
    together = propose(rows, blocks)
    assert together == [propose([r], [b])[0] for r, b in zip(rows, blocks, strict=True)]
    assert together[1:3] == [[], []]


def test_guesses_do_not_depend_on_how_much_is_filler():
    blocks = [[5, 12], [13], [7, 8], [10, 6]]
    for count in range(len(blocks) + 1):
        some = [after(*blocks[:count], size=size) for size in (16, 32, 64)]
        assert some[0] == some[1] == some[2]


CHAINS = Topology.branching((2, 1))


def test_chains_follow_texts_at_once():
    """Nodes are in the order of levels. A chain whose text ends is filled up."""
    texts = [[5, 6, 7], [4], [9, 3]]
    assert after(texts=texts, topology=CHAINS) == [5, 4, 6, 0]
    three = Topology.branching((3, 1))
    assert after(texts=texts, topology=three) == [5, 4, 9, 6, 0, 3]
    assert after([9], texts=texts, topology=three)[0] == 3
    assert after(texts=[[5, *[6] * 12], [4]], topology=CHAINS) == [5, 4, 6, 0]
    assert after(texts=[[4], [9]], topology=CHAINS) == [4, 9]
    # Each begins with another token.
    assert after(texts=[[5, 2], [5, 3], [4]], topology=CHAINS) == [5, 4, 2, 0]
    assert after(texts=[], topology=CHAINS) == []


def test_a_single_text_is_continued_in_two_ways():
    """A token that the text has is one that was replaced, or those before it were left out."""
    assert after([5, 6, 8], topology=CHAINS) == [2, 8, 3, 2]


def test_the_chain_that_was_right_is_continued():
    texts = [[5, 6, 7, 8], [9, 3, 2, 4, 6]]
    assert after([9, 11], texts=texts, topology=CHAINS)[0] == 2


def test_finished_rows_stand_still():
    drafter = GivenDrafter(CHAIN)
    state = drafter.init((), prompt_of([[TEXT]]), 4, None)
    none = verdict_of(np.full((1, GAMMA + 1), 9), np.array([0]))
    seen = drafter.observe(state, none, jnp.zeros((1, GAMMA + 1, 1)))
    for name, value in vars(state).items():
        np.testing.assert_array_equal(getattr(seen, name), value)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"max_match must be in 1\.\.64"):
        GivenDrafter(Topology.chain(1), 0)
    with pytest.raises(ValueError, match="its tree is of chains"):
        GivenDrafter(Topology.branching((2, 2)))
    ones = np.ones(1, np.int32)
    with pytest.raises(ValueError, match="follows texts, and there are none: give generate"):
        GivenDrafter(CHAIN).init((), Prompt(ones[None, :0], ones, ones[None], ones), 4, None)
