"""Small decodes as shapes, of every drafter, verifier and beam search."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from tiny import changed

from specdec.compile import chips
from specdec.compile.compiling import compile_decode
from specdec.compile.programs import Place
from specdec.compile.report import ProgramReport
from specdec.compile.shapes import shaped_decoder
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftParams, OpenDraft
from specdec.drafters.copying import Copying
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.hierarchical import Hierarchical
from specdec.drafters.merged import Merged
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.quantized import Quantized
from specdec.drafters.random import Random
from specdec.drafters.shape import Tree
from specdec.models.bart.config import BartConfig
from specdec.models.eagle import model as eagle
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.network import init_params
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.t5.config import T5Config
from specdec.testing.toys import dyadic_ngrams
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier

WIDTH = 128
# Widths are multiples of 128, as those of real models: else a TPU stores kernels transposed.
TARGET = T5Config(
    vocab_size=512, d_model=WIDTH, num_heads=2, head_dim=64, num_encoder_layers=1,
    num_decoder_layers=1, d_ff=256, tied_logits=False, dtype="bfloat16",
)  # fmt: skip
DRAFT = changed(TARGET, d_ff=128, tied_logits=True)
_COMMON = {"vocab_size": 512, "d_model": WIDTH, "num_heads": 2, "d_ff": 256, "dtype": "bfloat16"}
_BART = {"max_positions": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
_SHARED = {
    "d_model": WIDTH, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "num_layers": 2,
    "d_ff": 256, "activation": "gelu", "shifted_norms": True, "norms_after": True,
    "sliding": (True, False), "window": (8, 0),
}  # fmt: skip
_TARGETS = {
    "bart": BartConfig(**_COMMON, **_BART),
    "t5gemma": RotaryConfig(
        **_COMMON | _SHARED, attention_softcap=50.0, logits_softcap=30.0, scaled_embedding=True,
        encoder=Stack(**_SHARED, attention_softcap=50.0),
    ),
    "t5gemma2": RotaryConfig(
        **_COMMON | _SHARED, query_key_norms=True, scaled_embedding=True, merged_attention=True,
        encoder=Stack(**_SHARED, query_key_norms=True),
    ),
}  # fmt: skip
# Targets and drafts of other families than T5's.
FAMILIES = {name: (each, changed(each, d_ff=128)) for name, each in _TARGETS.items()}
GAMMA = 3
GREEDY, SAMPLED = SamplingConfig(0.0), SamplingConfig(1.0)
SHAPE = Tree((2, 1, 1))


class Eagle:
    """A layer on the target's states, with weights that have learned nothing."""

    def open(self, opening):
        config, model = EagleConfig(WIDTH, WIDTH, 2, 64, 128, True), opening.target.model
        layer = eagle.EagleModel(model, config)
        weights = layer.pack(init_params(config, jax.random.key(0)))
        params = eagle.EagleParams(weights, opening.target.params)
        return OpenDraft(
            lambda shape, catch_up: EagleDrafter(layer, shape.topology),
            lambda sampling: DraftParams(params, sampling.traced()), params,
        )  # fmt: skip


class Bigrams:
    """N-gram tables, of this vocabulary."""

    def open(self, opening):
        size = opening.target.model.vocab_size
        tables = dataclasses.replace(dyadic_ngrams(2), unigram=jnp.full(size, 1 / size))
        return OpenDraft(
            lambda shape, catch_up: NgramDrafter(shape.topology, 2),
            lambda sampling: DraftParams(tables, sampling.traced()), tables,
        )  # fmt: skip


# Of each case the draft, and what else the decoder is made with.
CASES = {
    "plain": (None, {}),
    "plain sampled": (None, {"sampling": SAMPLED}),
    "chain": (DRAFT, {}),
    "chain sampled": (DRAFT, {"sampling": SAMPLED}),
    "cut off": (DRAFT, {"sampling": SamplingConfig(1.0, 20, 0.9)}),
    "stopping": (DRAFT, {"stop_below": 0.3}),
    "block": (DRAFT, {"sampling": SAMPLED, "verifier": BlockVerifier()}),
    "lenient": (DRAFT, {"verifier": LenientVerifier(0.5)}),
    "tree": (DRAFT, {"tree": SHAPE}),
    "tree sampled": (DRAFT, {"tree": SHAPE, "sampling": SAMPLED}),
    "traversal": (DRAFT, {"tree": SHAPE, "sampling": SAMPLED, "verifier": TraversalVerifier()}),
    "k-seq": (
        DRAFT,
        {
            "tree": Tree((2, 1), independent=True),
            "sampling": SAMPLED,
            "verifier": KSeqVerifier(),
        },
    ),
    "typical": (DRAFT, {"tree": SHAPE, "sampling": SAMPLED, "verifier": TypicalVerifier()}),
    "best first": (DRAFT, {"tree": Tree(nodes=4, depth=2, siblings=2)}),
    "point masses": (Copying(), {"tree": SHAPE, "verifier": PointMassVerifier()}),
    "merged": (Merged((Copying(), Random())), {"tree": Tree((1, 1)), "sampling": SAMPLED}),
    "copying": (Copying(), {}),
    "random": (Random(), {"sampling": SAMPLED}),
    "bigrams": (Bigrams(), {"sampling": SAMPLED}),
    "int8": (Quantized(8), {}),
    "int4": (Quantized(4), {}),
    "hierarchical": (Hierarchical(Quantized(8), Copying()), {}),
    "eagle": (Eagle(), {}),
    "beams": (None, {"method": "beam", "beam": BeamConfig(2)}),
    "speculative beams": (
        DRAFT,
        {"method": "speculative_beam", "gamma": 2, "beam": BeamConfig(2), "draft_beams": 2},
    ),
}  # fmt: skip


def decoder_of(place, name, target=TARGET, other=None):
    """The case's decoder and shapes for this place; its models as ``target`` and ``other`` say."""
    draft, options = CASES[name]
    if draft is DRAFT and other is not None:
        draft = other

    decoding = Decoding(max_decode_len=16, **options)
    if draft is None:
        decoding = decoding.with_shape(None)
    elif decoding.tree is None and decoding.gamma is None:
        decoding = dataclasses.replace(decoding, gamma=GAMMA)
    with place.tracing():
        return shaped_decoder(target, draft, decoding, partitionings=(place.target, place.draft))


def report_of(place, name, batch_size=1, family=None):
    """What the compiler of a place's chip says of a case, of T5s or of another family."""
    target, draft = (TARGET, None) if family is None else FAMILIES[family]
    decoder, params = decoder_of(place, name, target, draft)
    program = compile_decode(place, decoder, params, batch_size=batch_size, input_len=16)
    depth = 0 if CASES[name][0] is None else GAMMA
    return ProgramReport.of(program, place.where.chip, depth)


def one_chip(name):
    return Place(chips.find(name))


def devices_of(place):
    """The chips of a place's mesh, as it has them: [data, model]."""
    assert isinstance(place.whole, NamedSharding)
    assert isinstance(place.whole.mesh, Mesh)
    return place.whole.mesh.devices
