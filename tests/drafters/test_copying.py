"""What the copying drafter finds, and what it makes of what was emitted."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.drafters.copying import CopyingDrafter
from specdec.types import Verdict

PAD, EOS = 0, 1
GAMMA = 3


def propose(inputs, *blocks, max_match=8):
    """The guesses after blocks of emitted tokens, one list a row."""
    drafter = CopyingDrafter(GAMMA, PAD, EOS, max_match)
    width = max(map(len, inputs))
    rows = np.array([row + [PAD] * (width - len(row)) for row in inputs])
    state = drafter.init((), jnp.asarray(rows), 16, None)
    for block in blocks:
        count = np.array([len(tokens) for tokens in block])
        tokens = np.array([tokens + [9] * (GAMMA + 1 - len(tokens)) for tokens in block])
        _, state = drafter.propose((), state, None)
        verdict = Verdict(jnp.asarray(tokens), jnp.asarray(count), jnp.asarray(count) * 0, tokens)
        state = drafter.observe(state, verdict)
    draft, _ = drafter.propose((), state, None)
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


def test_finished_rows_stand_still():
    drafter = CopyingDrafter(GAMMA, PAD, EOS)
    state = drafter.init((), jnp.asarray([[5, 6, 7, EOS]]), 4, None)
    none = Verdict(jnp.full((1, GAMMA + 1), 9), jnp.array([0]), jnp.array([0]), jnp.zeros((1, 4)))
    after = drafter.observe(state, none)
    np.testing.assert_array_equal(after.text, state.text)
    assert (after.length == state.length).all()


def test_bad_settings():
    with pytest.raises(ValueError, match="max_match must be at least 1"):
        CopyingDrafter(1, PAD, EOS, 0)
