"""The engine of a target and a draft, with the verifiers that are used unless another is given."""

from __future__ import annotations

from specdec.decoding.engine import Engine
from specdec.drafters.base import OpenDraft
from specdec.drafters.tree import Tree
from specdec.models.base import Model
from specdec.verifiers.base import Verifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier

VERIFIER, TREE_VERIFIER = TokenVerifier(), RecursiveVerifier()


def speculative_engine(
    target: Model, draft: OpenDraft, gamma: int, tree: Tree | None, verifier: Verifier | None,
    stop_below: float = 0.0,
) -> Engine:  # fmt: skip
    """The engine of a draft's chains of gamma guesses, or of its trees.

    Args:
      verifier: None for the default of chains or of trees.

    Raises:
      ValueError: the draft cannot stop early or cannot grow the tree, the tree has more guesses for
        one position than there are tokens, or the verifier takes chains only.
    """
    if tree is None:
        drafter, verifier = draft.make(gamma, stop_below), verifier or VERIFIER
    else:
        if draft.make_tree is None:
            raise ValueError("This draft makes chains only: give gamma instead of tree.")
        if tree.most_siblings > target.vocab_size:
            raise ValueError(
                f"{tree} has {tree.most_siblings} guesses for one position; the vocabulary has "
                f"{target.vocab_size} tokens."
            )
        drafter, verifier = draft.make_tree(tree, 2), verifier or TREE_VERIFIER
    if not (verifier.trees or drafter.topology.is_chain):
        raise ValueError(
            f"{type(verifier).__name__} verifies chains only: give gamma instead of tree, or "
            "verifier=specdec.RecursiveVerifier()."
        )
    return Engine(target, drafter, verifier)
