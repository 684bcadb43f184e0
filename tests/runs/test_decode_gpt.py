"""Runs with tiny GPTs and a byte-level BPE: what is decoded, and what is refused."""

import json

import jax
import pytest
from tiny import random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.models.gpt.config import GPTConfig
from tests.runs.conftest import TinyPair
from tests.runs.decoding import main, read

tokenizers = pytest.importorskip("tokenizers")

CONFIG = GPTConfig(
    vocab_size=300, max_positions=64, d_model=16, num_layers=1, num_heads=2, d_ff=16, eos_id=0,
    start_id=0, pad_id=0,
)  # fmt: skip
LINE = "the quick brown fox jumps over the lazy dog and sees a cat"
GIN = """
include "configs/runs/decode.gin"
include "configs/methods/speculative.gin"
include "configs/sampling/temp1.gin"
TARGET = {target!r}
DRAFT = {draft!r}
TASK = @text_file()
text_file.path = {texts!r}
GAMMA = 2
BATCH_SIZE = 2
MAX_DECODE_LEN = 12
MAX_INPUT_LEN = 48
TIMING_EXAMPLES = 0
TIMING_REPETITIONS = 2
"""


def write_tokenizer(path, lines, kept="<|endoftext|>"):
    """A byte-level BPE of 290 tokens, the first of which ends a text."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(lines * 20, vocab_size=290, special_tokens=[kept])
    trained.save(str(path))


def save_gpt(directory, seed, tokenizer):
    """Draft and target share most of their weights, so that some guesses are accepted."""
    params, noise = (random_params(CONFIG, each) for each in (7, 8))
    params = jax.tree.map(lambda a, b: a + 0.1 * seed * b, params, noise)
    save_huggingface(directory, CONFIG, jax.device_get(params), tokenizer)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    pair = TinyPair(tmp_path_factory.mktemp("gpt"))
    tokenizer = pair.root / "tokenizer.json"
    write_tokenizer(tokenizer, [LINE])
    for seed, directory in enumerate((pair.target, pair.draft)):
        save_gpt(directory, seed, tokenizer)
    words = LINE.split()
    texts = [" ".join(words[i % 7 : i % 7 + 1 + i * i % 9]) for i in range(9)]
    (pair.root / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    files = {"target": pair.target, "draft": pair.draft, "texts": pair.root / "texts.txt"}
    pair.gin.write_text(GIN.format(**{name: str(path) for name, path in files.items()}))
    return pair


def test_rows_are_those_of_generate(gpt, tmp_path):
    """In the file's order; a text is the prompt, and its output what follows."""
    assert main(gpt, tmp_path) == 0
    pair = specdec.load_pair(target=gpt.target, draft=gpt.draft)
    texts = (gpt.root / "texts.txt").read_text().splitlines()
    options = {"gamma": 2, "max_decode_len": 12, "sampling": specdec.SamplingConfig(1.0)}
    out = pair.generate(texts, **options)
    rows = sorted(read(tmp_path)[1], key=lambda row: row["id"])
    assert [row["tokens"] for row in rows] == [tokens.tolist() for tokens in out.tokens]
    assert [row["output"] for row in rows] == out.texts
    assert [row["input"] for row in rows] == texts


def refused(gpt, capsys, tmp_path, *bindings):
    """The one line on stderr of a run that ends before anything is written."""
    capsys.readouterr()
    assert main(gpt, tmp_path / "out", *bindings) == 2
    assert not (tmp_path / "out").exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_no_room_for_prompt_and_output(gpt, tmp_path, capsys):
    line = refused(gpt, capsys, tmp_path, "MAX_DECODE_LEN=60")
    assert "texts.txt:" in line
    assert "with max_decode_len = 60 that is more than the model's 64 positions" in line
    line = refused(gpt, capsys, tmp_path, "PREFIX='The'")
    assert "This model is decoder-only: its text itself is the prefix" in line


def test_a_tokenizer_that_is_another_or_missing(gpt, tmp_path, capsys):
    """Of another size; of the same size, with other tokens; and none for strings."""
    other = tmp_path / "tokenizer.json"
    write_tokenizer(other, ["Completely different letters make other merges of zebras."])
    save_gpt(tmp_path / "draft", 1, other)
    assert json.loads(other.read_text()) != json.loads((gpt.root / other.name).read_text())
    line = refused(gpt, capsys, tmp_path, f"DRAFT={str(tmp_path / 'draft')!r}")
    assert "Target and draft have different vocabularies" in line
    assert str(tmp_path / "draft" / "tokenizer.json") in line

    (tmp_path / "draft" / "tokenizer.json").unlink()
    bare = str(tmp_path / "draft")
    line = refused(gpt, capsys, tmp_path, f"TARGET={bare!r}", f"DRAFT={bare!r}")
    assert "is a string, but this pair has no vocabulary (no spiece.model, tokenizer.json" in line
