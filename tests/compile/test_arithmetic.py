"""What is promised of arithmetic on accelerators, read in the compiled programs.

Plain decoding and blocks of up to seven guesses do products of the same sizes, so that greedy
tokens do not depend on gamma; float32 means products of all bits, bfloat16 one pass of the matrix
unit.
"""

import dataclasses
from collections import Counter

import pytest
from small_decodes import TARGET

from specdec.compile import chips, hlo, phases
from specdec.compile.compiling import compile_decode
from specdec.compile.programs import Place
from specdec.compile.shapes import shaped_decoder
from specdec.core import platforms
from specdec.decoding.options import Decoding
from specdec.drafters.shape import Chain


def compiled(gamma, dtype="bfloat16", platform=platforms.TPU):
    """The module of plain decoding (gamma 0) or of a chain; a draft of the target's own size."""
    where, config = chips.find("v4"), dataclasses.replace(TARGET, dtype=dtype)
    chip = dataclasses.replace(where.chip, platform=platform)
    place = Place(dataclasses.replace(where, chip=chip))

    decoding = Decoding(max_decode_len=16).with_shape(Chain(gamma) if gamma else None)
    with place.tracing():
        shaped = shaped_decoder(config, config if gamma else None, decoding)
    program = compile_decode(place, *shaped, batch_size=1, input_len=16)
    return hlo.parse(program.text)


def products(module):
    """Of the target's call: (sizes of result and operands, precision) of each product."""
    found = Counter()
    for instruction in phases.within(phases.decode_loop(module)):
        if "/target/" in instruction.op_name:
            found.update(_products_in(instruction))
    return found


def _products_in(instruction):
    if instruction.opcode in ("convolution", "dot"):
        sizes = [each.shapes[0].dims for each in (instruction, *instruction.operands)]
        yield tuple(sizes), "{highest,highest}" in instruction.rest
    if instruction.opcode == "fusion":
        for inside in instruction.calls("calls"):
            for each in inside:
                yield from _products_in(each)


def test_products_are_of_one_size_whatever_gamma():
    plain = products(compiled(0))
    assert sum(plain.values()) >= 9  # A layer's eight, the logits.
    for gamma in (1, 7):
        assert products(compiled(gamma)) == plain
    assert products(compiled(8)) != plain  # Nine tokens are two tiles.


def test_without_tiles_products_differ():
    """The test above can fail."""
    bare = dataclasses.replace(platforms.TPU, tile=1)
    assert products(compiled(0, platform=bare)) != products(compiled(3, platform=bare))


@pytest.mark.parametrize(("dtype", "exact"), [("float32", True), ("bfloat16", False)])
def test_precision_is_what_the_dtype_says(dtype, exact):
    found = products(compiled(3, dtype))
    assert found
    assert {precise for _, precise in found} == {exact}
