"""Whisper's rule for timestamps: transformers' own masks, the exact oracle, and what it refuses."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rule_references as ref
from oracle_cases import CAUGHT, CONTEXTS, LOSSLESS, PROMPT
from oracle_rules import off_by

import specdec
from specdec.core.pytrees import pytree, static_field
from specdec.core.topology import Topology
from specdec.decoding.beam import BeamLoop
from specdec.decoding.beam_blocks import BeamEngine
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.engine import Engine
from specdec.decoding.loop import decode
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.toy import ToyModel
from specdec.rules import base
from specdec.rules.base import RuleTarget
from specdec.rules.timestamps import _Timestamps
from specdec.testing.oracle import model_distribution
from specdec.types import Prompt
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier

# As transformers' processor has them: text, EOS, other special tokens, no timestamps, timestamps.
SIZE, END, NONE, FIRST = 32, 9, 13, 14
ROWS, LENGTH = 40, 50


@pytest.mark.parametrize("most_initial", [None, 4])
def test_the_masks_of_transformers(most_initial):
    """Behind 2,000 tokens: half of the rows follow the rule, half have any here and there."""
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    options = SimpleNamespace(
        no_timestamps_token_id=NONE, eos_token_id=END, bos_token_id=None,
        max_initial_timestamp_index=most_initial,
    )  # fmt: skip
    theirs = processors.WhisperTimeStampLogitsProcessor(options, begin_index=1)
    target = RuleTarget(SIZE, (END,), False, LENGTH)
    rules = (specdec.Timestamps(FIRST, NONE, most_initial).open(target),)
    prefix, ones = np.zeros((ROWS, 1), np.int32), np.ones(ROWS, np.int32)
    states = base.start(rules, Prompt(prefix, ones, prefix, ones), LENGTH, LENGTH)
    allowed, advanced = jax.jit(base.allowed), jax.jit(base.advanced)

    generator, output = np.random.default_rng(0), prefix
    decided = np.zeros(2, int)  # By the timestamps together, or not.
    for _ in range(LENGTH):
        logits = generator.normal(0, 2, (ROWS, SIZE)).astype(np.float32)
        expected = theirs(torch.tensor(output), torch.tensor(logits)).numpy()
        np.testing.assert_array_equal(allowed(rules, states, logits), expected)
        finite = np.isfinite(expected)
        text, times = finite[:, :FIRST].any(1), finite[:, FIRST:].any(1)
        decided += (times & ~text).sum(), (times & text).sum()
        tokens = np.argmax(expected + generator.gumbel(size=expected.shape), axis=1)
        anything = (np.arange(ROWS) >= ROWS // 2) & (generator.random(ROWS) < 0.3)
        tokens = np.where(anything, generator.integers(0, SIZE, ROWS), tokens).astype(np.int32)
        states = advanced(rules, states, tokens)
        output = np.concatenate([output, tokens[:, None]], axis=1)
    assert decided.min() > 100


# A toy's tokens: text, EOS, no timestamps, 0.00 and 0.02.
TOY, LIMIT = ToyModel(5), 4
RULES = (specdec.Timestamps(3, 2).open(RuleTarget(5, TOY.eos_ids, False, LIMIT)),)
REFERENCE = ref.timestamps(3, 2)


def table(*rows, seed):
    """Logits [C, 5] of one of these distributions in each context, drawn at random."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(rows) / np.sum(rows, axis=1, keepdims=True))
    chosen = np.random.default_rng(seed).integers(len(rows), size=CONTEXTS)
    return jnp.asarray(np.maximum(logits, -1e9)[chosen], jnp.float32)


TARGET = table((3, 1, 0, 0, 0), (1, 1, 2, 2, 2), seed=8)
DRAFT = table((1, 0, 0, 1, 0), (0, 1, 0, 0, 1), seed=1)
CHAIN, PAIR, FORK = ModelDrafter(TOY, 2), Topology.branching((2,)), Topology.branching((1, 2))
WAYS = {
    "chain": (CHAIN, TokenVerifier()),
    "block": (CHAIN, BlockVerifier()),
    "siblings": (ModelTreeDrafter(TOY, PAIR), RecursiveVerifier()),
    "tree": (ModelTreeDrafter(TOY, FORK, True), RecursiveVerifier()),
    "traversal": (ModelTreeDrafter(TOY, FORK, True), TraversalVerifier()),
}


def off(drafter, verifier, rules=RULES, *, follows=True):
    return off_by(
        rules, REFERENCE, Engine(TOY, drafter, verifier), follows=follows, target=TARGET,
        draft=DRAFT, limit=LIMIT,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_it_is_lossless(way):
    """Whether the draft follows it, too, or not; if it did, these two would have many cells."""
    assert off(*WAYS[way], follows=way not in ("block", "traversal")) < LOSSLESS


@pytree
class OtherStates(_Timestamps):
    """The rule by states that are broken first."""

    broken: Callable = static_field()

    def allow(self, state, logits):
        return super().allow(self.broken(state), logits)


@pytree
class NoMass(_Timestamps):
    """The rule but for timestamps that are likelier together."""

    def allow(self, state, logits):
        rare = jnp.where(jnp.arange(len(logits)) >= self.first, -1e3, logits)
        return jnp.where(super().allow(state, rare) > -jnp.inf, logits, -jnp.inf)


def _broken(**changes):
    def broken(state):
        return dataclasses.replace(
            state, **{name: change(state) for name, change in changes.items()}
        )

    return OtherStates(3, 2, 1, 4, broken)


MUTANTS = {
    "the mass is ignored": NoMass(3, 2, 1, 4),
    "no pairs": _broken(last=lambda state: state.last & state.before),
    "text at first": _broken(begun=lambda state: jnp.ones((), bool)),
    "they decrease": _broken(latest=lambda state: jnp.int32(3)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant):
    assert off(CHAIN, TokenVerifier(), (MUTANTS[mutant],), follows=False) > CAUGHT


def test_beams_as_many_as_there_are_outputs():
    """All outputs that the rule allows, and no other, with log p of the model's own."""
    target = table((6, 3, 1, 1, 1), (1, 1, 2, 1, 3), seed=8)
    config = BeamConfig(64, "huggingface", length_penalty=0.0)
    loop = BeamLoop(BeamEngine(TOY, config.num_beams))
    traced = config.traced(16, RULES)
    result = decode(loop, (traced, target, ()), PROMPT, np.arange(2), LIMIT, 0, output_bucket=16)
    expected = model_distribution(TOY, target, PROMPT, np.exp, limit=LIMIT, adjust=REFERENCE)
    assert expected[0] != expected[1]
    for row, outputs in enumerate(expected):
        found = {
            tuple(tokens[:count].tolist()): float(np.exp(score))
            for tokens, count, score in zip(
                *map(np.asarray, (result.tokens[row], result.num_tokens[row], result.scores[row])),
                strict=True,
            )
            if count
        }
        assert found == pytest.approx(outputs, abs=1e-6)
        assert len(found) > 5


@pytest.mark.parametrize(
    ("rule", "target", "words"),
    [
        (specdec.Timestamps(3, 2), RuleTarget(5, (), False, 8), "needs a model with EOS"),
        (specdec.Timestamps(5, 2), RuleTarget(5, (1,), False, 8), "token 5, which is outside"),
    ],
)
def test_what_cannot_be_opened(rule, target, words):
    with pytest.raises(ValueError, match=words):
        rule.open(target)


def test_no_timestamps_is_said_before_the_first():
    with pytest.raises(ValueError, match="none must be less than first = 3, got 9"):
        specdec.Timestamps(3, 9)
