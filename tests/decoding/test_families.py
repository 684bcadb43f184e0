"""Every kind of draft, tree and verifier with models of other families: plain decoding's tokens."""

import functools

import jax
import numpy as np
import pytest
from slow import slow
from tiny import EVERY, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.ngrams import save_ngrams
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.config import HeadsConfig
from specdec.training.ngrams import count_ngrams

# Seeds of which texts have different outputs.
FAMILIES = {"bart": 21, "marian": 21, "m2m_100": 15, "llama": 10, "t5gemma": 12, "t5gemma2": 21}
_generator = np.random.default_rng(0)
TEXTS = [_generator.integers(2, 18, size).tolist() for size in (1, 9, 3, 12, 6, 2)]
GREEDY = {"max_decode_len": 20, "batch_size": 6, "sampling": specdec.SamplingConfig(0.0)}
CHAIN, TREE = {"gamma": 3}, {"tree": (2, 1)}
BEST_FIRST = {"tree": specdec.Tree(nodes=4, depth=2, siblings=2)}


class Family:
    """A target and what drafts for it, on disk; the target's own greedy tokens."""

    def __init__(self, name, root):
        self.config, self.root, self.target = EVERY[name], root, root / "target"
        params = random_params(self.config, FAMILIES[name])
        self.params = jax.tree_util.tree_map_with_path(outweighing, params)
        save_huggingface(self.target, self.config, jax.device_get(self.params))
        near = jax.tree.map(lambda a: a * 1.02, self.params)
        save_huggingface(root / "draft", self.config, jax.device_get(near))

    @functools.cached_property
    def expected(self):
        pair = specdec.load_pair(target=self.target, draft=str(self.root / "draft"))
        tokens = pair.generate(TEXTS, method="autoregressive", **GREEDY).tokens
        return [row.tolist() for row in tokens]

    def heads(self, kind):
        """Random ones, on the target's states."""
        width, directory = self.config.d_model, self.root / kind
        if not directory.is_dir():
            encoder = getattr(self.config, "encoder", None)
            reads = encoder is not None or hasattr(self.config, "num_encoder_layers")
            shape = HeadsConfig("medusa", 3, width)
            if kind == "eagle":
                encoding = encoder.d_model if encoder else None
                shape = EagleConfig(width, 8, 2, 4, 16, reads, encoding)
            save_heads(directory, shape, init_params(shape, jax.random.key(0)), self.params)
        return specdec.Heads(str(directory))

    def draft(self, name):
        model, tables = str(self.root / "draft"), self.root / "ngrams.safetensors"
        if "n-gram" in name and not tables.is_file():
            start = getattr(self.config, "start_id", 0)
            save_ngrams(
                tables,
                count_ngrams(self.expected, self.config.vocab_size, order=2, start_id=start), None,
            )  # fmt: skip
        if name in ("medusa", "eagle"):
            return self.heads(name)
        return {
            "model": model, "4 bits": specdec.Quantized(bits=4, group=4),
            "8 bits of a draft": specdec.Quantized(of=model),
            "over copying": specdec.Hierarchical(model, specdec.Copying()),
            "8 bits over n-gram": specdec.Hierarchical(
                specdec.Quantized(), specdec.Ngram(str(tables))
            ),
            "merged": specdec.Merged((model, specdec.Copying())),
        }[name]  # fmt: skip


def outweighing(path, array):
    """Layers' outputs, several times as large, or else every token would predict itself."""
    return array + 4 if "post_" in jax.tree_util.keystr(path) else array


@pytest.fixture(scope="module")
def family_of(tmp_path_factory):
    return functools.cache(lambda name: Family(name, tmp_path_factory.mktemp(name)))


# tests/families.py has a model as the draft of each family, test_crosses.py other drafts of a T5.
CASES = [
    ("bart", "merged", TREE), ("marian", "medusa", TREE), ("t5gemma", "eagle", TREE),
    ("t5gemma2", "model", BEST_FIRST), ("m2m_100", "8 bits over n-gram", CHAIN),
    ("t5gemma2", "model", TREE | {"verifier": specdec.TraversalVerifier()}),
    slow("llama", "over copying", CHAIN), slow("marian", "4 bits", CHAIN),
    slow("t5gemma", "8 bits of a draft", CHAIN), slow("llama", "eagle", CHAIN),
    slow("bart", "model", CHAIN | {"verifier": specdec.BlockVerifier()}),
    slow("marian", "model", TREE | {"verifier": specdec.KSeqVerifier()}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "draft", "way"), CASES)
def test_drafts_and_verifiers(family_of, family, draft, way):
    """In a batch of texts of several lengths; and guesses something right."""
    tiny = family_of(family)
    assert len(set(map(tuple, tiny.expected))) > 3, "texts should differ"
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft(draft))
    out = pair.generate(TEXTS, **GREEDY | way)
    assert [row.tolist() for row in out.tokens] == tiny.expected
    assert out.stats.accepted > 0


@pytest.mark.parametrize(("family", "draft"), [("marian", "model"), slow("t5gemma2", "eagle")])
def test_targets_in_8_bits(family_of, family, draft):
    """Other tokens than in 32 bits, but the same with a draft as without."""
    tiny = family_of(family)
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft(draft), weights="int8")
    plain = pair.generate(TEXTS, method="autoregressive", **GREEDY)
    assert any(isinstance(leaf, jax.Array) and leaf.dtype == "int8"
               for leaf in jax.tree.leaves(pair.target.params))  # fmt: skip
    for way in (CHAIN, TREE):
        out = pair.generate(TEXTS, **GREEDY | way)
        assert [r.tolist() for r in out.tokens] == [r.tolist() for r in plain.tokens]
        assert out.stats.accepted > 0
