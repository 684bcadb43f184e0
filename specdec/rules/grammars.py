"""Rules for the whole text of an output: a regular expression, or JSON of a schema.

outlines-core turns the expression into an automaton over bytes; here whole pieces of the vocabulary
go through it, so that it becomes one over tokens.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.rules.automata import eos_of
from specdec.rules.base import OpenRule, RowStart, RuleTarget, cut
from specdec.rules.edges import Edges, edges_of
from specdec.rules.expressions import ByteAutomaton, asked, automaton_of, library, named
from specdec.rules.fronts import Fronts, Left, fronts_of
from specdec.rules.spelling import Spelling, check_followed
from specdec.types import AnyArray

MOST_EDGES = 2**24  # Of an automaton.
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
    `` ?``. A token that shows no text is forbidden, and so is what the text would not show: bytes
    of no character, spaces that ``clean_up_tokenization_spaces`` takes away, and whitespace at the
    end where the decoder of texts strips it. At the limit of tokens the text ends as it is.

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
            raise ValueError(f"JsonSchema's schema is not JSON: {cut(str(error))}.") from None
        except RecursionError:
            raise ValueError("JsonSchema's schema is nested too deep.") from None
        if not isinstance(known, dict):
            raise ValueError(f"JsonSchema needs a JSON object, got {cut(kept)}.")
        object.__setattr__(self, "schema", kept)

    def __repr__(self) -> str:
        return f"JsonSchema({self.schema!r})"

    def open(self, target: RuleTarget) -> OpenRule:
        build = library("outlines_core.json_schema").build_regex_from_schema
        return _open(self, asked(self, build, self.schema), target)


@pytree
class Grammar:
    """An automaton over tokens, an :class:`~specdec.rules.base.OpenRule`.

    Attributes:
      edges: the automaton.
      fronts: in which state a row begins.
    """

    edges: Edges
    fronts: Fronts

    def init(self, row: RowStart) -> Int[Array, ""]:
        return self.fronts.start(row)

    def allow(self, state: Int[Array, ""], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        return self.edges.allow(state, logits)

    def advance(self, state: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        return self.edges.advance(state, token)


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
    spelling = words.spelling(target.vocab_size)
    runs = spelling.broken == "run"
    check_followed(name, words, spelling)
    automaton = automaton_of(rule, pattern, spelling.finish)
    inner = [b"" if token in eos else piece for token, piece in enumerate(spelling.pieces)]
    # Without text in front a first piece may show less, and one that shows nothing be before it.
    fresh, spaced, torn, end, states = range(automaton.states, automaton.states + 5)
    shown, before = _shown_first(spelling, inner)
    begun = _walked(automaton, np.array([automaton.begin]), _spelt(shown))
    known = [(np.full_like(begun[0], state), *begun[1:]) for state in (fresh, spaced)]
    known += [
        (np.array([fresh]), np.array([token]), np.array([spaced if strips else automaton.begin]))
        for token, strips in before.items()
    ]
    known += _reached(rule, automaton, _spelt(inner), begun[2])
    # Bytes that go on with a run of bytes that are no characters are none either.
    for sources, tokens, targets in known[:] if runs else []:
        apart = (sources == automaton.begin) & spelling.apart[tokens]
        known.append((np.full(apart.sum(), torn), tokens[apart], targets[apart]))
    accepting = np.zeros(states, bool)
    accepting[: automaton.states] = automaton.accepting
    accepting[[fresh, spaced, torn]] = automaton.accepting[automaton.begin]
    ends = np.flatnonzero(accepting)
    known.append(
        (np.repeat(ends, len(eos)), np.tile(eos, len(ends)), np.full(ends.size * len(eos), end))
    )
    sources, tokens, targets = map(np.concatenate, zip(*known, strict=True))
    live = _live(sources, targets, end, states)
    if not live[automaton.begin if target.continues else fresh]:
        raise ValueError(
            f"{named(rule)} leaves no token: no pieces of the vocabulary make a match."
        )
    # A state that is not live is one without edges, as the last one is.
    numbers = np.where(live, np.cumsum(live) - 1, np.sum(live) - 1)
    kept = live[sources] & live[targets]
    edges = edges_of(
        numbers[sources[kept]], tokens[kept], numbers[targets[kept]], int(live.sum()),
        target.vocab_size,
    )  # fmt: skip

    def start(left: Left) -> int:
        text, begun, torn = left
        return 0 if not text else 2 if runs and (begun or torn) else 1

    # Of one shape for all expressions: states are numbered once the starts in front are known.
    fronts = fronts_of(spelling, target, "", start, 0)
    first = numbers[[fresh, automaton.begin, torn]].astype(np.int32)
    return Grammar(_sized(edges), dataclasses.replace(fronts, starts=first[fronts.starts]))


def _shown_first(
    spelling: Spelling, pieces: Sequence[bytes]
) -> tuple[list[bytes], dict[int, bool]]:
    """Text that each token shows as the first one of an output.

    Returns:
      The texts; and of those that then show nothing, whether what follows is still shown as a first
      one is.
    """
    strips = spelling.finish.strips
    shown = [first if piece else b"" for first, piece in zip(spelling.first, pieces, strict=True)]
    if strips:
        shown = [_left_stripped(piece) for piece in shown]
    before = {
        token: strips or bool(spelling.silent[token])
        for token, text in enumerate(shown)
        if pieces[token] and not text
    }
    return shown, before


def _left_stripped(piece: bytes) -> bytes:
    try:
        return piece.decode("utf-8").lstrip().encode("utf-8")
    except UnicodeDecodeError:  # A part of a character.
        return piece.lstrip()


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


def _walked(automaton: ByteAutomaton, sources: np.ndarray, spelt: _Spelt) -> Triples:
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
    rule: Regex | JsonSchema, automaton: ByteAutomaton, spelt: _Spelt, begun: np.ndarray
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
                f"{named(rule)} has more than {MOST_EDGES} edges with this vocabulary: bounded "
                "repetitions of many characters take that many; use * or + instead."
            )
    return found


def _sized(edges: Edges) -> Edges:
    """This automaton in arrays of few sizes, so that expressions share their programs."""

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
