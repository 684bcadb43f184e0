"""Decodes block by block, as Figure 1 of Leviathan et al. 2023 shows them.

A line is one target run: guesses that it accepted, guesses that it rejected, and the token that it
added itself, a correction or, after all guesses were accepted, a bonus. In a tree an accepted guess
is followed by the others of its position, with | between them. A character that several tokens
spell is where the last of them is.

A line of speculative beams has what the hypotheses went on with, level by level: tokens that had
been guessed, and those of the target alone.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Literal

from specdec.core.progress import visible
from specdec.decoding.blocks import Block, SearchedBlock
from specdec.measure.kept_rows import Row
from specdec.text.base import Tokenizer
from specdec.text.streaming import Piece

Kind = Literal["accepted", "siblings", "rejected", "correction", "bonus", "note", "text"]

# Colour never stands alone: what is rejected or was not taken is struck out, the latter in brackets
# too, and what the target added is underlined.
_ANSI = {
    "accepted": "\033[32m{}\033[0m",
    "siblings": "[\033[2;9m{}\033[0m]",
    "rejected": "\033[31;9m{}\033[0m",
    "correction": "\033[94;4m{}\033[0m",
    "bonus": "\033[94;4m{}\033[0m",
    "note": "\033[2m{}\033[0m",
}
_PLAIN = {
    "siblings": "[-{}-]", "rejected": "[-{}-]", "correction": "{{+{}+}}", "bonus": "{{+{}+}}",
}  # fmt: skip
_PART = "\ufffd"  # Tokenizers give it for a part of a character, if anything.


@dataclasses.dataclass(frozen=True)
class Span:
    """A run of tokens of one kind."""

    kind: Kind  # Whether they were accepted, rejected or added; a note, or a legend's text.
    text: str  # Theirs, with the space before it where there is one.


def lines(row: Row, vocabulary: Tokenizer | None) -> list[list[Span]]:
    """The spans of each block."""
    if row.searched is not None:
        return [list(_levels(block, vocabulary)) for block in row.searched]
    return _block_lines(row.blocks, vocabulary)


def live(pieces: Iterable[Piece], vocabulary: Tokenizer | None) -> Iterator[str]:
    """HTML of a text that is being generated, after each piece of :meth:`specdec.Pair.stream`."""
    blocks: list[Block] = []
    for piece in pieces:
        tokens: list[int] = piece.tokens.tolist()
        own = tokens[piece.accepted] if piece.accepted < len(tokens) else None
        blocks.append(Block(tokens[: piece.accepted], [], own))
        spans = itertools.chain(*_block_lines(blocks, vocabulary, going_on=piece.ended is None))
        yield _LIVE.format(text="".join(map(_marked, spans)))


def _block_lines(
    blocks: Sequence[Block], vocabulary: Tokenizer | None, *, going_on: bool = False
) -> list[list[Span]]:
    """Args: going_on: whether more follows, so that the last character may be incomplete."""
    emitted: list[int] = []
    result = []
    kept = sum(len(b.accepted) + (b.correction is not None) for b in blocks)

    def keep(kind: Kind, tokens: list[int]) -> Span:
        ended = len(emitted) + len(tokens) == kept and not going_on
        span = Span(kind, _text(vocabulary, emitted, tokens, ended=ended))
        emitted.extend(tokens)
        return span

    for block in blocks:
        spans, siblings = [], block.siblings
        # Guesses between which nothing stands are one text: a token may be a part of a character.
        run: list[int] = []
        for index, guess in enumerate(block.accepted):
            run.append(guess)
            others = siblings[index] if siblings is not None else []
            if others or index + 1 == len(block.accepted):
                before = [*emitted, *run[:-1]]
                spans.append(keep("accepted", run))
                if others:
                    spans.append(Span("siblings", _alternatives(vocabulary, before, others)))
                run = []
        if block.rejected:
            show = _guessed if siblings is None else _alternatives
            spans.append(Span("rejected", show(vocabulary, emitted, block.rejected)))
        if block.correction is not None:
            kind = "correction" if block.rejected else "bonus"
            spans.append(keep(kind, [block.correction]))
        result.append([span for span in spans if span.text])
    return result


_ENDS = {"miss": "missed", "done": "done", "limit": "length limit", "depth": "all guessed"}


def _levels(block: SearchedBlock, vocabulary: Tokenizer | None) -> Iterator[Span]:
    """Survivors of a search's levels, with / between them, and why it ended."""
    for number, tokens in enumerate(block.survivors, start=1):
        last = number == len(block.survivors)
        # After the last guesses the target continues alone.
        own = set(tokens) if last and block.end == "depth" else set(block.lost) if last else set()
        guessed = [token for token in tokens if token not in own]
        if guessed:
            yield Span("accepted", _alternatives(vocabulary, [], guessed))
        if own:
            kind = "bonus" if block.end == "depth" else "correction"
            others = [token for token in tokens if token in own]
            yield Span(kind, _alternatives(vocabulary, [], others))
        yield Span("note", f" ({_ENDS[block.end]})" if last else " /")


def _alternatives(
    vocabulary: Tokenizer | None, before: Sequence[int], tokens: Sequence[int]
) -> str:
    """Tokens of one position, such as " Die|Der"."""
    return " " + "|".join(_guessed(vocabulary, before, [token]).lstrip(" ") for token in tokens)


def _guessed(vocabulary: Tokenizer | None, before: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of tokens that nothing follows; parts of a character alone as ids, such as <195>."""
    return _text(vocabulary, before, tokens) or "".join(f"<{token}>" for token in tokens)


def _text(
    vocabulary: Tokenizer | None, before: Sequence[int], tokens: Sequence[int], *,
    ended: bool = False,
) -> str:  # fmt: skip
    return visible(_added_text(vocabulary, before, tokens, ended))


def _added_text(
    vocabulary: Tokenizer | None, before: Sequence[int], tokens: Sequence[int], ended: bool
) -> str:
    """Text that ``tokens`` add to that of ``before``; EOS, which has no text, as ``</s>``.

    A character that is not complete yet is left for what follows, unless the text has ``ended``.
    """
    if vocabulary is None:
        return "".join(f" {token}" for token in tokens)
    if vocabulary.eos_id in tokens:
        at = list(tokens).index(vocabulary.eos_id)
        after = _added_text(vocabulary, [], tokens[at + 1 :], ended) if tokens[at + 1 :] else ""
        head = _added_text(vocabulary, before, tokens[:at], True)
        return f"{head} </s>{after and ' ' + after}"
    prefix = vocabulary.decode(before).rstrip(_PART)
    whole = vocabulary.decode([*before, *tokens])
    whole = whole if ended else whole.rstrip(_PART)
    return whole[len(prefix) :] if whole.startswith(prefix) else vocabulary.decode(tokens)


def _counts(row: Row) -> str:
    runs = f"{row.target_calls} target run{'' if row.target_calls == 1 else 's'}"
    return f"{row.num_tokens} token{'' if row.num_tokens == 1 else 's'} in {runs}"


def _legend(rows: Sequence[Row]) -> Iterator[list[Span]]:
    """Lines that explain the marks of these rows."""
    if all(row.beams is None for row in rows):
        yield [
            Span("text", "Guesses "), Span("accepted", "accepted"), Span("rejected", " rejected"),
            Span("text", ", the"), Span("bonus", " target's"), Span("text", " own token:"),
        ]  # fmt: skip
    else:
        yield [Span("text", "Hypotheses, with their scores:")]
    if any(block.siblings is not None for row in rows for block in row.blocks):
        others = Span("siblings", " the others|of its position")
        yield [Span("text", "After an accepted guess"), others, Span("text", ".")]
    if any(row.searched is not None for row in rows):
        yield [
            Span("text", "Above them, what they went on with in each target call:"),
            Span("accepted", " guessed"), Span("text", ","), Span("correction", " the target's"),
            Span("text", ";"),
        ]  # fmt: skip
        yield [Span("text", "| between hypotheses, / between levels.")]


def wants_colour(stream: IO[str]) -> bool:
    """Whether to colour: a terminal, or the environment's FORCE_COLOR."""
    return stream.isatty() or bool(os.environ.get("FORCE_COLOR"))


def terminal(rows: Sequence[Row], vocabulary: Tokenizer | None, *, colour: bool) -> str:
    """Traces as text, with ANSI colours or with plain marks."""
    style = _ANSI if colour else _PLAIN

    def marked(spans: Sequence[Span]) -> str:
        return "".join(_indented(span, style.get(span.kind, "{}")) for span in spans)

    out = [*map(marked, _legend(rows))]
    for row in rows:
        out += ["", visible(row.input), f"  ({_counts(row)})"]
        for number, spans in enumerate(lines(row, vocabulary), start=1):
            out.append(f"{number:5} {marked(spans)}")
        out += [f"{score:9.3f}  {visible(text)}" for score, text in _hypotheses(row)]
    return "\n".join(out)


def _indented(span: Span, form: str) -> str:
    """The span's text in a form, without the space before it."""
    text = span.text.lstrip(" ")
    return span.text[: len(span.text) - len(text)] + form.format(text)


def _hypotheses(row: Row) -> Iterator[tuple[float, str]]:
    """Scores and texts, or tokens without a vocabulary, of beams."""
    for each in row.beams or ():
        text = " ".join(map(str, each["tokens"])) if each["text"] is None else each["text"]
        yield each["score"], text


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1b1b1b; --page: #fdfdfc; --quiet: #6a6a6a;
  --rule: #dddddd; --green: #17702c; --red: #b3261e; --blue: #1a4fc4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #e6e6e6; --page: #16181b; --quiet: #9a9a9a; --rule: #34373c;
    --green: #6fd08c; --red: #ff8f87; --blue: #8db4ff; }} }}
body {{ font: 16px/1.6 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }}
section {{ border-top: 1px solid var(--rule); margin-top: 1.5rem; padding-top: 1rem; }}
.counts, .note, li::marker {{ color: var(--quiet); font-size: .85rem; }}
ol {{ padding-left: 2.5rem; font-family: ui-monospace, monospace; font-size: .9rem; }}
li span {{ white-space: pre-wrap; }}
table {{ font-size: .9rem; }} td {{ padding-right: 1rem; vertical-align: top; }}
.accepted {{ color: var(--green); }}
.rejected {{ color: var(--red); text-decoration: line-through; }}
.siblings {{ color: var(--quiet); text-decoration: line-through; }}
.correction, .bonus {{ color: var(--blue); text-decoration: underline; }}
</style>
<h1>{title}</h1>
<p>{legend}</p>
{body}
</html>
"""
# In a notebook, whose own style has either light or dark ground.
_LIVE = """<style>
.specdec .accepted {{ color: #2e9e4f; }}
.specdec .bonus {{ color: #4a86e8; text-decoration: underline; }}
</style>
<p class="specdec" style="white-space: pre-wrap">{text}</p>"""


def page(rows: Sequence[Row], vocabulary: Tokenizer | None, title: str) -> str:
    """Traces as a self-contained HTML page."""
    body = "\n".join(line for row in rows for line in _section(row, vocabulary))
    legend = "<br>\n".join("".join(map(_marked, spans)) for spans in _legend(rows))
    return _PAGE.format(title=html.escape(title), body=body, legend=legend)


def _section(row: Row, vocabulary: Tokenizer | None) -> Iterator[str]:
    yield f"<section>\n<p>{_escaped(row.input)}</p>"
    if row.output is not None:
        yield f"<p><strong>{_escaped(row.output)}</strong></p>"
    yield f'<p class="counts">{_counts(row)}</p>\n<ol>'
    for spans in lines(row, vocabulary):
        yield f"<li>{''.join(map(_marked, spans))}</li>"
    yield "</ol>"
    if row.beams is not None:
        cells = (f"<td>{score:.3f}</td><td>{_escaped(text)}</td>"
                 for score, text in _hypotheses(row))  # fmt: skip
        yield f"<table>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>"
    yield "</section>"


def _escaped(text: str) -> str:
    return html.escape(visible(text, "\n\t"))


def _marked(span: Span) -> str:
    text = html.escape(span.text)
    if span.kind == "text":
        return text
    if span.kind != "siblings":
        return f'<span class="{span.kind}">{text}</span>'
    about = "other guesses for the position of the one before"
    return f' <span class="siblings" title="{about}">[{text.lstrip(" ")}]</span>'
