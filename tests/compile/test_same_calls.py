"""The target's call on accelerators is the same in plain decoding, chains and trees.

So the same batch has the same logits in all of them, in 16 bits, too: what their compilers make of
a call has the same products and sums, of the same shapes, layouts and operands.
"""

import collections

import pytest
import small_decodes
from slow import slow
from small_decodes import one_chip

from specdec.compile import phases
from specdec.compile.hlo import parse

SUMS = {"dot", "convolution", "reduce", "reduce-window", "custom-call"}
# What comes behind the logits: the largest of each token, and comparisons of tokens.
BEHIND = {"s32", "pred"}
CALLS = [("v5e", 1, "tree"), slow("v4", 8, "chain"), slow("h100", 1, "chain")]
CALLS += [slow(chip, rows, "tree") for chip, rows in [("v6e", 8), ("h100", 8)]]


@pytest.mark.parametrize(("chip", "rows", "case"), CALLS)
def test_a_call_has_the_same_sums(chip, rows, case):
    plain = sums_of(chip, rows, "plain")
    assert plain.total() >= 8
    assert sums_of(chip, rows, case) == plain


def test_more_guesses_than_a_tile_are_another_call(monkeypatch):
    plain = sums_of("v5e", 1, "plain")
    monkeypatch.setattr(small_decodes, "GAMMA", 8)
    assert sums_of("v5e", 1, "chain") != plain


def sums_of(chip, rows, case):
    """How often the target's call has each sum: what is summed, and how it lies in memory."""
    place = one_chip(chip)
    decoder, params = small_decodes.decoder_of(place, case)
    program = small_decodes.compile_decode(place, decoder, params, batch_size=rows, input_len=16)
    (body,) = phases.decode_loop(parse(program.text)).calls("body")
    within = phases.phases_of(body)
    target = (each for each in body if within[each] == "target")
    return collections.Counter(
        sum_ for each in target for part in parts(each) if (sum_ := described(part))
    )


def parts(instruction):
    """It, and all instructions that it is made of or calls."""
    yield instruction
    for called in instruction.calls():
        for each in called:
            yield from parts(each)


def described(part):
    if part.opcode not in SUMS or part.target == "AssumeGatherIndicesInBound":
        return None
    if any(shape.dtype in BEHIND for shape in part.shapes):
        return None
    return (part.opcode, part.target, part.shapes, *(each.shapes for each in part.operands))
