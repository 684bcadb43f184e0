"""Programs: how many a process keeps, and that accelerators can be compiled for without one."""

import dataclasses
import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow import slow
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.core import compilation, platforms
from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.drafters.base import DraftParams, chain
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.random import RandomDrafter
from specdec.models.toy import ToyModel
from specdec.models.transformer.model import TransformerModel
from specdec.testing.toys import dyadic_ngrams
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier

MAPS = Path("/proc/self/maps")
SAMPLED = SamplingConfig(1.0)


def num_maps():
    return MAPS.read_text().count("\n")


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="memory maps are counted on Linux")
def test_a_sweep_of_200_settings_in_one_process(monkeypatch):
    """New temperatures, top-k and top-p compile nothing; of new gammas the last programs stay."""
    monkeypatch.setattr(compilation, "MAX_PROGRAMS", 2)
    model = ToyModel(7)
    table, other = (jax.random.normal(jax.random.key(seed), (31, 7)) for seed in (0, 1))
    prompt = model.prompt(np.arange(12).reshape(6, 2), np.full(6, 2))
    settings = itertools.product(
        range(1, 6), np.linspace(0.1, 2, 10), ((0, 1.0), (3, 1.0), (0, 0.8), (4, 0.9))
    )
    maps, before, count = [], compilation.num_programs(), 0
    for gamma, temperature, (top_k, top_p) in settings:
        sampling = SamplingConfig(float(temperature), top_k, top_p).traced()
        params = EngineParams(table, sampling, DraftParams(other, sampling))
        engine = Engine(model, ModelDrafter(model, gamma))
        decode(engine, params, prompt, np.arange(6), 12, 0, output_bucket=12)
        maps.append(num_maps())
        count += 1
    assert count == 200
    assert compilation.num_programs() == before + 5
    assert sum(jitted._cache_size() for jitted in compilation._kept.values()) <= 2
    # A program of a toy takes a few hundred maps. 2 are kept from 80 settings on.
    early, last = max(maps[80:120]), max(maps[180:])
    assert last < early + 200, maps[::20]


DRAFTERS = (
    "none", "model", "stopping", "hierarchical", "ngram", "copying", "random", "tree",
    "best-first tree",
)  # fmt: skip
TREE = Topology.branching((2, 1))


def engine_of(name, verifier):
    """A tiny T5 as an accelerator packs it, with each kind of drafter."""
    target, draft = (TransformerModel(TINY[variant], "in_out") for variant in ("v1.1", "v1.0"))
    weights, sampling = draft.pack(random_params(TINY["v1.0"], 1)), SAMPLED.traced()
    tables = dataclasses.replace(dyadic_ngrams(2), unigram=jnp.full(19, 1 / 19))
    sampled, counted = DraftParams(weights, sampling), DraftParams(tables, sampling)
    drafter, params = {
        "none": (None, ()),
        "model": (ModelDrafter(draft, 3), sampled),
        "stopping": (ModelDrafter(draft, 3, 0.3), sampled),
        "hierarchical": (HierarchicalDrafter(draft, CopyingDrafter(chain(2)), 2), (sampled, ())),
        "ngram": (NgramDrafter(chain(2), 2), counted),
        "copying": (CopyingDrafter(chain(3)), ()),
        "random": (RandomDrafter(chain(2), target.vocab_size), ()),
        "tree": (ModelTreeDrafter(draft, TREE), sampled),
        "independent tree": (ModelTreeDrafter(draft, TREE, independent=True), sampled),
        "best-first tree": (BestFirstDrafter(draft, 4, 2, 2), sampled),
    }[name]
    packed = target.pack(random_params(TINY["v1.1"], 0))
    return Engine(target, drafter, verifier), EngineParams(packed, sampling, params)


def verifier_of(name):
    """The default of chains and of trees."""
    return RecursiveVerifier() if "tree" in name else TokenVerifier()


def exported(engine, params, greedy):
    """The decode's program for TPUs and CUDA devices, traced as there."""
    sampling = SamplingConfig(0.0 if greedy else 1.0).traced()
    params = EngineParams(params.target, sampling, params.drafter)
    inputs = ragged_inputs(2, 7, 19)
    # A function of its own, for JAX keeps traces by function and these are not the CPU's.
    program = jax.jit(lambda *args: decode.function(engine, *args, output_bucket=16, trace=True))
    return jax.export.export(program, platforms=("tpu", "cuda"))(
        params, prompt_of(engine.target, inputs), jnp.arange(2), 12, 0
    )


@pytest.fixture
def accelerator():
    """What is decided by the platform while tracing is decided as on a TPU."""
    with platforms.compiling_for(platforms.TPU):
        yield


QUICKLY = ("stopping", "hierarchical", "copying", "tree", "best-first tree")


@pytest.mark.parametrize(
    ("name", "verifier", "greedy"),
    [
        *((name, verifier_of(name), False) for name in QUICKLY),
        *(slow(name, verifier_of(name), False) for name in DRAFTERS if name not in QUICKLY),
        ("none", verifier_of("none"), True),
        slow("model", verifier_of("model"), True),
        slow("tree", verifier_of("tree"), True),
        ("tree", TraversalVerifier(), False),
        ("model", BlockVerifier(), False),
        slow("tree", TypicalVerifier(), False),
        slow("independent tree", KSeqVerifier(), False),
        slow("model", LenientVerifier(0.5), True),
        slow("model", LenientVerifier(0.5), False),
    ],
)
def test_every_decode_lowers_for_accelerators(accelerator, name, verifier, greedy):
    program = exported(*engine_of(name, verifier), greedy)
    assert program.platforms == ("tpu", "cuda")
    assert "stablehlo.while" in program.mlir_module()


def test_what_only_the_cpu_can_do_does_not_lower(accelerator):
    """The test above can fail: it would find such a part."""

    class OnlyCpu(TransformerModel):
        def logits(self, params, hidden):
            parent = functools.partial(super().logits, params)
            return jax.lax.platform_dependent(hidden, cpu=parent)

    engine, params = engine_of("none", TokenVerifier())
    broken = Engine(OnlyCpu(engine.target.config, "in_out"))
    with pytest.raises(NotImplementedError, match="platform_index"):
        exported(broken, params, False)
