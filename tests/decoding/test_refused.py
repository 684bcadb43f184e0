"""Drafts, shapes and verifiers that do not go together: one line says so."""

import pytest
from pairs import pair_of

import specdec
from specdec.verifiers.point_mass import PointMassVerifier

TREE = {"tree": (2, 1)}
WARM = {"sampling": specdec.SamplingConfig(1.0)}


@pytest.mark.parametrize(
    ("draft", "options", "message"),
    [
        ("draft", TREE | WARM | {"verifier": specdec.KSeqVerifier()}, "drawn independently"),
        ("draft", TREE | WARM | {"verifier": PointMassVerifier()}, "guesses that are no random dr"),
        ("hierarchical", TREE, "makes chains only: give gamma instead of tree"),
        ("draft", TREE | {"method": "autoregressive"}, "Plain decoding has no guesses: tree must"),
        ("draft", {"method": "beam", "stop_below": 0.5}, "leave stop_below out, got 0.5"),
        ("draft", {"top_log_probs": 20}, "is 20, and the vocabulary has 19 tokens"),
    ],
)
def test_what_does_not_go_together(paths, draft, options, message):
    with pytest.raises(ValueError, match=message):
        pair_of(paths, "t5", draft).generate([[5, 9, 1]], max_decode_len=9, **options)
