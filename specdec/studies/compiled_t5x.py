"""T5X's own decode compiled for chips that are not there: what its start and its steps cost.

T5X is a checkout of google-research/t5x, imported where it is needed only. All numbers are
estimates of the TPU compiler's, none is measured. A step's products have one token; the compiler
prices those about three times too high, so each step is also given with the prices that the same
products have with :data:`TOKENS` tokens.

Shapes: B batch, S input length, L output length.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec.checkpoints.architectures import EncoderDecoder
from specdec.compile import hlo
from specdec.compile.chips import Slice, find
from specdec.compile.flow import Flow
from specdec.compile.phases import decode_loop
from specdec.compile.programs import DoesNotFitError, Place, compile_program
from specdec.compile.report import Part, ProgramReport
from specdec.measure.tables import table
from specdec.studies.benchmarks.systems.t5x import import_t5x

# T5X's networks: the package of each below t5x.examples, and what its configuration has besides.
# The scanned one has what T5X's own recipes set; without scan T5X does not decode with that policy.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "minimal": ("t5", {}),
    "scalable": ("scalable_t5", {"scan_layers": False}),
    "scanned": ("scalable_t5", {"scan_layers": True, "remat_policy": "minimal"}),
}

TOKENS = 8  # A product of so many is on the matrix unit, where its price is plausible.
_DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}  # By HLO's names.
# Products of kernels by T5X's names; those of attention are named by their axes.
_NAMES = r"query|key|value|out|wi|wi_\d+|wo|logits_dense|token_embedder(\.attend)?"
_KERNEL = re.compile(rf"/({_NAMES})/dot_general$")


def import_models(path: str | None, network: str):
    """T5X's ``decoding``, its ``models`` and a network.

    Raises:
      ImportError: there is no checkout at that path, or a package that T5X imports is missing.
      ValueError: there is no such network.
    """
    if network not in NETWORKS:
        raise ValueError(f"T5X has no network {network!r}; there are {', '.join(NETWORKS)}.")
    decoding, _ = import_t5x(path)
    name = "t5x.optimizers"  # It needs a package that is on no index, and decoding needs none.
    stand_in = types.ModuleType(name)
    stand_in.OptimizerDefType = Any  # pyright: ignore[reportAttributeAccessIssue]
    known = sys.modules.setdefault(name, stand_in)
    try:
        models = importlib.import_module("t5x.models")
    finally:
        if known is stand_in:
            del sys.modules[name]
    return decoding, models, importlib.import_module(f"t5x.examples.{NETWORKS[network][0]}.network")


def t5x_decode(
    path: str | None, config: EncoderDecoder, network: str, *, batch_size: int = 1,
    input_len: int = 64, max_decode_len: int = 128, param_dtype: str = "bfloat16",
):  # fmt: skip
    """T5X's greedy decode of one batch, and the shapes of its arguments (parameters, batch).

    It is ``EncoderDecoderModel.predict_batch`` with ``temperature_sample`` at temperature 0, the
    cheapest greedy decoding that T5X has.

    Args:
      config: its ``dtype`` is that of activations.
      param_dtype: of parameters; ``t5x/configs/runs/infer.gin`` restores them in bfloat16.

    Raises:
      ImportError, ValueError: see :func:`import_models`.
    """
    decoding, models, package = import_models(path, network)
    import seqio  # What T5X's models are given; no other part of this module needs it.

    module = package.Transformer(
        package.T5Config(
            vocab_size=config.vocab_size, dtype=config.dtype, emb_dim=config.d_model,
            num_heads=config.num_heads, num_encoder_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers, head_dim=config.head_dim,
            mlp_dim=config.d_ff, dropout_rate=0.0,
            mlp_activations=(config.activation, "linear") if config.gated else (config.activation,),
            logits_via_embedding=config.tied_logits, **NETWORKS[network][1],
        )
    )  # fmt: skip
    vocabulary = seqio.PassThroughVocabulary(config.vocab_size, eos_id=config.eos_id)
    greedy = functools.partial(decoding.temperature_sample, temperature=0.0, topk=1)
    model = models.EncoderDecoderModel(
        module, vocabulary, vocabulary, optimizer_def=None, decode_fn=greedy
    )
    shapes = {
        "encoder_input_tokens": (batch_size, input_len),
        "decoder_input_tokens": (batch_size, max_decode_len),
    }
    made = jax.eval_shape(lambda: model.get_initial_variables(jax.random.key(0), shapes))
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(param_dtype)), made["params"]
    )
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}

    return model.predict_batch, (params, batch)


@dataclasses.dataclass(frozen=True)
class Product:
    """A kernel's, of some tokens with I numbers each."""

    inner: int  # I
    outer: int  # Of a token's result.
    dtype: str  # Of the kernel, as it is read; HLO's name.

    @property
    def bytes(self) -> int:
        """Of the kernel."""
        return self.inner * self.outer * hlo.Shape(self.dtype, ()).bits // 8


@dataclasses.dataclass(frozen=True)
class OneToken:
    """Products of one token that stand in one operation on the vector unit.

    Attributes:
      cycles: the compiler's for one time.
      times: how often a step does it.
    """

    products: tuple[Product, ...]
    cycles: int
    times: int


def one_token_products(module: hlo.Module) -> list[OneToken]:
    """Those of a step of T5X's decode loop.

    Raises ValueError if the program has no loop.
    """
    (body,) = module.called(decode_loop(module), "body")
    return list(_found(Flow(module), body, 1))


def _found(flow: Flow, computation: hlo.Computation, times: int) -> Iterator[OneToken]:
    module = flow.module
    for instruction in computation:
        if instruction.opcode == "while":
            trips = flow.trips(computation, instruction) or 1
            for inside in module.called(instruction, "body"):
                yield from _found(flow, inside, times * trips)
        elif instruction.opcode == "fusion":
            (inside,) = module.called(instruction, "calls")
            if products := tuple(_products(inside)):
                yield OneToken(products, instruction.cycles, times)


def _products(inside: hlo.Computation) -> Iterator[Product]:
    """A product of one token is multiplied element by element and summed."""
    for each in inside:
        if each.opcode == "reduce" and _KERNEL.search(each.op_name):
            summed, result = inside.instructions[each.operands[0]].shapes[0].size, each.shapes[0]
            kernel = _read(inside, each.operands[0], summed)
            yield Product(summed // result.size, result.size, kernel)


def _read(inside: hlo.Computation, name: str, size: int) -> str:
    """The type in which a fusion reads the array of this size that a sum is of."""
    made = inside.instructions[name]
    (shape, *_) = made.shapes
    if made.opcode == "broadcast" or shape.size < size:
        return ""
    found = (_read(inside, operand, size) for operand in made.operands)
    return next((dtype for dtype in found if dtype), "" if made.operands else shape.dtype)


@functools.cache
def price(product: Product, where: Slice) -> int:
    """Cycles of the same product of :data:`TOKENS` tokens, compiled by itself.

    Never fewer than reading the kernel takes: a kernel that fits on the chip is fetched ahead,
    which has no price, and then this is all it costs. That favours T5X a little.
    """
    dtype = _DTYPES[product.dtype]
    shapes = (TOKENS, product.inner), (product.inner, product.outer)
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    module = hlo.parse(compile_program(Place(where), jnp.matmul, *args, options={}).text)
    return max(sum(each.cycles for each in module.entry), _reading(product.bytes, where))


def _reading(size: int, where: Slice) -> int:
    """Cycles in which a chip can read so many bytes."""
    chip = where.chip
    assert chip.clock is not None
    return round(size / chip.hardware.bandwidth * chip.clock)


def report(
    path: str | None, config: EncoderDecoder, network: str, chip: str, **lengths: Any
) -> dict[str, Any]:
    """T5X's decode on one chip, for a results file.

    Args:
      chip: a TPU, as :mod:`specdec.compile.chips` names it.
      lengths: as :func:`t5x_decode` has them.

    Returns:
      Of a program that does not fit only ``fits`` and why. ``start`` and ``step`` have the
      compiler's ``cycles``, the ``bytes`` of main memory and ``ms``. ``step`` also has
      ``lower_cycles`` and ``lower_ms``, with its one-token products at the lower price. No time
      is below that of its bytes. ``findings`` are :mod:`specdec.compile.findings`'s.

    Raises:
      ImportError, ValueError: see :func:`import_models`, and as ``specdec.compile`` does.
    """
    where = find(chip)
    if where.chip.clock is None:
        raise ValueError(f"The compiler for {chip} estimates no cycles; give a TPU.")
    function, shapes = t5x_decode(path, config, network, **lengths)
    try:
        program = compile_program(Place(where), function, *shapes, options={})
    except DoesNotFitError as error:
        return {"fits": False, "why": str(error)}
    found = ProgramReport.of(program, where.chip)
    products = one_token_products(hlo.parse(program.text))
    saved = sum(
        each.times * max(0, each.cycles - sum(price(product, where) for product in each.products))
        for each in products
    )
    assert found.block.cycles is not None
    lower = found.block.cycles - saved
    reading = found.block.bytes / where.chip.hardware.bandwidth
    step = {
        "lower_cycles": lower, "lower_ms": 1e3 * max(lower / where.chip.clock, reading),
        "one_token_products": sum(each.times * len(each.products) for each in products),
        "one_token_cycles": sum(each.times * each.cycles for each in products),
        "one_token_bytes": sum(
            each.times * product.bytes for each in products for product in each.products
        ),
    }  # fmt: skip
    return {
        "fits": True, "argument_bytes": program.argument_bytes,
        "temporary_bytes": program.temporary_bytes, "compile_seconds": program.seconds,
        "start": _part(found.start), "step": _part(found.block) | step,
        "findings": dataclasses.asdict(found.findings),
    }  # fmt: skip


def _part(part: Part) -> dict[str, Any]:
    return {"cycles": part.cycles, "bytes": part.bytes, "ms": part.ms}


def page(content: Mapping[str, Any]) -> str:
    """A table of reports, by chip, target and network, as a results file has them."""
    rows = [
        {"chip": chip, "target": target, "network": network, **found}
        for chip, targets in content.items()
        for target, networks in targets.items()
        for network, found in networks.items()
    ]

    def if_fits(form: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda row: form(row) if row["fits"] else "–"

    columns: list[tuple[str, str | Callable[[Any], str]]] = [
        ("chip, target", "{chip}, {target}"),
        ("network", "{network}"),
        ("arguments + temporaries, GiB", _memory),
        ("start, M cycles", if_fits(lambda row: _millions(row["start"]["cycles"]))),
        ("weights written once more, GB", if_fits(_restated)),
        ("step, M cycles", if_fits(lambda row: _millions(row["step"]["cycles"]))),
        ("ms", if_fits("{step[ms]:.2f}".format_map)),
        ("at the lower price", if_fits(lambda row: _millions(row["step"]["lower_cycles"]))),
        ("ms", if_fits("{step[lower_ms]:.2f}".format_map)),
    ]
    return table(columns, rows, numbers=True)


def _millions(cycles: int) -> str:
    return f"{cycles / 1e6:.2f}"


def _memory(row: Mapping[str, Any]) -> str:
    if not row["fits"]:
        return "does not fit"
    return f"{row['argument_bytes'] / 2**30:.1f} + {row['temporary_bytes'] / 2**30:.1f}"


def _restated(row: Mapping[str, Any]) -> str:
    found = row["findings"]
    return f"{(found['weight_copy_bytes'] + found['weight_widened_bytes']) / 1e9:.2f}"
