"""What the text of an output must be: a match of a regular expression, or JSON of a schema.

outlines-core turns the expression into an automaton over bytes; here whole pieces of the vocabulary
go through it, so that it becomes one over tokens.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.pytrees import pytree
from specdec.rules.automata import eos_of
from specdec.rules.base import OpenRule, RowStart, RuleTarget, Words
from specdec.rules.edges import Edges, edges_of
from specdec.rules.texts import Fronts, bytewise
from specdec.types import AnyArray

MOST_EDGES = 2**24  # Of an automaton.
MOST_REPETITIONS = (
    10_000  # Of one {n}: outlines-core makes all of their states before it gives any.
)
_REPETITION = re.compile(r"(?<!\\)(?:\\\\)*\{([0-9]*),?([0-9]*)\}")
_LONGEST = 200  # Characters of an expression, and of what is said of it, in a message.
# What tokenizers that clean up a text take a space from: it never shows.
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
_BATCH = 64  # States from which pieces are spelt together.
_BYTES = np.arange(256)


@dataclasses.dataclass(frozen=True)
class Regex:
    r"""The output's text matches a regular expression as a whole, and then EOS.

    A token is forbidden where no further tokens can complete a match; the logits of all others stay
    as they are, so that each step's distribution is the target's own, renormalised over what is
    left. (That is not the target's distribution of whole texts given that they match.) Where a text
    has several tokenizations, all of them are allowed.

    The text is what the output's text shows, without a prefix or a prompt: behind these, a word's
    first piece has its space in front, so an expression for a decoder-only model often begins with
    `` ?``. A token that shows no text is forbidden. At the limit of tokens the text ends as it is.

    The syntax is that of Rust's ``regex``: no look-around and no back-references; ``\d`` and ``\w``
    are Unicode's, so that ``\w{3,12}`` is large: nested repetitions of it may take minutes and
    gigabytes to open. Only the number of a single one is bounded, by 10,000. A ``^`` in front and a
    ``$`` at the end change nothing. Needs outlines-core.

    Attributes:
      pattern: the expression.

    Raises:
      ValueError: it is empty or no string; opened, one that outlines-core refuses, one that the
        vocabulary's pieces cannot match, a pair without vocabulary, a model without EOS, or
        outlines-core is not installed.
    """

    pattern: str

    def __post_init__(self):
        if not isinstance(self.pattern, str) or not self.pattern:
            raise ValueError(
                f"Regex needs a regular expression that is not empty, got {self.pattern!r}."
            )

    def __repr__(self) -> str:
        return f"Regex({self.pattern!r})"

    def open(self, target: RuleTarget) -> OpenRule:
        return _open(self, self.pattern, target)


@dataclasses.dataclass(frozen=True)
class JsonSchema:
    """The output's text is JSON of a schema, and then EOS.

    See :class:`Regex`, which the schema becomes: properties come in the schema's order, with at
    most one space between two parts.

    Attributes:
      schema: a dict, or JSON in a string, which it is kept as.

    Raises:
      ValueError: it is not JSON, or nested too deep; opened, a schema that outlines-core refuses,
        which takes some hundred levels, and what :class:`Regex` says.
    """

    schema: dict[str, Any] | str

    def __post_init__(self):
        try:
            known = json.loads(self.schema) if isinstance(self.schema, str) else self.schema
            kept = json.dumps(known, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"JsonSchema's schema is not JSON: {_cut(str(error))}.") from None
        except RecursionError:
            raise ValueError("JsonSchema's schema is nested too deep.") from None
        if not isinstance(known, dict):
            raise ValueError(f"JsonSchema needs a JSON object, got {_cut(kept)}.")
        object.__setattr__(self, "schema", kept)

    def __repr__(self) -> str:
        return f"JsonSchema({self.schema!r})"

    def open(self, target: RuleTarget) -> OpenRule:
        build = _library("outlines_core.json_schema").build_regex_from_schema
        return _open(self, _asked(self, build, self.schema), target)


@pytree
class Grammar:
    """An automaton over tokens, an :class:`~specdec.rules.base.OpenRule`.

    Attributes:
      edges: the automaton.
      fronts: which rows have text in front.
      first: in which state a row begins: without text in front of it, and with.
    """

    edges: Edges
    fronts: Fronts
    first: Int[AnyArray, " 2"]

    def init(self, row: RowStart) -> Int[Array, ""]:
        return jnp.asarray(self.first)[self.fronts.is_text(row).astype(jnp.int32)]

    def allow(self, state: Int[Array, ""], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        return self.edges.allow(state, logits)

    def advance(self, state: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        return self.edges.advance(state, token)


@dataclasses.dataclass(frozen=True)
class _Bytes:
    """An automaton over bytes.

    Attributes:
      states: S; they are 0, 1, 2, ...
      begin: the first one.
      accepting: [S].
      step: (states, bytes) -> the states behind them, -1 where no text goes on so.
    """

    states: int
    begin: int
    accepting: np.ndarray
    step: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Spelt:
    """Tokens with text, sorted by it.

    Attributes:
      tokens: [N] their ids.
      text: [N, L] the bytes of each, and zeros behind them.
      lengths: [N] how many bytes it has.
      first: [257] of each byte, the first token that begins with it or one above.
    """

    tokens: np.ndarray
    text: np.ndarray
    lengths: np.ndarray
    first: np.ndarray


def _open(rule: Regex | JsonSchema, pattern: str, target: RuleTarget) -> Grammar:
    name, words = type(rule).__name__, target.vocabulary
    eos = np.array(eos_of(name, target))
    if words is None:
        raise ValueError(f"{name} is about text, but this pair has no vocabulary.")
    automaton = _automaton(rule, pattern, cleans_up=words.unsettled > 0)
    # An embedding may have more rows than there are pieces.
    pieces = words.pieces()[: target.vocab_size]
    inner = [b"" if token in eos else piece for token, piece in enumerate(pieces)]
    # Without text in front a first piece may show less, and one that shows nothing be before it.
    fresh, spaced, end, states = range(automaton.states, automaton.states + 4)
    shown, before = _shown_first(words, inner)
    begun = _walked(automaton, np.array([automaton.begin]), _spelt(shown))
    known = [(np.full_like(begun[0], state), *begun[1:]) for state in (fresh, spaced)]
    known += [
        (np.array([fresh]), np.array([token]), np.array([spaced if strips else automaton.begin]))
        for token, strips in before.items()
    ]
    known += _reached(rule, automaton, _spelt(inner), begun[2])
    accepting = np.zeros(states, bool)
    accepting[: automaton.states] = automaton.accepting
    accepting[[fresh, spaced]] = automaton.accepting[automaton.begin]
    ends = np.flatnonzero(accepting)
    known.append(
        (np.repeat(ends, len(eos)), np.tile(eos, len(ends)), np.full(ends.size * len(eos), end))
    )
    sources, tokens, targets = map(np.concatenate, zip(*known, strict=True))
    live = _live(sources, targets, end, states)
    if not live[automaton.begin if target.continues else fresh]:
        raise ValueError(
            f"{_named(rule)} leaves no token: no pieces of the vocabulary make a match."
        )
    # A state that is not live is one without edges, as the last one is.
    numbers = np.where(live, np.cumsum(live) - 1, np.sum(live) - 1)
    kept = live[sources] & live[targets]
    edges = edges_of(
        numbers[sources[kept]], tokens[kept], numbers[targets[kept]], int(live.sum()),
        target.vocab_size,
    )  # fmt: skip
    first = jnp.asarray(numbers[[fresh, automaton.begin]], jnp.int32)
    return Grammar(_sized(edges), Fronts.of(pieces, target), first)


def _automaton(rule: Regex | JsonSchema, pattern: str, cleans_up: bool) -> _Bytes:
    """The automaton over bytes of what is matched, without what no text shows."""
    library = _library("outlines_core")
    bounds = [bound for pair in _REPETITION.findall(pattern) for bound in pair]
    if any(int(bound[:9] or 0) > MOST_REPETITIONS for bound in bounds):
        raise ValueError(
            f"{_named(rule)} repeats something more than {MOST_REPETITIONS} times: use * or + "
            "instead of such a number."
        )
    alphabet = library.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    ends = len(pattern) - len(pattern[:-1].rstrip("\\"))
    if pattern.endswith("$") and ends % 2:
        pattern = pattern[:-1]
    pattern = pattern.removeprefix("^")
    _asked(rule, library.Index, pattern, alphabet)  # By itself: it may close groups of others.
    # Alone, an expression ends at its first alternative that matches. The byte in front is there
    # for expressions that match no text at all, whose first state the library would not find.
    index = _asked(rule, library.Index, rf"\x00(?:{pattern})\z", alphabet)
    edges = index.get_transitions()
    numbers = {state: i for i, state in enumerate(edges)}
    steps = np.full((len(edges), 257), -1)
    for state, following in edges.items():
        steps[numbers[state], list(following)] = [numbers[to] for to in following.values()]
    accepting = np.zeros(len(edges), bool)
    accepting[[numbers[state] for state in index.get_final_states()]] = True
    cleaned = bytewise([each.encode() for each in CLEANED] if cleans_up else [])
    pairs = len(cleaned)

    def step(states: np.ndarray, letters: np.ndarray) -> np.ndarray:
        behind, seen = steps[states // pairs, letters], cleaned[states % pairs, letters]
        return np.where((behind < 0) | (seen == pairs - 1), -1, behind * pairs + seen)

    begin = steps[numbers[index.get_initial_state()], 0] * pairs
    return _Bytes(len(edges) * pairs, int(begin), np.repeat(accepting, pairs), step)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(
            "Regex and JsonSchema need outlines-core, which is not installed: "
            'pip install "specdec[grammars]".'
        ) from None


def _asked(rule: Regex | JsonSchema, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except ValueError as error:
        told = _cut(" ".join(str(error).split()))
        raise ValueError(f"{_named(rule)} is refused by outlines-core: {told}") from None
    except TypeError:  # It is JSON, as this library reads it.
        raise ValueError(
            f"{_named(rule)} is refused by outlines-core, which takes JSON of at most 127 levels "
            "and numbers of 64 bits."
        ) from None


def _named(rule: Regex | JsonSchema) -> str:
    return _cut(repr(rule))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _shown_first(words: Words, pieces: Sequence[bytes]) -> tuple[list[bytes], dict[int, bool]]:
    """What each token shows as the first one of a text.

    Returns:
      The texts; and of those that then show nothing, whether what follows is still shown as a first
      one is.
    """
    texts = [words.decode([token]) if piece else "" for token, piece in enumerate(pieces)]
    shown = [
        piece if "\ufffd" in text else text.encode("utf-8")
        for text, piece in zip(texts, pieces, strict=True)
    ]
    both = enumerate(zip(shown, pieces, strict=True))
    less = next((i for i, (text, piece) in both if text and piece == b" " + text), None)
    before = {
        token: less is not None and words.decode([token, less]) == texts[less]
        for token, text in enumerate(shown)
        if pieces[token] and not text
    }
    return shown, before


def _spelt(pieces: Sequence[bytes]) -> _Spelt:
    tokens = sorted((i for i, piece in enumerate(pieces) if piece), key=pieces.__getitem__)
    lengths = np.array([len(pieces[token]) for token in tokens], np.int64)
    text = np.zeros((len(tokens), int(lengths.max(initial=1))), np.uint8)
    text[np.arange(text.shape[1]) < lengths[:, None]] = np.frombuffer(
        b"".join(pieces[token] for token in tokens), np.uint8
    )
    first = np.searchsorted(text[:, 0], np.arange(257))
    return _Spelt(np.array(tokens, np.int64), text, lengths, first)


Triples = tuple[np.ndarray, np.ndarray, np.ndarray]  # Sources, tokens and targets of edges.


def _walked(automaton: _Bytes, sources: np.ndarray, spelt: _Spelt) -> Triples:
    """The edges from some states, with whole pieces."""
    behind = automaton.step(sources[:, None], _BYTES)
    rows, letters = np.nonzero(behind >= 0)
    # All tokens that begin with a byte that may follow.
    first, counts = spelt.first[letters], np.diff(spelt.first)[letters]
    places = np.repeat(np.arange(len(rows)), counts)
    index = np.arange(len(places)) + (first - (np.cumsum(counts) - counts))[places]
    origin, state = sources[rows][places], behind[rows, letters][places]
    found = []
    for column in range(1, spelt.text.shape[1] + 1):
        whole = spelt.lengths[index] == column
        found.append((origin[whole], spelt.tokens[index[whole]], state[whole]))
        index, origin, state = index[~whole], origin[~whole], state[~whole]
        if not len(index):
            break
        state = automaton.step(state, spelt.text[index, column])
        index, origin, state = (each[state >= 0] for each in (index, origin, state))
    origins, tokens, targets = map(np.concatenate, zip(*found, strict=True))
    return origins, tokens, targets


def _reached(
    rule: Regex | JsonSchema, automaton: _Bytes, spelt: _Spelt, begun: np.ndarray
) -> list[Triples]:
    """All edges from the first state, from ``begun``, and from what these lead to."""
    seen, found, size = np.zeros(automaton.states, bool), [], 0
    queue = np.unique(np.append(begun, automaton.begin))
    seen[queue] = True
    while len(queue):
        batch, queue = queue[:_BATCH], queue[_BATCH:]
        found.append(_walked(automaton, batch, spelt))
        targets = np.unique(found[-1][2])
        queue = np.append(queue, targets[~seen[targets]])
        seen[targets] = True
        size += len(found[-1][1])
        if size > MOST_EDGES:
            raise ValueError(
                f"{_named(rule)} has more than {MOST_EDGES} edges with this vocabulary: bounded "
                "repetitions of many characters take that many; use * or + instead."
            )
    return found


def _sized(edges: Edges) -> Edges:
    """The same automaton in arrays of few sizes, so that expressions share their programs."""

    def size(count: int, least: int) -> int:
        return max(least, 1 << max(count - 1, 0).bit_length())

    def sized(array: AnyArray, least: int, fill: int) -> Array:
        more = size(len(array), least) - len(array)
        return jnp.asarray(
            np.pad(array, [(0, more), *[(0, 0)] * (array.ndim - 1)], constant_values=fill)
        )

    last = int(edges.first[-1])
    return Edges(
        sized(edges.first, 512, last), sized(edges.tokens, 2**16, 0),
        sized(edges.targets, 2**16, 0), sized(edges.wide, 511, -1), sized(edges.bits, 16, 0),
        narrow=size(edges.narrow, 128), most=edges.vocab_size, vocab_size=edges.vocab_size,
    )  # fmt: skip


def _live(sources: np.ndarray, targets: np.ndarray, end: int, states: int) -> np.ndarray:
    """[S] the states from which the last one is reached."""
    pairs = np.unique(sources * states + targets)
    sources, targets = pairs // states, pairs % states
    live = np.zeros(states, bool)
    live[end] = True
    while not live[sources[live[targets]]].all():
        live[sources[live[targets]]] = True
    return live
