"""Stop strings and stop tokens: where they end an output, and that all before is as it was."""

import dataclasses

import numpy as np
import pytest
from oracle_cases import CAUGHT, LOSSLESS, PROMPT
from oracle_rules import COINS, LIMIT, PIECES, SAMPLED, STEEP, TARGET, TOY, cells_of, distributions

import specdec
from specdec.core.pytrees import pytree
from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.stops import Stops, cut_before, open_stops
from specdec.rules.texts import text_table
from specdec.testing.oracle import exact_distribution, model_distribution, total_variation
from specdec.testing.toys import reference_distribution
from specdec.text.vocabulary import train_vocabulary
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier

CHAIN = ModelDrafter(TOY, 2), TokenVerifier()
TREE = ModelTreeDrafter(TOY, Topology.branching((1, 2)), True), RecursiveVerifier()


def off(stop, ends, drafter, verifier, stops=None):
    """How far the loop is from the target's distribution of outputs that end so."""
    as_it_is = distributions(STEEP, lambda logits, output: logits)
    cells = cells_of(
        drafter, verifier, as_it_is, distributions(COINS, lambda logits, output: logits)
    )
    params = EngineParams(
        STEEP, SAMPLED.traced(), DraftParams(COINS, SAMPLED.traced()),
        stops or open_stops(stop, TARGET),
    )  # fmt: skip
    found = exact_distribution(
        Engine(TOY, drafter, verifier), params, PROMPT, limit=LIMIT, grid=cells
    )
    truth = model_distribution(
        TOY, STEEP, PROMPT, lambda x: reference_distribution(x, SAMPLED), limit=LIMIT, ends=ends
    )
    assert truth[0] != truth[1]
    return max(total_variation(a, b) for a, b in zip(found, truth, strict=True))


def has(*strings):
    return lambda output: any(
        each in "".join(PIECES[token] for token in output) for each in strings
    )


@pytest.mark.parametrize("way", [CHAIN, TREE])
def test_strings(way):
    assert off(["ab", "bb"], has("ab", "bb"), *way) < LOSSLESS


def test_tokens_beside_strings():
    ends = has("ab")
    assert off(["ab", 2], lambda output: output[-1] == 2 or ends(output), *CHAIN) < LOSSLESS


@pytree
class AtTheEndOfABlock(Stops):
    """What is complete before the last token of a block goes unseen."""

    def along(self, states, tokens):
        behind, ends = super().along(states, tokens)
        return behind, ends & (np.arange(tokens.shape[1]) == tokens.shape[1] - 1)


@pytree
class FromTheBlockOn(Stops):
    """Each block begins as if nothing were before it."""

    def along(self, states, tokens):
        return super().along(0 * states, tokens)


@pytest.mark.parametrize("mutant", [AtTheEndOfABlock, FromTheBlockOn])
def test_mutants_are_caught(mutant):
    right = open_stops(["ab"], TARGET)
    wrong = mutant(right.tokens, right.text)
    assert off(["ab"], has("ab"), *CHAIN, stops=wrong) > CAUGHT


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart")


TEXTS = ["The house is old, and the garden is large.", "Where is the station?", "Good morning."]


def test_on_the_bundled_pair(pair):
    whole = pair.generate(TEXTS, gamma=3, batch_size=3)
    stop = ["und", "Bahn", "Morge"]
    ways = {"gamma": 3, "batch_size": 3}, {"method": "autoregressive"}, {"tree": (2, 1)}
    for options in ways:
        out = pair.generate(TEXTS, stop=stop, **options)
        assert out.ended == ["stop"] * 3
        assert out.texts == [cut_before(text, stop) for text in whole.texts]
        for tokens, all_ in zip(out.tokens, whole.tokens, strict=True):
            assert len(tokens) < len(all_)
            assert tokens.tolist() == all_[: len(tokens)].tolist()
            without_last = pair.vocabulary.decode(tokens[:-1].tolist())
            assert not any(each in without_last for each in stop)
    assert whole.ended == ["eos"] * 3
    assert pair.generate(TEXTS, max_decode_len=3, gamma=2).ended == ["limit"] * 3


def test_a_space_before_the_first_word_is_not_text(pair):
    """SentencePiece's first piece has one, the text has not."""
    plain = pair.generate(TEXTS[2:], gamma=3)
    assert pair.generate(TEXTS[2:], gamma=3, stop=[" " + plain.texts[0][:4]]).ended == ["eos"]
    assert pair.generate(TEXTS[2:], gamma=3, stop=[plain.texts[0][:4]]).texts == [""]


SENTENCES = ["the dog and the cat", "all of the time", "in the garden the sun is out"] * 20


@pytest.mark.parametrize("continues", [False, True])
def test_only_without_text_in_front(tmp_path, continues):
    """Of a model file as T5X reads it; a prompt of one token is text, one without text is not."""
    words = train_vocabulary(SENTENCES, 281, tmp_path / "spiece.model")
    the = [*words.spelling(len(words)).pieces].index(b" t")
    table = text_table("stop", [" t"], RuleTarget(len(words), (1,), continues, 8, words))
    fronts = {(0,): False, (0, the): True, (the,): continues, (0, the, 0): True}
    for front, found in fronts.items():
        row = RowStart(np.array([*front, the, the, the]), np.int32(len(front)), np.int32(8), 16)
        assert bool(table.finds(table.begin(row))[the]) == found, front


def test_what_follows_a_stop_is_dropped_and_counted(pair):
    whole = pair.generate(TEXTS[:1], gamma=7)
    cut = pair.generate(TEXTS[:1], gamma=7, stop=[int(whole.tokens[0][1])])
    assert cut.tokens[0].tolist() == whole.tokens[0][:2].tolist()
    assert cut.stats.dropped > 0


@pytest.mark.parametrize(
    ("stop", "told"),
    [("und", "stop must be a list"), ([""], "stop has an empty string"), ([-1], "each of stop"),
     ([10**6], "outside the vocabulary"), ([None], "each of stop must be a whole number")],
)  # fmt: skip
def test_bad_stops(pair, stop, told):
    with pytest.raises(ValueError, match=told):
        pair.generate(TEXTS, stop=stop)


def test_a_string_that_no_pieces_make():
    with pytest.raises(ValueError, match="'ac', which the vocabulary cannot make: no piece of it"):
        open_stops(["ac"], TARGET)
    with pytest.raises(ValueError, match="this pair has no vocabulary; give token ids"):
        open_stops(["a"], dataclasses.replace(TARGET, vocabulary=None))
