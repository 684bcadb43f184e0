"""What the copying drafter finds, and what it makes of what was emitted."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.topology import Topology
from specdec.drafters.copying import CopyingDrafter
from specdec.types import Prompt, Verdict

PAD, EOS, START = 0, 1, 0
GAMMA = 3


def padded(rows):
    """Rows as an array that PAD fills up, and their lengths."""
    width = max(map(len, rows))
    array = np.array([row + [PAD] * (width - len(row)) for row in rows], np.int32)
    return array.reshape(len(rows), width), np.array([len(row) for row in rows])


def prompt_of(inputs, prefixes=None):
    """The decoder's prefix is the start token, unless given."""
    prefixes = prefixes or [[START]] * len(inputs)
    return Prompt(*padded(inputs), *padded(prefixes))


def verdict_of(tokens, count):
    """Tokens that were emitted, none of them a guess that was accepted."""
    rows, depth = len(tokens), tokens.shape[1] - 1
    none = np.zeros(rows, np.int32)
    return Verdict(
        jnp.asarray(tokens), jnp.asarray(count), none, np.zeros_like(tokens),
        np.zeros((rows, depth), np.float32), none,
    )  # fmt: skip


def states_of(tokens):
    """The target's, which this drafter does not read."""
    return jnp.zeros((*tokens.shape, 1))


def propose(inputs, *blocks, max_match=8, prefixes=None):
    """The guesses after blocks of emitted tokens, one list a row."""
    drafter = CopyingDrafter(Topology.chain(GAMMA), max_match)
    state = drafter.init((), prompt_of(inputs, prefixes), 16, None)
    for block in blocks:
        count = np.array([len(tokens) for tokens in block])
        tokens = np.array([tokens + [9] * (GAMMA + 1 - len(tokens)) for tokens in block])
        _, state = drafter.propose((), state, None, ())
        state = drafter.observe(state, verdict_of(tokens, count), states_of(tokens))
    draft, _ = drafter.propose((), state, None, ())
    assert draft.probs is None
    return [
        row[:count] for row, count in zip(draft.tokens.tolist(), draft.num_guesses, strict=True)
    ]


def test_copies_what_followed_in_the_input():
    assert propose([[5, 6, 7, 8, 2, EOS]], [[6]]) == [[7, 8, 2]]


def test_no_place_to_copy_from_is_no_guess():
    assert propose([[5, 6, 7, EOS]]) == [[]]
    assert propose([[5, 6, 7, EOS]], [[4]]) == [[]]
    # Only what was emitted is looked for, not the input's own end.
    assert propose([[5, 6, 5]]) == [[]]


def test_the_longest_match_wins():
    inputs = [[5, 7, 2, 3, 6, 7, 4, 4, 4, EOS]]
    assert propose(inputs, [[6, 7]]) == [[4, 4, 4]]
    assert propose(inputs, [[6, 7]], max_match=1) == [[2, 3, 6]]


def test_among_equals_the_next_behind_the_last_copy():
    """The second 7, for copying went on from the 6 before it."""
    inputs = [[5, 7, 2, 3, 6, 7, 4, 4, 4, EOS]]
    assert propose(inputs, [[3]], [[6, 9, 7]]) == [[4, 4, 4]]


def test_copies_from_the_output_and_repeats_it():
    assert propose([[5, EOS]], [[7, 8, 9]], [[7]]) == [[8, 9, 7]]
    assert propose([[5, EOS]], [[8, 8]]) == [[8, 8, 8]]


def test_the_end_of_the_input_is_an_end():
    assert propose([[5, 6, 7, EOS]], [[6]])[0][:2] == [7, EOS]


def test_rows_are_apart():
    inputs = [[5, 6, 7, 8, 2, EOS], [5, 6, EOS], [6, 3, 3, 3, EOS]]
    blocks = [[6], [5, 6], [6]]
    together = propose(inputs, blocks)
    assert together == [propose([i], [b])[0] for i, b in zip(inputs, blocks, strict=True)]


def test_a_prompt_of_the_decoder_is_text_to_copy_from_and_to_go_on_with():
    """Without inputs the prefix is the prompt, whose last tokens are continued at once."""
    prompts = [[5, 6, 7, 8, 2, 6], [4, 4, 3], [7, 3, 9, 3, 7]]
    expected = [[7, 8, 2], [], [3, 9, 3]]
    none = [[]] * 3
    assert propose(none, prefixes=prompts) == expected
    for prompt, guesses in zip(prompts, expected, strict=True):
        assert propose([[]], prefixes=[prompt]) == [guesses]
    # What is emitted comes right behind the prompt.
    assert propose(none, [[7], [3, 5], [3, 9]], prefixes=prompts) == [[8, 2, 6], [], [3, 7, 3]]
    assert propose(none, [[9], [5], [9]], [[9], [4, 4], [1]], prefixes=prompts) == [
        [9, 9, 9], [3, 5, 4], [],
    ]  # fmt: skip


def test_a_prompts_first_token_is_text_too():
    assert propose([[]], prefixes=[[6, 5, 2, 6]]) == [[5, 2, 6]]


def test_a_prefix_behind_an_input_is_said_already():
    """But for its start token, which no text has."""
    inputs = [[5, 6, 7, 8, 2, EOS], [5, 6, 7, 8, 2, EOS], [4, 0, 7, 7, EOS]]
    assert propose(inputs, prefixes=[[START, 3, 6], [START], [START]]) == [[7, 8, 2], [], []]
    assert propose(inputs[:1], [[4, 3]], prefixes=[[START, 3, 6]]) == [[6, 4, 3]]


def test_finished_rows_stand_still():
    drafter = CopyingDrafter(Topology.chain(GAMMA))
    state = drafter.init((), prompt_of([[5, 6, 7, EOS]]), 4, None)
    none = verdict_of(np.full((1, GAMMA + 1), 9), np.array([0]))
    after = drafter.observe(state, none, states_of(none.tokens))
    np.testing.assert_array_equal(after.text, state.text)
    for name in ("length", "num_decoded", "source"):
        np.testing.assert_array_equal(getattr(after, name), getattr(state, name))


def test_bad_settings():
    with pytest.raises(ValueError, match=r"max_match must be in 1\.\.64"):
        CopyingDrafter(Topology.chain(1), 0)
    with pytest.raises(ValueError, match="its tree is of chains"):
        CopyingDrafter(Topology.branching((2, 2)))
