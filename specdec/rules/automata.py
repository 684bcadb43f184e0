"""Rules that allow only given sequences, or only what a finite automaton accepts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from specdec.core.arguments import whole
from specdec.rules.base import OpenRule, RuleTarget, sequences_of
from specdec.rules.edges import edges_of, trie

MOST_STATES = 2**24  # An automaton has arrays for all of them up to the last one.


@dataclasses.dataclass(frozen=True)
class AllowedSequences:
    """The output is one of these sequences, and ends with EOS.

    A trie of their tokens, in arrays: closed vocabularies, names of entities, labels. A sequence
    may be the beginning of another one.

    Source: De Cao et al. 2021, "Autoregressive Entity Retrieval", section 3.2.

    Attributes:
      sequences: strings, or token ids without EOS.

    Raises:
      ValueError: there are none, or an empty one; opened, a token outside the vocabulary, a string
        without a vocabulary, or a model without EOS.
    """

    sequences: Sequence[str | Sequence[int]]

    def __post_init__(self):
        kept = sequences_of("AllowedSequences", self.sequences)
        object.__setattr__(self, "sequences", kept)

    def __repr__(self) -> str:
        return f"AllowedSequences({len(self.sequences)} of them)"

    def open(self, target: RuleTarget) -> OpenRule:
        ids = token_ids("AllowedSequences", self.sequences, target)
        eos = eos_of("AllowedSequences", target)
        endings = [(*each, end) for each in ids for end in eos]
        return edges_of(*trie(endings), target.vocab_size)


@dataclasses.dataclass(frozen=True)
class Automaton:
    """The output before EOS is accepted by a deterministic finite automaton over tokens.

    Attributes:
      edges: state -> {token: state}, states being 0, 1, 2, ...; a row begins in state 0.
      accepting: the states in which EOS may follow.

    Raises:
      ValueError: no edges, or numbers that are no states; opened, a token outside the vocabulary,
        EOS among the tokens, or a model without EOS.
    """

    edges: Mapping[int, Mapping[int, int]]
    accepting: Iterable[int]

    def __post_init__(self):
        if not isinstance(self.edges, Mapping) or not all(
            isinstance(each, Mapping) for each in self.edges.values()
        ):
            raise ValueError(
                f"Automaton.edges must be {{state: {{token: state}}}}, got {self.edges!r}."
            )
        edges = {
            whole("a state of Automaton.edges", state, 0, MOST_STATES): {
                whole("a token of Automaton.edges", token, 0): whole(
                    "a state of Automaton.edges", to, 0, MOST_STATES
                )
                for token, to in following.items()
            }
            for state, following in self.edges.items()
        }
        if not any(edges.values()):
            raise ValueError("Automaton needs edges: {state: {token: state}}.")
        if isinstance(self.accepting, str) or not isinstance(self.accepting, Iterable):
            raise ValueError(
                f"Automaton.accepting must be a list of states, got {self.accepting!r}."
            )
        accepting = frozenset(
            whole("each of Automaton.accepting", each, 0, MOST_STATES) for each in self.accepting
        )
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "accepting", accepting)

    def __hash__(self) -> int:
        return hash((json.dumps(sorted(self.edges)), frozenset(self.accepting)))

    def __repr__(self) -> str:
        return f"Automaton({len(self.edges)} states with edges)"

    def open(self, target: RuleTarget) -> OpenRule:
        eos = eos_of("Automaton", target)
        rows = [
            (state, target.token("Automaton", token), to)
            for state, following in self.edges.items()
            for token, to in following.items()
        ]
        both = {token for _, token, _ in rows} & set(eos)
        if both:
            raise ValueError(
                f"Automaton has token {min(both)}, which ends an output: give the states in which "
                "EOS may follow as accepting, without edges for it."
            )
        last = max(max(state, to) for state, _, to in rows)
        last = max(last, *self.accepting, 0) + 1  # A state of its own, behind EOS.
        rows += [(state, end, last) for state in self.accepting for end in eos]
        sources, tokens, targets = np.array(rows).T
        return edges_of(sources, tokens, targets, last + 1, target.vocab_size)


def eos_of(name: str, target: RuleTarget) -> tuple[int, ...]:
    """The tokens that end a row; ValueError, naming the rule, where there are none."""
    if not target.eos_ids:
        raise ValueError(f"{name} needs a model with EOS: this one's outputs end at their limit.")
    return target.eos_ids


def token_ids(
    name: str, sequences: Iterable[str | Sequence[int]], target: RuleTarget
) -> list[tuple[int, ...]]:
    """Token ids of strings, and of token ids, checked.

    Raises:
      ValueError: naming the rule: a token outside the vocabulary, or a string without one.
    """
    found = []
    for each in sequences:
        if isinstance(each, str):
            if target.vocabulary is None:
                raise ValueError(
                    f"{name} has a string, but this pair has no vocabulary; give token ids."
                )
            found.append(tuple(target.vocabulary.encode(each)))
        else:
            found.append(tuple(target.token(name, token) for token in each))
    return found
