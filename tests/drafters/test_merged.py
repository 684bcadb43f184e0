"""Several drafts at once: what is refused."""

import pytest

from specdec.drafters.copying import Copying
from specdec.drafters.merged import Merged
from specdec.drafters.random import Random
from specdec.drafters.shape import Chain, Tree
from specdec.models.base import LoadedModel
from specdec.models.toy import ToyModel


class Opened:
    target = LoadedModel(ToyModel(7), (), "toy")


def test_drafts_of_one_tree_have_a_limit_together():
    opened = Merged((Random(), Copying())).open(Opened())
    assert opened.make(Tree((512,)), 2).topology.size == 1024
    with pytest.raises(ValueError, match="2 drafts with a tree 513 each have 1026"):
        opened.make(Tree((513,)), 2)


def test_a_chain_is_refused():
    with pytest.raises(ValueError, match="random \\+ copying is a tree"):
        Merged((Random(), Copying())).open(Opened()).make(Chain(3), 2)
