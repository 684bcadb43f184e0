"""What real sizes take, by the compilers: ceilings that every defect that was mended broke.

Before: a draft step of T5-small was 0.67 M cycles on a v4 and 172 kernels on an H100, a plain step
of T5-large 502 kernels, one of T5-XXL on a v4 6.8 times as long as its bytes take.
"""

import pytest

from specdec import compile_report
from specdec.models.t5.config import T5Config

SIZES = {"small": (512, 6, 8, 1024), "xxl": (4096, 64, 24, 10240)}


def shape(size):
    width, heads, layers, d_ff = SIZES[size]
    return T5Config(
        vocab_size=32128, d_model=width, num_heads=heads, head_dim=64, num_encoder_layers=layers,
        num_decoder_layers=layers, d_ff=d_ff, activation="gelu", gated=True, tied_logits=False,
    )  # fmt: skip


def report(chip, target, draft=None, **options):
    return compile_report(shape(target), draft and shape(draft), chip=chip, **options)


def check_clean(found):
    for program in filter(None, (found.plain, found.speculative)):
        assert program.findings.weight_copy_bytes == program.findings.weight_widened_bytes == 0
        assert program.findings.row_loops == program.findings.one_token_vector_products == 0
        assert program.findings.stacked_copies == 0


def test_a_small_draft_on_a_tpu():
    found = report("v4", "small", "small", gamma=7)
    check_clean(found)
    assert found.speculative.draft_step.cycles < 0.2e6


def test_a_small_draft_on_a_gpu():
    found = report("h100", "small", "small", gamma=7)
    check_clean(found)
    assert found.speculative.draft_step.kernels <= 90
    thunks = found.speculative.program.thunks
    assert (thunks.graphs, thunks.loops_outside) == (1, 0)
    assert found.plain.program.thunks.graphs == 1


@pytest.mark.slow
def test_xxl_with_a_small_draft():
    found = report("v4", "xxl", "small", gamma=7)
    check_clean(found)
    assert found.speculative.program.temporary_bytes < 0.3e9
    assert found.speculative.draft_step.cycles < 0.3e6
    assert found.verify_ratio < 1.05
    assert found.speedup_at["0.75"] > 2.9
