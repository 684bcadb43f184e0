"""Rules written again: on lists of tokens, in float64, and independently of ``specdec.rules``.

Each is ``reference(logits [V], output) -> logits [V]`` behind the prefix of the toy model, which is
its start token 0. EOS is token 1.
"""

import itertools
import re

import numpy as np

EOS = 1


def masked(logits, tokens):
    found = np.array(logits)
    found[list(tokens)] = -np.inf
    return found


def only(logits, tokens):
    return masked(logits, set(range(len(logits))) - set(tokens))


def repetition(penalty):
    def adjust(logits, output):
        found = np.array(logits)
        for token in {0, *output}:
            found[token] *= penalty if found[token] < 0 else 1 / penalty
        return found

    return adjust


def presence(penalty):
    return lambda logits, output: (
        logits - penalty * np.array([token in output for token in range(len(logits))])
    )


def frequency(penalty):
    return lambda logits, output: (
        logits - penalty * np.array([output.count(token) for token in range(len(logits))])
    )


def no_repeat(size):
    def adjust(logits, output):
        text = (0, *output)
        again = set()
        for i in range(len(text) - size + 1):
            if text[i : i + size - 1] == text[len(text) - size + 1 :]:
                again.add(text[i + size - 1])
        return masked(logits, again)

    return adjust


def least(count):
    return lambda logits, output: masked(logits, {EOS} if len(output) < count else ())


def first(token):
    return lambda logits, output: logits if output else forced(logits, token)


def last(token, limit):
    return lambda logits, output: forced(logits, token) if len(output) == limit - 1 else logits


def forced(logits, token):
    return np.where(np.arange(len(logits)) == token, 0, -np.inf)


def suppressed(tokens, at=None):
    return lambda logits, output: masked(logits, tokens if at in (None, len(output)) else ())


def forbidden(sequences):
    def adjust(logits, output):
        text = (0, *output)
        ends = {s[-1] for s in sequences if text[len(text) - len(s) + 1 :] == tuple(s[:-1])}
        return masked(logits, ends)

    return adjust


def forbidden_text(strings, pieces):
    def adjust(logits, output):
        def text(tokens):
            return "".join(pieces[token] for token in tokens)

        had = {s for s in strings if s in text(output)}
        assert not had
        ends = {
            token
            for token in range(len(logits))
            if any(s in text((*output, token)) for s in strings)
        }
        return masked(logits, ends)

    return adjust


def allowed(sequences):
    def adjust(logits, output):
        whole = [(*each, EOS) for each in sequences]
        n = len(output)
        return only(logits, {s[n] for s in whole if s[:n] == output and len(s) > n})

    return adjust


def timestamps(start, none):
    """Whisper's outputs: 't' is a timestamp, one from ``start`` on, and 'x' is text."""
    grammar = re.compile("(t(x+(ttx+)*(tt?)?)?)?")

    def fits(output):
        times = [token for token in output if token >= start]
        # A segment's end is behind its beginning, and the next one may begin there.
        rise = all(
            a < b or (a == b and i % 2) for i, (a, b) in enumerate(itertools.pairwise(times))
        )
        kinds = "".join("t" if token >= start else "x" for token in output)
        return rise and none not in output and grammar.fullmatch(kinds)

    def adjust(logits, output):
        assert fits(output)
        tokens = {t for t in range(len(logits)) if t != EOS and fits((*output, t))}
        found = only(logits, tokens | ({EOS} if output else set()))
        together = np.logaddexp.reduce(found[start:])
        return masked(found, range(start)) if together > max(found[:start]) else found

    return adjust
