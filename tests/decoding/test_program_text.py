"""What a compiled decode does, by its text: a step writes into its caches, and copies none."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, changed, prompt_of, random_params

from specdec.compile import hlo
from specdec.core import compilation
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.models import cache as kv
from specdec.models.transformer.model import TransformerModel
from specdec.types import SamplingConfig

GAMMA, LENGTH = 3, 64
# What gives an array that exists already another name.
NAMES = {"parameter", "get-tuple-element", "opt-barrier", "bitcast"}


def models():
    """A target and a draft, whose caches have shapes that nothing else has."""
    target = changed(TINY["v1.1"], num_heads=5, head_dim=16)
    draft = changed(TINY["v1.0"], num_heads=3, head_dim=16)
    return TransformerModel(target, "out_in"), TransformerModel(draft, "out_in")


def program(gamma, temperature):
    """The text of a decode of one row as users compile it, and its caches' shapes."""
    target, draft = models()
    sampling = SamplingConfig(temperature).traced()
    params = target.pack(random_params(target.config, 0))
    if gamma:
        drafter = DraftParams(draft.pack(random_params(draft.config, 1)), sampling)
        engine = Engine(target, ModelDrafter(draft, gamma))
    else:
        drafter, engine = (), Engine(target)
    prompt = prompt_of(target, np.arange(2, 9)[None])
    params = EngineParams(params, sampling, drafter)
    given = (prompt, jnp.arange(1), LENGTH, 0)
    start = functools.partial(engine.start, output_bucket=LENGTH)
    state = jax.eval_shape(start, params, *given)
    widths = {target.config.num_heads, *([draft.config.num_heads] if gamma else [])}
    caches = {a.shape for a in jax.tree.leaves(state) if a.ndim == 4 and a.shape[1] in widths}
    caches = {shape for shape in caches if shape[2] > LENGTH}
    assert len(caches) == len(widths)
    # A function of its own, for JAX keeps traces by function and a broken one is another.
    whole = jax.jit(
        lambda *args: decode.function(engine, *args, output_bucket=LENGTH),
        compiler_options=compilation.CPU_OPTIONS,
    )
    return parsed(whole.lower(params, *given).compile()), caches


def parsed(compiled):
    text = compiled.as_text()
    assert text is not None
    return hlo.parse(text)


def in_loops(module):
    """The computations that loops run, those of their fusions apart."""
    found, left = {}, [
        body for computation in module.computations.values() for each in computation
        if each.opcode == "while" for body in each.calls("body", "condition")
    ]  # fmt: skip
    while left:
        computation = left.pop()
        if computation.name not in found:
            found[computation.name] = computation
            left += [
                called for each in computation if each.opcode in ("call", "conditional")
                for called in each.calls()
            ]  # fmt: skip
    return list(found.values())


def updates(instruction):
    """Whether it sets a part of an array in place: the rest of it is not written."""
    if instruction.opcode == "dynamic-update-slice":
        return True
    if instruction.opcode != "fusion":
        return False
    (inside,) = instruction.calls("calls")
    root = inside.root
    while root.opcode == "bitcast":
        root = root.operands[0]
    if root.opcode != "dynamic-update-slice":
        return False
    whole = root.operands[0]
    while whole.opcode == "bitcast":
        whole = whole.operands[0]
    return whole.opcode == "parameter"


def writes(module, shapes):
    """Of instructions in loops that make an array of such a shape: updates, and all others."""
    sizes = {math.prod(shape) for shape in shapes}
    made = [
        each for computation in in_loops(module) for each in computation
        if each.opcode not in NAMES | {"tuple", "while", "call", "conditional"}
        and any(shape.size in sizes for shape in each.shapes)
    ]  # fmt: skip
    in_place = [each for each in made if updates(each)]
    return in_place, [each.name for each in made if each not in in_place]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [0, GAMMA])
def test_a_step_only_updates_its_caches(gamma, temperature):
    module, caches = program(gamma, temperature)
    in_place, others = writes(module, caches)
    assert in_place
    assert not others


def written_whole(entries, new, start):
    """Writes into a cache by choosing for each of its entries."""
    inside = jnp.arange(entries.shape[2]) - start[:, None]
    at = jnp.clip(inside, 0, new.shape[2] - 1)[:, None, :, None]
    taken = jnp.take_along_axis(new.astype(entries.dtype), at, axis=2)
    return jnp.where(((inside >= 0) & (inside < new.shape[2]))[:, None, :, None], taken, entries)


def test_a_write_of_a_whole_cache_is_seen(monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(kv, "write", written_whole)
    module, caches = program(0, 0.0)
    assert writes(module, caches)[1]
