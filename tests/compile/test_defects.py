"""Each defect that findings count, planted once: it is found where it is, and nowhere else."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from small_decodes import one_chip, report_of

from specdec.compile import chips, findings, hlo
from specdec.compile.programs import Place, compile_program

NONE = {
    "weight_copy_bytes": 0, "weight_widened_bytes": 0, "row_loops": 0,
    "one_token_vector_products": 0, "stacked_copies": 0, "sorts": 0,
}  # fmt: skip
KERNEL = (128, 256)
KERNEL_BYTES = 2 * 128 * 256


def shape(*size, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(size, dtype)


def kernel(*size):
    return shape(*size, dtype=jnp.bfloat16)


def decode(step, kernel, tokens):
    """Nine steps, from whole numbers: kernels are all that is given in other ones."""
    start = 0, tokens.astype(jnp.bfloat16)
    return jax.lax.while_loop(
        lambda carry: carry[0] < 9, lambda carry: (carry[0] + 1, step(kernel, *carry)), start
    )


def product(kernel, i, x):
    return jnp.tanh(x @ kernel)[..., : x.shape[-1]] + x


def precise(kernel, i, x):
    made = jnp.matmul(x, kernel, precision="highest")
    return made[..., : x.shape[-1]].astype(x.dtype) + x


def clean(kernel, tokens):
    return decode(product, kernel, tokens)


def stacked(kernel, tokens):
    """Two kernels [D, F] as one [D, 2, F]."""

    def step(kernel, i, x):
        made = jnp.einsum("btd,dnf->btnf", x, kernel)
        return jnp.tanh(made[:, :, 0] * made[:, :, 1])[..., : x.shape[-1]] + x

    return decode(step, kernel, tokens)


def copied(kernel, tokens):
    return decode(product, jax.lax.optimization_barrier(kernel.T), tokens)


def widened(kernel, tokens):
    wide = jax.lax.optimization_barrier(kernel.astype(jnp.float32))
    return decode(precise, wide, tokens)


def row_by_row(kernel, tokens):
    """Writes into a batch's rows, each at its own place."""

    def step(kernel, i, x):
        places = jnp.arange(len(x)) * i
        new = jnp.tanh(x[:, :1])
        return jax.vmap(lambda row, one, at: jax.lax.dynamic_update_slice(row, one, (at, 0)))(
            x, new, places
        )

    return decode(step, kernel, tokens)


def sorted_rows(kernel, tokens):
    return decode(lambda kernel, i, x: jnp.sort(x, axis=-1) + 1, kernel, tokens)


TOKENS = shape(8, 8, 128)
PLANTED = {
    "nothing": (clean, kernel(*KERNEL), TOKENS, {}),
    "stacked": (
        stacked, kernel(128, 2, 256), TOKENS,
        {"weight_copy_bytes": 2 * KERNEL_BYTES, "stacked_copies": 1},
    ),
    "copied": (copied, kernel(256, 128), TOKENS, {"weight_copy_bytes": KERNEL_BYTES}),
    "widened": (widened, kernel(*KERNEL), TOKENS, {"weight_widened_bytes": 2 * KERNEL_BYTES}),
    "row by row": (row_by_row, kernel(*KERNEL), shape(8, 64, 128), {"row_loops": 1}),
    "one token": (clean, kernel(*KERNEL), shape(1, 1, 128), {"one_token_vector_products": 1}),
    "sorted": (sorted_rows, kernel(*KERNEL), TOKENS, {"sorts": 1}),
}  # fmt: skip
# The GPU's compiler makes no defect of these two.
HARMLESS = {("h100", "stacked"), ("h100", "row by row")}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("chip", ["v5e", "h100"])
def test_each_is_found_alone(chip, name):
    function, weight, tokens, expected = PLANTED[name]
    program = compile_program(one_chip(chip), function, weight, tokens, options={})
    found = dataclasses.asdict(findings.find(hlo.parse(program.text)))
    assert found == NONE | ({} if (chip, name) in HARMLESS else expected)


def test_calls_of_one_token_in_a_decode():
    """Without filler: as decodes were before calls had whole tiles."""
    where = chips.find("v4")
    alone = dataclasses.replace(where.chip.platform, tile=1, tile_rows=0)
    place = Place(dataclasses.replace(where, chip=dataclasses.replace(where.chip, platform=alone)))
    found = report_of(place, "plain").findings
    # Queries, keys and values, their output, the same of cross-attention, wi, wo and logits.
    assert found.one_token_vector_products >= 6


def test_a_loop_that_is_no_graph():
    """By default each pass of a loop is launched by the host."""
    program = compile_program(one_chip("h100"), clean, kernel(*KERNEL), TOKENS, options={})
    assert program.thunks.loops_outside == 1
    kinds = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION,WHILE"
    options = {"xla_gpu_enable_command_buffer": kinds, "xla_gpu_graph_min_graph_size": 1}
    whole = compile_program(one_chip("h100"), clean, kernel(*KERNEL), TOKENS, options=options)
    assert (whole.thunks.graphs, whole.thunks.loops_outside) == (1, 0)
    assert whole.thunks.kernels == program.thunks.kernels


def test_what_only_the_cpu_can_do_is_no_program():
    with pytest.raises(NotImplementedError, match="platform_index"):
        compile_program(
            one_chip("v5e"), lambda x: jax.lax.platform_dependent(x, cpu=jnp.tanh), TOKENS
        )
