"""Outputs that match a regular expression, or a schema, in every tokenization and in no other."""

import dataclasses
import itertools
import json
import random
import re
import sys

import numpy as np
import pytest

import specdec
from specdec.rules import grammars
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.spelling import Finish, Spelling
from specdec.text.base import CLEAN_UP

TEXTS = ["Where is the station?", "I am tired.", "The house is old, and the garden is large."]
WARM = specdec.SamplingConfig(1.0)
EOS = (1, 11)
SMALL = [
    b"", b"", b"a", b"ab", b"b", b"\xc3", b"\xa4", "ä".encode(), b" a", b" ", b"", b"b", b".",
    b"aba", b"", b"",
]  # fmt: skip


class Small:
    """A vocabulary with parts of a character, and tokens without text.

    Args:
      strips: of a first token its space, of first tokens theirs until there is text, or nothing.
    """

    def __init__(self, strips):
        self.strips = strips
        self.finish = Finish(replaces=CLEAN_UP if strips == "cleans up" else ())

    def spelling(self, size):
        found = Spelling.of_bytes(SMALL, finish=self.finish)
        if self.strips in ("one token", "until text"):
            first = [piece.removeprefix(b" ") for piece in SMALL]
            silent = np.array([not p for p in (first if self.strips == "until text" else SMALL)])
            found = dataclasses.replace(found, first=first, silent=silent)
        return found

    def decode(self, ids):
        text = b""
        for i, token in enumerate(ids):
            before = any(SMALL[each] for each in ids[:i])
            at_begin = not before if self.strips == "one token" else not text
            takes = at_begin and self.strips in ("one token", "until text")
            text += SMALL[token].removeprefix(b" ") if takes else SMALL[token]
        return self.finish(text.decode("utf-8", "replace"))


def nested(count):
    """A schema of objects in objects."""
    schema = {"type": "string"}
    for _ in range(count):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def row(*prefix):
    return RowStart(np.array([*prefix, 0, 0]), np.int32(len(prefix)), np.int32(8), 8)


def matches_of(pattern, words, before):
    """All tokenizations of the texts of up to four characters that match.

    Each token adds to the text, but for a first space.
    """
    letters = ("".join(each) for n in range(5) for each in itertools.product("abä .", repeat=n))
    texts = [text for text in letters if re.fullmatch(pattern, text)]
    spelt = {f"{spaces}{text}".encode() for text in texts for spaces in ("", " ", "  ")}
    begun = {each[:length] for each in spelt for length in range(len(each) + 1)}
    known = [token for token, piece in enumerate(SMALL) if piece and token not in EOS]
    prefix, found, outputs = words.decode(before), set(), [()]
    while outputs:
        ids = outputs.pop()
        shown = words.decode([*before, *ids])
        raw = b"".join(SMALL[token] for token in [*before, *ids])
        adds = len(ids) < 2 or words.decode([*before, *ids[:2]])
        unchanged = not words.finish.replaces or shown.encode() == raw
        if adds and unchanged and shown[len(prefix) :] in texts:
            found.add(ids)
        longer = [(*ids, token) for token in known]
        outputs += [each for each in longer if b"".join(SMALL[i] for i in each) in begun]
    return found


def following(rule, state):
    """The tokens that may follow a state, and where they lead."""
    edges = slice(*np.asarray(rule.edges.first)[[state, state + 1]])
    pairs = (np.asarray(each)[edges].tolist() for each in (rule.edges.tokens, rule.edges.targets))
    return dict(zip(*pairs, strict=True))


@pytest.mark.parametrize("strips", ["nothing", "one token", "until text", "cleans up"])
@pytest.mark.parametrize("before", [(), (4,)])
@pytest.mark.parametrize("pattern", ["a|ab|aba", " ?a? ?b?$", "^a ?[.]?$", "(ä|b)?.b"])
def test_every_tokenization_of_a_match_and_nothing_else(pattern, before, strips):
    words = Small(strips)
    rule = specdec.Regex(pattern).open(RuleTarget(16, EOS, False, 8, words))
    matches = matches_of(pattern, words, before)
    assert len(matches) > 1
    begun = {ids[:length] for ids in matches for length in range(len(ids) + 1)}
    walked, outputs = set(), {(): int(rule.init(row(0, *before)))}
    while outputs:
        output, state = outputs.popitem()
        walked.add(output)
        found = following(rule, state)
        assert found.keys() >= set(EOS) if output in matches else not found.keys() & set(EOS)
        outputs |= {(*output, token): to for token, to in found.items() if token not in EOS}
    assert walked == begun


def test_a_text_before_the_output_is_told_from_a_start():
    rule = specdec.Regex("a").open(RuleTarget(16, EOS, False, 8, Small("one token")))
    first = [int(rule.init(row(*prefix))) for prefix in [(0,), (2,), (0, 10), (0, 2), (0, 7, 2)]]
    assert first[0] == first[1] == first[2] != first[3] == first[4]
    prompted = specdec.Regex("a").open(RuleTarget(16, EOS, True, 8, Small("one token")))
    first = [int(prompted.init(row(*prefix))) for prefix in [(0,), (2,), (10, 2)]]
    assert first[0] != first[1] == first[2]


def test_what_is_cleaned_up_never_shows():
    cleaned_up = Finish(replaces=CLEAN_UP)
    replaced = [old for old, _ in CLEAN_UP]
    for text in replaced:
        assert cleaned_up(f"a{text}a") != f"a{text}a"
    generator = random.Random(0)
    for _ in range(20000):
        text = "".join(generator.choices(" '.,?!antmsver", k=8))
        assert (cleaned_up(text) != text) == any(each in text for each in replaced)


@pytest.fixture(scope="module")
def pair():
    return specdec.load_pair("quickstart")


COUNTED = r"(Tom|Maria|Jürgen) hat \d{1,3} (Äpfel|Bücher|€)\."


SCHEMA = {
    "type": "object",
    "properties": {
        "größe": {"enum": ["klein", "groß"]},
        "count": {"type": "integer"},
        "name": {"type": "string"},
    },
    "required": ["größe", "count", "name"],
}


def valid(text):
    """JSON of the schema, with at most a space between two parts."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or list(found) != ["größe", "count", "name"]:
        return False
    return (
        found["größe"] in ("klein", "groß") and type(found["count"]) is int
        and isinstance(found["name"], str)
    )  # fmt: skip


SHORT = {
    **SCHEMA["properties"],
    "count": {"enum": [1, 2, 33]},
    "name": {"type": "string", "maxLength": 12},
}
WORDS = specdec.Regex(r"[A-ZÄÖÜ][a-zäöüß]{3,12}( [A-Za-zäöüß]+){2,6}\.")
KINDS = [
    (specdec.Regex(COUNTED), lambda text: re.fullmatch(COUNTED, text)),
    (
        specdec.JsonSchema({**SCHEMA, "properties": SHORT}),
        lambda text: valid(text) and len(json.loads(text)["name"]) <= 12,
    ),
]


@pytest.mark.parametrize("options", [{"gamma": 3}, {"tree": (2, 1), "sampling": WARM, "seed": 2}])
def test_outputs_match(pair, options):
    """All kinds share one program."""
    for rule, matches in KINDS:
        out = pair.generate(TEXTS, rules=(rule,), max_decode_len=64, **options)
        assert out.ended == ["eos"] * 3
        assert all(map(matches, out.texts)), out.texts
        assert out.stats.accepted > 0


def test_drafts_change_no_greedy_output(pair):
    options = {"rules": (WORDS,), "max_decode_len": 64}
    plain = pair.generate(TEXTS, method="autoregressive", **options)
    assert all(re.fullmatch(WORDS.pattern, text) for text in plain.texts)
    assert pair.generate(TEXTS, gamma=3, **options).texts == plain.texts


def test_a_decoder_only_model():
    pair = specdec.load_pair("quickstart_lm")
    rule = specdec.Regex(r" ?[a-z]{1,12}( [a-z]{1,12}){2,5} ?\.")
    prompts = ["Once upon a time", "The old man", "She said"]
    for seed in range(3):
        out = pair.generate(
            prompts, rules=(rule,), gamma=3, sampling=WARM, seed=seed, max_decode_len=48
        )
        assert out.ended == ["eos"] * 3
        assert all(re.fullmatch(rule.pattern, text) for text in out.texts), out.texts


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: specdec.Regex(""), "needs a regular expression that is not empty"),
        (lambda: specdec.JsonSchema("{"), "schema is not JSON: "),
        (lambda: specdec.JsonSchema("[]"), r"needs a JSON object, got \[\]"),
        (lambda: specdec.JsonSchema("[" * 100_000), "JsonSchema's schema is nested too deep"),
        (lambda: specdec.JsonSchema(nested(5000)), "JsonSchema's schema is nested too deep"),
        (lambda: specdec.JsonSchema("{1" + "0" * 9000), "schema is not JSON: "),
    ],
)
def test_what_cannot_be(make, told):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (specdec.Regex("["), r"Regex\('\['\) is refused by outlines-core: .+"),
        (specdec.Regex("(?=a)b"), "is refused by outlines-core"),
        (specdec.JsonSchema({"type": "x"}), "is refused by outlines-core: Unsupported type: x"),
        (specdec.Regex("ac"), r"Regex\('ac'\) leaves no token: no pieces"),
        (specdec.JsonSchema(nested(300)), "JsonSchema.* JSON of at most 127 levels"),
        (specdec.JsonSchema({"const": "\ud800"}), "JsonSchema.* is refused by outlines-core: 'utf"),
        (specdec.JsonSchema({"x" * 5000: 1}), r"JsonSchema\('{\"x+… is refused by outlines-core"),
        (
            specdec.JsonSchema({"maxLength": 10**9, "type": "string"}),
            "JsonSchema.* more than 10000",
        ),
        (specdec.Regex("(" * 100_000 + ")" * 100_000), r"Regex\('\(+… is refused by outlines-core"),
        (specdec.Regex("a{10001}"), "repeats something more than 10000 times"),
        (specdec.Regex(r"a\\{0,10001}"), "repeats something more than 10000 times"),
    ],
)
def test_what_cannot_be_for_a_target(rule, told):
    with pytest.raises(ValueError, match=told) as caught:
        rule.open(RuleTarget(16, EOS, False, 8, Small("nothing")))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_braces_that_repeat_nothing():
    """They are letters, and so are the numbers in them."""
    with pytest.raises(ValueError, match="leaves no token"):
        specdec.Regex(r"\{10001}").open(RuleTarget(16, EOS, False, 8, Small("nothing")))


def test_targets_that_have_no_text_or_no_end():
    for rule in (specdec.Regex("a"), specdec.JsonSchema("{}")):
        with pytest.raises(ValueError, match="but this pair has no vocabulary"):
            rule.open(RuleTarget(16, EOS, False, 8))
        with pytest.raises(ValueError, match="needs a model with EOS"):
            rule.open(RuleTarget(16, (), False, 8, Small("nothing")))


def test_too_many_edges(monkeypatch):
    monkeypatch.setattr(grammars, "MOST_EDGES", 20)
    target = RuleTarget(16, EOS, False, 8, Small("nothing"))
    specdec.Regex("a|b").open(target)
    with pytest.raises(ValueError, match="has more than 20 edges with this vocabulary"):
        specdec.Regex("[ab]{9}").open(target)


def test_the_library_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    monkeypatch.delitem(sys.modules, "outlines_core.json_schema", raising=False)
    for rule in (specdec.Regex("a"), specdec.JsonSchema("{}")):
        with pytest.raises(ValueError, match=r'installed: pip install "specdec-jax\[grammars\]"'):
            rule.open(RuleTarget(16, EOS, False, 8, Small("nothing")))


def test_values():
    assert repr(specdec.Regex("[0-9]+")) == "Regex('[0-9]+')"
    assert {specdec.Regex("a"): 1}[specdec.Regex("a")] == 1
    rule = specdec.JsonSchema({"type": "string"})
    assert repr(rule) == """JsonSchema('{"type": "string"}')"""
    assert hash(rule) == hash(specdec.JsonSchema('{"type":"string"}'))
    assert rule == specdec.JsonSchema('{"type":"string"}') != specdec.JsonSchema('{"type":"null"}')
