"""Strings in the text that is shown, whatever a decoder of texts makes of the tokens.

Independent of the tables: Python's ``in`` on the text of each beginning of random outputs.
"""

import dataclasses
import json
import random
import re

import jax
import numpy as np
import pytest
import tokenizers
from small_vocabularies import write_marian
from tokenizers import decoders, models, pre_tokenizers

from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.forbidden import Forbidden
from specdec.rules.grammars import Regex
from specdec.rules.spelling import Finish, Spelling
from specdec.rules.stops import cut_before
from specdec.rules.texts import text_table
from specdec.text.base import CLEAN_UP, added_text
from specdec.text.hugging_face import HuggingFaceTokenizer
from specdec.text.vocabulary import train_vocabulary
from specdec.text.word_pieces import train_word_pieces

CLEANS_UP = {"clean_up_tokenization_spaces": True}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACED = "\u2581"
WORDS = [
    SPACED, SPACED * 2, "H", "a", "us", f"{SPACED}a", f"{SPACED}us", ".", f"{SPACED}.", ",", "!",
    "'", f"{SPACED}'", "s", "n't", f"{SPACED}n't", "ve", "re", "ä", f"{SPACED}ä", "🙂", "\u00a0",
]  # fmt: skip


def settings(directory, **told):
    (directory / "tokenizer_config.json").write_text(json.dumps(told))
    return directory / "tokenizer_config.json"


def byt5(directory, **told):
    path = settings(directory, tokenizer_class="ByT5Tokenizer", extra_ids=3, **told)
    return HuggingFaceTokenizer(path, 270)


def backend(directory, model, decoder, **told):
    made = tokenizers.Tokenizer(model)
    made.decoder = decoder
    made.add_special_tokens(["</s>"])
    made.save(str(directory / "tokenizer.json"))
    settings(directory, eos_token="</s>", tokenizer_class="PreTrainedTokenizerFast", **told)
    return HuggingFaceTokenizer(directory / "tokenizer.json")


def by_fallback(directory, *steps):
    names = ["<unk>", "</s>", *BYTES, *WORDS, "\x00"]
    model = models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True)
    first = [decoders.Replace(SPACED, " "), decoders.ByteFallback(), decoders.Fuse()]
    return backend(directory, model, decoders.Sequence([*first, *steps]))


def unigram(directory, scheme="always", **told):
    names = ["</s>", "<unk>", *WORDS]
    model = models.Unigram([(name, -1.0) for name in names], 1, False)
    return backend(directory, model, decoders.Metaspace(SPACED, scheme), **told)


def bpe(directory):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["</s>", *letters, "Ã¤", "ĠðŁ", "ĻĤ", "Ġ.", "¤a"]
    model = models.BPE({name: i for i, name in enumerate(names)}, [])
    return backend(directory, model, decoders.ByteLevel())


def word_pieces(directory, **told):
    lines = ["Haus an ants' aunt's sun, us. Isn't it? We've!", "Ä ä haus un nn"] * 9
    train_word_pieces(lines, 42, directory / "tokenizer.json", lowercase=False)
    settings(directory, **told)
    return HuggingFaceTokenizer(directory / "tokenizer.json")


def marian(directory, **told):
    write_marian(directory)
    settings(directory, **told)
    return HuggingFaceTokenizer(directory / "vocab.json")


def sentencepiece(directory):
    lines = ["Das Haus a us. Hat's, wie!", "an ein isn't we've a '"] * 9
    return train_vocabulary(lines, 279, directory / "spiece.model")


def t5(directory):
    sentencepiece(directory)
    return HuggingFaceTokenizer(directory / "spiece.model")


class Spelt:
    """A vocabulary that is its spelling, of bytes: pieces of characters, whitespace, and an end."""

    eos_id = 0

    def __init__(self, broken, finish):
        letters = [b"", b"the", b" ", b" .", b"s", b"\xc2", b"\xa0", b"\xed", b"\x80", b"\xe2\x80",
                   b"\xc3", b"\xa4", b"\xf0\x9f", "ä.".encode(), b"a", b"", b"", b""]  # fmt: skip
        self.finish, self._pieces = finish, letters
        apart = np.isin(np.arange(len(letters)), [13, 14, 16]) & (broken == "run")
        joined = Spelling.of_bytes(letters, broken, finish=finish)
        self._spelling = dataclasses.replace(joined, apart=apart)
        self.joined = self._spelling.joined

    def __len__(self):
        return len(self._pieces) - 2

    def decode(self, ids):
        return self.finish(self.joined(ids))

    def spelling(self, size):
        del size
        return self._spelling


ALL = Finish(strips=True, replaces=(*CLEAN_UP, ("aa", "a"), ("ä", "aä")))
KINDS = {
    "dropped": lambda path: Spelt("dropped", ALL),
    "replaced": lambda path: Spelt("replaced", ALL),
    "by runs": lambda path: Spelt("run", ALL),
    "ByT5": byt5,
    "ByT5, cleaned up": lambda path: byt5(path, **CLEANS_UP),
    "SentencePiece": sentencepiece,
    "T5's, with bytes": t5,
    "ByteFallback": by_fallback,
    "Llama's": lambda path: by_fallback(path, decoders.Strip(" ", 1, 0)),
    "GPT-2's": bpe,
    "WordPiece, cleaned up": lambda path: word_pieces(path, **CLEANS_UP),
    "Metaspace, cleaned up": lambda path: unigram(path, **CLEANS_UP),
    "no first space": lambda path: unigram(path, "never", **CLEANS_UP),
    "Marian's": marian,
}


@pytest.fixture(scope="module", params=KINDS)
def words(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("words"))


def target_of(words, continues=False):
    # The embedding has rows past the vocabulary's end.
    return RuleTarget(len(words) + 2, (words.eos_id,), continues, 16, words)


def drawn(words, generator):
    """Tokens that say much together: few, and of the kinds that matter."""
    pieces = [*words.spelling(len(words)).pieces][: len(words)]
    odd = b" .,!?'snthe\xc2\xa0\xed\x80\xc3\xa4\xf0\x9f\x99\x82\xe2aH"
    some = [i for i, piece in enumerate(pieces) if piece and set(piece) <= set(odd)]
    bytes_ = [i for i, piece in enumerate(pieces) if piece in (b"\xc3", b"\xa4", b"\xf0", b"\x9f")]
    found = generator.sample(some, min(8, len(some))) + bytes_ + [0, len(pieces) + 1]
    found += generator.sample(range(len(pieces)), 4)
    return [token for token in found if token != words.eos_id]


def started(table, prefix):
    """The state behind a prefix, without JAX."""
    fronts, state = table.fronts, table.fronts.begin
    for token in prefix[fronts.skipped :]:
        state = int(fronts.following[state, token])
    return int(fronts.starts[state])


def strings_of(words, tokens, generator):
    """Strings that the tokens show, or almost."""
    found = set()
    while len(found) < 3:
        text = words.decode(generator.choices(tokens, k=8)).replace("\ufffd", "")
        at, size = generator.randrange(len(text) + 1), generator.randint(1, 4)
        if part := text[at : at + size]:
            found.add(generator.choice([part, part, part.replace(".", " ."), f"{part} "]))
    spelling = words.spelling(len(words))
    known = {byte for piece in (*spelling.pieces, *spelling.first) for byte in piece}
    return [each for each in found if known.issuperset(each.encode())] or ["a"]


@pytest.mark.parametrize("seed", range(2))
def test_a_row_ends_where_its_text_has_the_string_and_nowhere_else(words, seed):
    generator, found = random.Random(seed), [0, 0]
    for _ in range(4):
        tokens = drawn(words, generator)
        strings = strings_of(words, tokens, generator)
        continues = generator.random() < 0.5
        table = text_table("stop", strings, target_of(words, continues))
        for _ in range(60):
            prefix = generator.choices(tokens, k=generator.choice([0, 0, 1, 2, 4]))
            # A start token shows nothing, whatever it would show elsewhere.
            before = prefix if continues else [tokens[0], *prefix]
            state, output = started(table, before), []
            for token in generator.choices(tokens, k=10):
                output.append(token)
                text = added_text(words, prefix, output)
                expected = any(each in text for each in strings)
                told = (strings, prefix, output, text)
                assert bool(table.following[state, token] == table.found) == expected, told
                found[expected] += 1
                assert (cut_before(text, strings) != text) == expected
                if expected:
                    break
                state = table.following[state, token]
    assert min(found) > 20


def test_forbidden_lets_no_token_pass_that_would_show_the_string(words):
    """And every other one; a row begins as :class:`Fronts` says in JAX."""
    generator = random.Random(7)
    tokens = drawn(words, generator)
    strings, target = strings_of(words, tokens, generator), target_of(words)
    rule = jax.tree.map(np.asarray, Forbidden(strings).open(target))
    size, logits = 8, np.zeros(target.vocab_size, np.float32)
    start = jax.jit(lambda prefix, length: rule.init(RowStart(prefix, length, 16, 16)))
    following = jax.jit(lambda state, token: rule.advance(state, token))
    passed = 0
    for _ in range(40):
        prefix = generator.choices(tokens, k=generator.randint(0, size - 1))
        padded = np.array([tokens[0], *prefix] + [3] * (size - 1 - len(prefix)), np.int32)
        state, output = start(padded, np.int32(1 + len(prefix))), []
        for _ in range(6):
            allowed = np.asarray(rule.table.finds(state.text)) == 0
            for token in tokens:
                text = added_text(words, prefix, [*output, token])
                told = (strings, prefix, output, token)
                assert allowed[token] != any(each in text for each in strings), told
            kept = [token for token in tokens if allowed[token]]
            output.append(generator.choice(kept))
            assert np.isfinite(rule.allow(state, logits)[output[-1]])
            state = following(state, np.int32(output[-1]))
            passed += len(tokens) - len(kept)
    assert passed > 0


def ends(words, strings, ids, prefix=()):
    """After how many tokens an output ends; None where it does not."""
    table = text_table("stop", strings, target_of(words, continues=True))
    state = started(table, prefix)
    for count, token in enumerate(ids, 1):
        state = table.following[state, token]
        if state == table.found:
            return count
    return None


def test_bytes_that_are_not_shown(tmp_path):
    words = byt5(tmp_path)

    def ids(text):
        return [byte + 3 for byte in text]

    emoji = "🙂".encode()
    assert ends(words, ["the"], ids(b"t\xc3he!")) == 4
    assert ends(words, ["the"], ids(b"t\x9f\x9f\xf0\x9f\x99he")) == 8
    assert ends(words, ["the"], ids(b"t\xc3\xa4he")) is None
    assert ends(words, ["a🙂"], ids(b"a" + emoji[:3] + emoji)) == 8
    # A prompt that ends inside of a character shows it with the output.
    assert ends(words, ["🙂a"], ids(emoji[2:] + b"a"), ids(b"a" + emoji[:2])) == 3
    assert ends(words, ["🙂a"], ids(emoji[2:] + b"a"), ids(b"a" + emoji[:1])) is None


def test_a_token_without_text_between_the_bytes_of_a_character(tmp_path):
    """SentencePiece's control tokens part them."""
    words = sentencepiece(tmp_path)
    begun, ended = (
        [*words.spelling(len(words)).pieces].index(piece) for piece in (b"\xc3", b"\xa4")
    )
    assert words.decode([begun, 0, ended]) == "\ufffd\ufffd"
    assert ends(words, ["ä"], [begun, 0, ended]) is None
    assert ends(words, ["ä"], [begun, 0, begun, ended]) == 4


def test_a_prompt_that_ends_inside_of_a_character_is_not_shown_again(tmp_path):
    """Its bytes were shown as U+FFFD, as all of their run."""
    words = by_fallback(tmp_path)
    a, begun, ended = (BYTES.index(f"<0x{byte:02X}>") + 2 for byte in b"a\xc3\xa4")
    assert words.decode([a, begun]) == "\ufffd" * 2
    assert added_text(words, [a, begun], [ended]) == "ä"
    assert added_text(words, [a, begun], [a]) == "\ufffd"
    assert ends(words, ["aä"], [ended], [a, begun]) is None
    assert ends(words, ["ä"], [ended, a], [a, begun]) == 1


def test_the_token_that_ends_an_output_shows_nothing(tmp_path):
    words = bpe(tmp_path)
    a, b = words.encode("ab")
    for eos, found in ((words.eos_id, True), (b, False)):
        table = text_table("stop", ["ab"], RuleTarget(len(words), (eos,), True, 8, words))
        state = table.following[started(table, []), a]
        assert (table.following[state, b] == table.found) == found


class Reversing:
    """Shows its tokens in the other order."""

    def decode(self, ids):
        return "".join("ab"[i] for i in reversed(ids))

    def spelling(self, size):
        return Spelling.of_bytes([b"a", b"b"])


def test_what_cannot_be_looked_for(tmp_path):
    target = RuleTarget(2, (), True, 8, Reversing())
    with pytest.raises(ValueError, match="depends on more than a piece for each: tokens"):
        text_table("stop", ["a"], target)
    with pytest.raises(ValueError, match="depends on more than a piece for each: tokens"):
        suffixes(tmp_path)
    with pytest.raises(ValueError, match=r"U\+FFFD stands for bytes that are no character"):
        text_table("stop", ["\ufffd"], target_of(bpe(tmp_path)))


def suffixes(directory):
    """Of GPT-1's kind: only with the next token it is known that a space is behind a word."""
    model = models.BPE({"</s>": 0, "a</w>": 1, "b": 2, "a": 3}, [])
    words = backend(directory, model, decoders.BPEDecoder("</w>"))
    return text_table("stop", ["a"], target_of(words))


@pytest.mark.parametrize(
    ("pattern", "prefixed"), [("(a|us|ä| |[.])+", False), (" ?(a|us|ä)( a| us| [.]|ä)*", True)]
)
def test_outputs_of_a_grammar_show_a_match(words, pattern, prefixed):
    pytest.importorskip("outlines_core")
    generator, target = random.Random(3), target_of(words, continues=prefixed)
    rule = jax.tree.map(np.asarray, Regex(pattern).open(target))
    tokens = drawn(words, generator)
    ended = 0
    for _ in range(200):
        prefix = generator.choices(tokens, k=generator.randint(1, 3)) if prefixed else []
        state = started(rule, prefix if prefixed else [words.eos_id])
        output = []
        while len(output) < 12:
            at = slice(*rule.edges.first[[state, state + 1]])
            allowed = dict(zip(rule.edges.tokens[at], rule.edges.targets[at], strict=True))
            if words.eos_id in allowed and generator.random() < 0.4:
                text = added_text(words, prefix, output)
                assert re.fullmatch(pattern, text), (prefix, output, text)
                ended += 1
                break
            allowed.pop(words.eos_id, None)
            if not allowed:
                break
            token = generator.choice([*({*allowed} & {*tokens} or allowed)])
            state = allowed[token]
            output.append(int(token))
    assert ended > 50
