"""What can be combined in a decode, and cases that together have every pair of it.

A case has one level of each factor. What does not go together is refused with one line.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from sizes import watch
from small_vocabularies import LINES
from uneven import LIMIT, SAMPLED, ThreeKinds, texts

import specdec
from specdec.data.tasks import given_texts
from specdec.decoding import loop as loops
from specdec.measure.kept_rows import LineWriter, read_rows
from specdec.runs.decode_run import DecodeRun
from specdec.runs.prepared_run import PreparedRun

TEXTS, BATCH, GROUPS = 9, 2, 2
BEAM = specdec.BeamConfig(3, "huggingface", length_penalty=2.0)
SEARCHES = ("beams", "speculative beams")
FACTORS = {
    "way": (
        "plain", "chain", "few-bit copy that stops early", "copying", "tree", "best-first tree",
        "EAGLE layer", *SEARCHES,
    ),
    "entry": ("generate", "stream", "interrupted run"),
    "kept": ("nothing", "log-probs", "alternatives"),
    "samples": (1, 3),
    "rules": ("none", "with state"),
    "stops": ("none", "a string and a token"),
    "time": ("any", "limited"),
    "trace": (False, True),
    "prefix": ("none", "ragged"),
    "mesh": ("one device", "two groups"),
}  # fmt: skip
# Pairs that are refused, and a part of the one line that says so.
REFUSED = {
    **{(("way", way), other): line for way in SEARCHES for other, line in (
        (("entry", "stream"), "can be streamed"),
        (("kept", "alternatives"), "leave top_log_probs out"),
        (("samples", 3), "give num_return"),
        (("stops", "a string and a token"), "leave stop out"),
        (("time", "limited"), "leave time_limit out"),
    )},
    (("way", "beams"), ("trace", True)): "leave trace out",
    (("entry", "stream"), ("samples", 3)): "num_samples = 1",
    (("entry", "stream"), ("trace", True)): "stream has no keyword trace",
    (("entry", "stream"), ("mesh", "two groups")): "multiple of",
    (("entry", "interrupted run"), ("samples", 3)): "leave num_samples and time_limit out",
    (("entry", "interrupted run"), ("time", "limited")): "leave num_samples and time_limit out",
}  # fmt: skip


def refused(case):
    """The lines that refuse a case; any of them may come first."""
    return [
        line for pair, line in REFUSED.items() if all(case[name] == level for name, level in pair)
    ]


def pairs():
    """All pairs of levels of two factors."""
    return [
        ((a, x), (b, y))
        for a, b in itertools.combinations(FACTORS, 2)
        for x, y in itertools.product(FACTORS[a], FACTORS[b])
    ]


def covered(case):
    """The pairs of levels that a case has."""
    return set(itertools.combinations(case.items(), 2))


def covering():
    """Few cases that have each pair that is not refused, found greedily in a fixed order."""
    missing = dict.fromkeys(pair for pair in pairs() if pair not in REFUSED)
    cases, used = [], Counter()
    while missing:
        case = dict(next(iter(missing)))
        for name, levels in FACTORS.items():
            if name not in case:
                case[name] = max(
                    (level for level in levels if _goes_with(case, name, level)),
                    key=lambda level: (_gain(case, name, level, missing), -used[name, level]),
                )
        case = {name: case[name] for name in FACTORS}
        cases.append(case)
        used.update(item for item in case.items() if item[0] != "mesh")  # Few: they take longest.
        for pair in covered(case):
            missing.pop(pair, None)
    return cases


def _goes_with(case, name, level):
    return all(_ordered((name, level), each) not in REFUSED for each in case.items())


def _gain(case, name, level, missing):
    return sum(_ordered((name, level), each) in missing for each in case.items())


def _ordered(one, other):
    """As :func:`pairs` has them."""
    return tuple(sorted((one, other), key=lambda each: list(FACTORS).index(each[0])))


def named(case):
    """Levels that are not a factor's first one."""
    if not isinstance(case, dict):  # The number of a case.
        return str(case)
    return ", ".join(str(level) for name, level in case.items() if level != FACTORS[name][0])


WAYS = {
    "plain": {"method": "autoregressive"},
    "chain": {"gamma": 3},
    "few-bit copy that stops early": {"gamma": 3, "stop_below": 0.2},
    "copying": {"gamma": 4},
    "tree": {"tree": (2, 1)},
    "best-first tree": {"tree": specdec.Tree(nodes=5, depth=3, siblings=2)},
    "EAGLE layer": {"tree": (2, 1)},
    "beams": {"method": "beam", "beam": BEAM, "num_return": 2},
    "speculative beams": {
        "method": "speculative_beam", "beam": BEAM, "num_return": 2, "gamma": 2,
    },
}  # fmt: skip


def draft_of(root, case):
    """What guesses."""
    return {
        "few-bit copy that stops early": specdec.Quantized(), "copying": specdec.Copying(),
        "EAGLE layer": specdec.Heads(str(root / "eagle")),
    }.get(case["way"], str(root / "draft"))  # fmt: skip


def mesh_of(case):
    """Two groups of rows, or none."""
    return None if case["mesh"] == "one device" else specdec.DeviceMesh(GROUPS, 1)


def batch_size(case):
    """Texts at once; on a mesh as many in each group."""
    return BATCH * (1 if mesh_of(case) is None else GROUPS)


def options(case):
    """Those of ``generate``."""
    found = {"max_decode_len": LIMIT, "seed": 5, **WAYS[case["way"]]}
    if case["way"] not in SEARCHES:
        found["sampling"] = SAMPLED
    if case["rules"] != "none":
        kinds = ThreeKinds(6, 18, 24)
        found["rules"] = (kinds, specdec.RepetitionPenalty(1.1), specdec.PresencePenalty(0.5))
    if case["stops"] != "none":
        found["stop"] = ["fox j", 40]
    found["num_samples"] = case["samples"]
    found["time_limit"] = None if case["time"] == "any" else 3600.0
    found["log_probs"] = case["kept"] != "nothing"
    found["top_log_probs"] = 2 if case["kept"] == "alternatives" else 0
    return found


def inputs(case):
    """Texts, and a prefix for each: those of a run are strings, and it has one prefix for all."""
    if case["entry"] == "interrupted run":
        words = LINES[0].split()[1:]
        given = [" ".join(words[i % 5 : i % 5 + 1 + i % 3]) for i in range(TEXTS)]
        return given, None if case["prefix"] == "none" else ["The"] * TEXTS
    prefixes = [row[:-1][: 1 + i % 4] for i, row in enumerate(texts(TEXTS, 1))]
    return texts(TEXTS), None if case["prefix"] == "none" else prefixes


def generated(pair, case, **given):
    """What ``generate`` gives of each sample or list of hypotheses."""
    given = {**options(case), **given}
    out = pair.generate(given.pop("texts"), **given)
    if out.beams is None:
        return [vars(sample) for row in out.samples for sample in row]
    traces = out.traces or [None] * len(out.beams)
    return [
        {"beams": [vars(beam) for beam in beams], "searched": blocks}
        for beams, blocks in zip(out.beams, traces, strict=True)
    ]


def alone(pair, case):
    """Each row by itself, in one program that has arrays for all of it."""
    given, prefix = inputs(case)
    # A run keeps blocks whether or not it is asked to. A time that is not over changes nothing.
    trace = case["trace"] or (case["entry"] == "interrupted run" and case["way"] != "beams")
    how = {"trace": trace, "time_limit": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "FIRST_BUCKET", LIMIT)
        if case["entry"] != "stream":
            return generated(pair, case, texts=given, prefix=prefix, **how)
        # Each text of a stream has the random numbers of a first row.
        return [
            row
            for i, text in enumerate(given)
            for row in generated(pair, case, texts=[text], prefix=prefix and [prefix[i]], **how)
        ]


def decoded(root, pair, case, directory):
    """The case as it is, and the changes of sizes that it took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "FIRST_BUCKET", 16)
        changes = watch(patch)
        given, prefix = inputs(case)
        if case["entry"] == "generate":
            trace, size = case["trace"], batch_size(case)
            how = {"texts": given, "prefix": prefix, "trace": trace, "batch_size": size}
            return generated(pair, case, **how), changes
        if case["entry"] == "stream":
            return streamed(pair, case, given, prefix), changes
        return run(root, case, given, prefix, directory), changes


def streamed(pair, case, given, prefix):
    """Each text as a stream; trace and mesh are as the case has them, to be refused."""
    how = options(case) | ({"trace": True} if case["trace"] else {})
    found = []
    for i, text in enumerate(given):
        parts = list(pair.stream(text, prefix=prefix and [prefix[i]], **how))
        tokens = np.concatenate([part.tokens for part in parts])
        shown = "".join(part.text for part in parts)
        found.append({"tokens": tokens, "text": shown, "ended": parts[-1].ended})
    return found


class Killed(BaseException):
    """As sudden as can be in one process."""


def run(root, case, given, prefix, directory):
    """The rows of a run that is killed twice while it writes, and then goes on."""
    how = DecodeRun(
        given_texts(given), str(root / "target"), draft_of(root, case),
        specdec.Decoding(batch_size=batch_size(case), **options(case)), "float32",
        num_examples=None, timing_examples=0, timing_repetitions=1, mesh=mesh_of(case),
        check=False, prefix=prefix[0] if prefix else "",
    )  # fmt: skip
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LineWriter, "append", _killed_after(1))
            with pytest.raises(Killed):
                PreparedRun.without_gin(how, directory).execute("a test")
    PreparedRun.without_gin(how, directory).execute("a test")
    rows = sorted(read_rows(directory / "decodes.jsonl"), key=lambda row: row.id)
    if case["way"] in SEARCHES:
        return [{"beams": row.beams, "searched": row.searched} for row in rows]
    names = ("tokens", "blocks", "log_probs", "adjusted_log_probs")
    found = [{name: getattr(row, name) for name in names} for row in rows]
    for kept, row in zip(found, rows, strict=True):
        kept["text"] = row.output
        if row.alternatives is not None:
            pairs = np.array(row.alternatives)
            kept["alternatives"] = pairs[..., 0].astype(int), pairs[..., 1]
    return found


def _killed_after(whole):
    """An ``append`` that writes this many batches, and a part of the next one."""
    append, count = LineWriter.append, 0

    def until(self, *lines):
        nonlocal count
        count += 1
        if count <= whole:
            return append(self, *lines)
        self._file.write(lines[0][:9].encode())
        self._file.flush()
        raise Killed

    return until
