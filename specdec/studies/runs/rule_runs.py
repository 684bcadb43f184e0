"""What rules for logits, log-probabilities and streaming cost, and whether outputs follow rules."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.scipy.stats import chi2

from specdec.api import Pair
from specdec.core.stats import RunStats
from specdec.core.theory_measured import cluster_interval
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, commonest, make_batches
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.load import load_pair
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.rules.automata import AllowedSequences
from specdec.rules.base import Rule
from specdec.rules.penalties import RepetitionPenalty
from specdec.studies.benchmarks.workload import Config, exported
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept
from specdec.types import SamplingConfig

RESULT = "rules.json"
_WITHOUT = "without"
_INPUT = 32  # Tokens of each random text.
_MOST_TOKENS = 8  # Of a random entry of a trie, behind what it shares with an output.
_LEAST_COUNT = 10  # Outputs of one kind in both samples, for a chi-square.
Times = Sequence[Mapping[str, float]]
Piece = tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]


def _inputs(pair: Pair, task: Task | None, count: int) -> list[np.ndarray]:
    """Token ids of a task's texts, all of one bucket; or random ones."""
    model = pair.target.model
    if task is None:
        tokens = np.random.default_rng(0).integers(2, model.vocab_size, (count, _INPUT))
        tokens[:, -1] = model.eos_ids[0]
        return list(tokens.astype(np.int32))
    ids = pair.token_ids(model_inputs(task.examples, pair.vocabulary), max_input_len=512)
    rows = [int(batch.row_ids[0]) for batch in commonest(list(make_batches(ids, 1, model)))]
    return [ids[row] for row in evenly(rows, count)]


def _spread(times: Times, value: Callable[[Mapping[str, float]], float]) -> dict[str, float]:
    return dataclasses.asdict(Spread.of(map(value, times)))


@dataclasses.dataclass(frozen=True)
class RuleCosts:
    """Times of the same decodes with and without what may cost something, one text at a time.

    What is compared gives the same tokens in the same blocks: a penalty of 1, whose arithmetic is
    done all the same, and a trie that has the outputs, and all that the draft guesses on the way to
    them, among its entries. Where one does not, ``differ`` counts the texts.

    Attributes:
      name: short, for tables and directories.
      target, draft: a checkpoint, or the shape of random weights.
      gamma: of the chain.
      max_decode_len: tokens that outputs may have.
      num_texts: of the task, evenly spread over those whose inputs have the commonest shape.
      entries: of the trie. Those that are no outputs leave one somewhere, and go on at random.
      repetitions: of each decode, in turn.
      task: opens inputs, once; None for texts of random tokens.
    """

    name: str
    target: str | Config
    draft: str | DraftSpec | Config
    gamma: int
    max_decode_len: int
    num_texts: int
    entries: int
    repetitions: int
    task: Callable[[], Task] | None = None

    def pieces(self) -> Iterator[Piece]:
        """Where each result stands, and what makes it or reads it there."""
        task = self.task() if self.task else None
        methods = {"plain": Decoding("autoregressive"), "speculative": Decoding(gamma=self.gamma)}
        for name, how in methods.items():
            how = dataclasses.replace(how, rules=(), max_decode_len=self.max_decode_len)
            for part, measure in (("costs", self._costs), ("stream", self._stream)):
                index = (slug(self.name), "rules", part, name)
                yield (
                    index,
                    lambda directory, how=how, measure=measure: self._piece(
                        directory, task, how, measure
                    ),
                )

    def _piece(
        self, directory: Path, task: Task | None, how: Decoding,
        measure: Callable[[Pair, list[np.ndarray], Decoding], dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        weights = directory.parents[1] / "weights"
        target, draft = (
            each if isinstance(each, DraftSpec) else exported(each, weights, seed, "float32")
            for seed, each in enumerate((self.target, self.draft))
        )
        assert isinstance(target, str)
        pair = load_pair(target=target, draft=draft)
        names = ("gamma", "max_decode_len", "num_texts", "entries", "repetitions")
        settings = {
            "task": task and task.name, "target": str(self.target), "draft": str(self.draft),
            "method": how.method, **{name: getattr(self, name) for name in names},
        }  # fmt: skip
        return kept(
            directory / RESULT,
            pair,
            settings,
            lambda: measure(pair, _inputs(pair, task, self.num_texts), how),
        )

    def _costs(self, pair: Pair, ids: list[np.ndarray], how: Decoding) -> dict[str, Any]:
        """Seconds of all texts, over those without."""
        batches = list(make_batches(ids, 1, pair.target.model))
        plain = pair.decoder(how)
        needed = [each for batch in batches for each in _followed(plain, batch)]
        trie = AllowedSequences(random_entries(needed, self.entries, pair.target.model))
        changes: dict[str, dict[str, Any]] = {
            _WITHOUT: {}, "penalty": {"rules": (RepetitionPenalty(1.0),)},
            "trie": {"rules": (trie,)}, "log_probs": {"log_probs": True},
            "top_log_probs": {"top_log_probs": 5},
        }  # fmt: skip
        decoders, opened = {}, {}
        for name, change in changes.items():
            begun = time.perf_counter()
            decoders[name] = pair.decoder(how, **change)
            opened[name] = time.perf_counter() - begun
        expected = [plain.decode(batch) for batch in batches]
        differ = {
            name: sum(
                not _same(decoder.decode(batch), result)
                for batch, result in zip(batches, expected, strict=True)
            )
            for name, decoder in decoders.items()
        }  # fmt: skip
        works = [
            Work(
                name,
                lambda decoder=decoder, batch=batch: decoder.decode(batch),
                name,
            )
            for batch in batches
            for name, decoder in decoders.items()
        ]
        times = time_interleaved(works, self.repetitions)
        blocks = sum(int(np.sum(result.stats.target_calls)) for result in expected)
        return {
            "num_texts": len(batches), "blocks": blocks,
            "num_tokens": sum(int(np.sum(result.num_tokens)) for result in expected),
            "ways": {
                name: {
                    "differ": differ[name], "seconds_to_open": opened[name],
                    "ms_per_block": _spread(times, lambda each, n=name: 1e3 * each[n] / blocks),
                    "over": _spread(times, lambda each, n=name: each[n] / each[_WITHOUT]),
                }
                for name in decoders
            },
        }  # fmt: skip

    def _stream(self, pair: Pair, ids: list[np.ndarray], how: Decoding) -> dict[str, Any]:
        """Seconds of all texts streamed, over those that ``generate`` takes."""
        texts = [tuple(each.tolist()) for each in ids]

        def streamed(text: tuple[int, ...]) -> list[np.ndarray]:
            return [piece.tokens for piece in pair.stream(text, how)]

        whole = [pair.generate([text], how) for text in texts]
        pieces = [streamed(text) for text in texts]
        works = []
        for text in texts:
            works += [
                Work("whole", lambda text=text: pair.generate([text], how), 0),
                Work("streamed", lambda text=text: streamed(text), 0),
            ]
        times = time_interleaved(works, self.repetitions)
        num_tokens = sum(len(each.tokens[0]) for each in whole)
        return {
            "num_texts": len(texts), "num_tokens": num_tokens, "pieces": sum(map(len, pieces)),
            "differ": sum(
                np.concatenate(found).tolist() != each.tokens[0].tolist()
                for found, each in zip(pieces, whole, strict=True)
            ),
            "ms_per_token": {
                name: _spread(times, lambda each, name=name: 1e3 * each[name] / num_tokens)
                for name in ("whole", "streamed")
            },
            "over": _spread(times, lambda each: each["streamed"] / each["whole"]),
        }  # fmt: skip


def _same(found: Any, expected: Any) -> bool:
    """Whether the tokens are, and the number of blocks."""
    return np.array_equal(found.tokens, expected.tokens) and np.array_equal(
        found.stats.target_calls, expected.stats.target_calls
    )


def _followed(decoder: BatchDecoder, batch: Batch) -> Iterator[tuple[int, ...]]:
    """A batch's only row: its output, and guesses behind what stood before them; without EOS."""
    eos_ids, result = decoder.target.model.eos_ids, decoder.decode(batch, trace=True)
    output, count = result.tokens[0, : result.num_tokens[0]].tolist(), 0
    yield _before(output, eos_ids)
    trace = result.trace
    assert trace is not None
    for guesses, emitted in zip(trace.draft_tokens[0], trace.num_emitted[0], strict=True):
        if emitted:
            yield _before([*output[:count], *guesses.tolist()], eos_ids)
        count += int(emitted)


def _before(tokens: Sequence[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    end = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tuple(tokens[:end])


def random_entries(
    needed: Sequence[tuple[int, ...]], count: int, model: Any
) -> list[tuple[int, ...]]:
    """``count`` different sequences, ``needed`` (those that are not empty) and others.

    Each other one begins as one of ``needed`` does, and has up to 8 random tokens behind that.

    Args:
      model: whose tokens they are made of, without EOS.
    """
    random = np.random.default_rng(0)
    found = dict.fromkeys(each for each in needed if each)
    given, eos_ids = list(found), set(model.eos_ids)
    while len(found) < count:
        start = given[random.integers(len(given))]
        shared = start[: random.integers(len(start) + 1)]
        tokens = random.integers(model.vocab_size, size=random.integers(1, _MOST_TOKENS + 1))
        found[*shared, *(token for token in tokens.tolist() if token not in eos_ids)] = None
        found.pop((), None)
    return list(found)


@dataclasses.dataclass(frozen=True)
class FollowedRules:
    """Decodes whose draft follows rules, and whose draft does not, beside plain ones.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references, once. Beside ``rules``, outputs that are one of all
        references are measured, and those without rules.
      target, draft: checkpoints.
      gamma: of the chain.
      rules: one at a time.
      num_texts: as in :class:`RuleCosts`.
      repetitions: of each decode, in turn.
    """

    name: str
    task: Callable[[], Task]
    target: str
    draft: str | DraftSpec
    gamma: int
    rules: Sequence[Rule]
    num_texts: int
    repetitions: int
    temperatures: Sequence[float] = (0.0, 1.0)

    def pieces(self) -> Iterator[Piece]:
        """Where each result stands, and what makes it or reads it there."""
        task = self.task()
        references = {each.reference for each in task.examples if each.reference}
        every = [(), *((rule,) for rule in self.rules), (AllowedSequences(sorted(references)),)]
        for temperature in self.temperatures:
            for rules in every:
                named = _named(rules)
                index = slug(self.name), "rules", f"t{temperature:g}", slug(named)
                yield (
                    index,
                    lambda directory, t=temperature, rules=rules: self._piece(
                        directory, task, rules, t
                    ),
                )

    def _piece(
        self, directory: Path, task: Task, rules: tuple[Rule, ...], temperature: float
    ) -> dict[str, Any]:
        pair = load_pair(target=self.target, draft=self.draft)
        settings = {
            "task": task.name, "target": self.target, "draft": str(self.draft),
            "gamma": self.gamma, "rule": _named(rules), "num_texts": self.num_texts,
            "repetitions": self.repetitions,
        }  # fmt: skip
        how = Decoding(gamma=self.gamma, rules=rules, sampling=SamplingConfig(temperature))
        return kept(
            directory / RESULT, pair, settings, lambda: self._measured(pair, task, how)
        )  # fmt: skip

    def _measured(self, pair: Pair, task: Task, how: Decoding) -> dict[str, Any]:
        batches = list(make_batches(_inputs(pair, task, self.num_texts), 1, pair.target.model))
        ways = {"plain": how.with_shape(None), "following": how}
        if how.rules:
            ways["apart"] = dataclasses.replace(how, draft_follows_rules=False)
        decoders = {name: pair.decoder(each) for name, each in ways.items()}
        results = {
            name: [decoder.decode(batch) for batch in batches] for name, decoder in decoders.items()
        }
        tokens = {
            name: np.array([int(each.num_tokens[0]) for each in found])
            for name, found in results.items()
        }
        works = [
            Work(name, lambda decoder=decoder, batch=batch: decoder.decode(batch), name)
            for batch in batches
            for name, decoder in decoders.items()
        ]
        times = time_interleaved(works, self.repetitions)

        def a_token(each: Mapping[str, float], name: str) -> float:
            return each[name] / tokens[name].sum()

        def way(name: str) -> dict[str, Any]:
            stats = RunStats.total([each.stats for each in results[name]], len(batches), how.depth)
            calls = np.array([int(each.stats.target_calls[0]) for each in results[name]])
            return {
                "alpha": stats.alpha, "block_efficiency": stats.block_efficiency,
                "interval": cluster_interval(tokens[name].astype(float), calls.astype(float)),
                "speedup": _spread(times, lambda t: a_token(t, "plain") / a_token(t, name)),
                "differ": None if how.sampling.temperature else sum(
                    not np.array_equal(found.tokens, expected.tokens)
                    for found, expected in zip(results[name], results["plain"], strict=True)
                ),
            }  # fmt: skip

        return {
            "rule": _named(how.rules or ()), "num_texts": len(batches),
            "num_tokens": int(tokens["plain"].sum()), "following": way("following"),
            "apart": way("apart") if how.rules else None,
        }  # fmt: skip


def _named(rules: Sequence[Rule]) -> str:
    return ", ".join(map(str, rules)) or "none"


@dataclasses.dataclass(frozen=True)
class SampledRules:
    """Speculative sampling with rules against plain sampling with them, at temperature 1.

    Two samples of whole outputs of one text are compared by a chi-square test.
    Plain sampling without the rule is compared, too: what the test says of another distribution.

    Attributes:
      name: short, for tables and directories.
      target, draft: checkpoints.
      text: what is decoded, ``samples`` times in each way.
      gamma: of the chain.
      rules: one at a time.
      max_decode_len: tokens that outputs may have.
    """

    name: str
    target: str
    draft: str
    text: str
    gamma: int
    rules: Sequence[Rule]
    samples: int
    max_decode_len: int
    batch_size: int

    def pieces(self) -> Iterator[Piece]:
        """Where each result stands, and what makes it or reads it there."""
        for rule in self.rules:
            index = slug(self.name), "rules", slug(str(rule))
            yield index, lambda directory, rule=rule: self._piece(directory, rule)

    def _piece(self, directory: Path, rule: Rule) -> dict[str, Any]:
        pair = load_pair(target=self.target, draft=self.draft)
        settings = {
            "target": self.target, "draft": self.draft, "text": self.text, "gamma": self.gamma,
            "rule": str(rule), "samples": self.samples,
            "max_decode_len": self.max_decode_len, "batch_size": self.batch_size,
        }  # fmt: skip
        return kept(directory / RESULT, pair, settings, lambda: self._measured(pair, rule))

    def _measured(self, pair: Pair, rule: Rule) -> dict[str, Any]:
        plain = Decoding(
            "autoregressive", rules=(rule,), sampling=SamplingConfig(1.0), seed=1,
            max_decode_len=self.max_decode_len,
        )  # fmt: skip
        chain = dataclasses.replace(plain, method="speculative", gamma=self.gamma, seed=2)
        ways = {
            "chain": chain,
            "apart": dataclasses.replace(chain, draft_follows_rules=False, seed=3),
            _WITHOUT: dataclasses.replace(plain, rules=(), seed=4),
        }
        expected = self._sample(pair, plain)
        return {
            "rule": str(rule), "samples": self.samples, "kinds": len(expected),
            "ways": {
                name: homogeneity(expected, self._sample(pair, how)) for name, how in ways.items()
            },
        }  # fmt: skip

    def _sample(self, pair: Pair, how: Decoding) -> Counter[tuple[int, ...]]:
        (ids,) = pair.token_ids([self.text], max_input_len=512)
        decoder, found = pair.decoder(how), Counter()
        for batch in make_batches([ids] * self.samples, self.batch_size, pair.target.model):
            result = decoder.decode(batch)
            for row, index in enumerate(batch.row_ids):
                if index >= 0:
                    found[tuple(result.tokens[row, : result.num_tokens[row]].tolist())] += 1
        return found


def homogeneity(
    first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]
) -> dict[str, float | int]:
    """The chi-square test that two samples of outputs are of one distribution, and of one size.

    Outputs that both together have fewer than ten of count as what they begin with, if there are
    ten of that, or else as what that begins with.

    Returns:
      the statistic, its degrees of freedom and its p-value.
    """
    kinds = first + second
    for size in range(max(map(len, kinds)), 0, -1):
        for rare in [k for k, count in kinds.items() if len(k) == size and count < _LEAST_COUNT]:
            kinds[rare[:-1]] += kinds.pop(rare)
    difference: Counter[tuple[int, ...]] = Counter()
    for sample, sign in ((first, 1), (second, -1)):
        for output, count in sample.items():
            kind = output
            while kind not in kinds:
                kind = kind[:-1]
            difference[kind] += sign * count
    statistic = sum(difference[kind] ** 2 / count for kind, count in kinds.items())
    freedom = len(kinds) - 1
    return {"statistic": statistic, "freedom": freedom, "p": float(chi2.sf(statistic, freedom))}
