"""Runs with tiny GPTs and a byte-level BPE: resumed, timed, chosen for; and what is refused."""

import json
import re

import jax
import pytest
from tiny import TINY, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.measure.rows import LineWriter
from specdec.models.gpt.config import GPTConfig
from tests.runs.conftest import TinyPair
from tests.runs.decoding import main, read, without_time

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
    texts = [" ".join(words[i % 7 : i % 7 + 1 + i * i % 9]) for i in range(24)]
    (pair.root / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    files = {"target": pair.target, "draft": pair.draft, "texts": pair.root / "texts.txt"}
    pair.gin.write_text(GIN.format(**{name: str(path) for name, path in files.items()}))
    return pair


@pytest.fixture(scope="module")
def whole(gpt, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    assert main(gpt, directory) == 0
    return directory


class Killed(BaseException):
    """As sudden as can be in one process."""


@pytest.mark.parametrize("batches", [0, 5])
def test_a_killed_run_goes_on(gpt, whole, tmp_path, monkeypatch, batches):
    append, written = LineWriter.append, []

    def until(self, *lines):
        if len(written) == batches:
            self._file.write(lines[0].encode()[:-7])  # An incomplete line.
            self._file.flush()
            raise Killed
        written.append(lines)
        return append(self, *lines)

    with monkeypatch.context() as killing:
        killing.setattr(LineWriter, "append", until)
        with pytest.raises(Killed):
            main(gpt, tmp_path)
    begun = (tmp_path / "decodes.jsonl").read_bytes()
    assert begun.count(b"\n") == 2 * batches
    assert main(gpt, tmp_path) == 0
    for name in ("decodes.jsonl", "trace.html"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()
    assert without_time(read(tmp_path)[0]) == without_time(read(whole)[0])


def test_rows_are_those_of_generate(gpt, whole):
    """In the file's order; a text is the prompt, and its output what follows."""
    pair = specdec.load_pair(target=gpt.target, draft=gpt.draft)
    texts = (gpt.root / "texts.txt").read_text().splitlines()
    options = {"gamma": 2, "max_decode_len": 12, "sampling": specdec.SamplingConfig(1.0)}
    out = pair.generate(texts, **options)
    rows = sorted(read(whole)[1], key=lambda row: row["id"])
    assert [row["tokens"] for row in rows] == [tokens.tolist() for tokens in out.tokens]
    assert [row["output"] for row in rows] == out.texts
    assert [row["input"] for row in rows] == texts


@pytest.mark.slow
def test_the_time_of_both_methods_is_printed(gpt, tmp_path, capsys):
    """As the experiment with GPT-2 XL prints it, which the tests have no weights for."""
    settings = ("TEMPERATURE=0.0", "NUM_EXAMPLES=3", "TIMING_EXAMPLES=2")
    assert main(gpt, tmp_path, *settings) == 0
    results, _ = read(tmp_path)
    assert results["greedy_mismatches"] == 0
    assert set(results["ms_per_token"]) == {"autoregressive", "speculative"}
    assert results["measured_speedup"] > 0
    output = capsys.readouterr().out
    for method, values in results["spread"]["ms_per_token"].items():
        assert re.search(rf"per token, {method} +{values['median']:.3f} ", output), output


@pytest.mark.slow
@pytest.mark.parametrize("what", ["gamma", pytest.param("tree", marks=pytest.mark.slow)])
def test_gamma_and_trees_are_chosen(gpt, what):
    pair = specdec.load_pair(target=gpt.target, draft=gpt.draft)
    texts = (gpt.root / "texts.txt").read_text().splitlines()[:3]
    out = pair.generate(texts, **{what: "auto"}, max_decode_len=5)
    plain = pair.generate(texts, method="autoregressive", max_decode_len=5)
    assert [row.tolist() for row in out.tokens] == [row.tolist() for row in plain.tokens]
    assert 0 <= out.choice.levels < 5
    assert str(out.choice)
    again = pair.generate(texts, **{what: "auto"}, max_decode_len=5)
    assert again.choice == out.choice  # Remembered, not measured again.


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


def test_a_vocabulary_of_another_size(gpt, tmp_path, capsys):
    config = GPTConfig(
        vocab_size=280, max_positions=64, d_model=16, num_layers=1, num_heads=2, d_ff=16,
        eos_id=0, start_id=0, pad_id=0,
    )  # fmt: skip
    params = jax.device_get(random_params(config, 0))
    save_huggingface(tmp_path / "draft", config, params)
    line = refused(gpt, capsys, tmp_path, f"DRAFT={str(tmp_path / 'draft')!r}")
    assert "Target and draft have different vocabularies: vocab_size is 300 for the target" in line
    assert "280 for the draft" in line


def test_models_of_two_kinds(gpt, tmp_path, capsys):
    save_huggingface(tmp_path / "t5", TINY["v1.1"], jax.device_get(random_params(TINY["v1.1"], 0)))
    t5 = f"{str(tmp_path / 't5')!r}"
    line = refused(gpt, capsys, tmp_path, f"DRAFT={t5}")
    assert f"({gpt.target}) is decoder-only, the draft ({tmp_path / 't5'}) an encoder-dec" in line
    line = refused(gpt, capsys, tmp_path, f"TARGET={t5}")
    assert "is an encoder-decoder, the draft" in line
    assert "Choose a draft of the target's kind" in line


@pytest.mark.parametrize(
    ("model_type", "shown"), [("bert", "'bert'"), ("mamba", "'mamba'"), (None, "None")]
)
def test_another_architecture(gpt, tmp_path, capsys, model_type, shown):
    save_gpt(tmp_path / "target", 0, gpt.root / "tokenizer.json")
    path = tmp_path / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": model_type}))
    line = refused(gpt, capsys, tmp_path, f"TARGET={str(tmp_path / 'target')!r}")
    assert f"model_type is {shown}. Checkpoints that can be loaded are" in line
    assert "gpt2 (DistilGPT2)" in line


@pytest.mark.slow
def test_an_encoder_alone(gpt, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    shape = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    encoder = transformers.T5EncoderModel(transformers.T5Config(**shape, num_heads=2))
    encoder.save_pretrained(tmp_path / "encoder")
    for role in ("TARGET", "DRAFT"):
        line = refused(gpt, capsys, tmp_path, f"{role}={str(tmp_path / 'encoder')!r}")
        assert (
            f"{tmp_path / 'encoder'} has no decoder, only an encoder, which cannot generate" in line
        )
        assert "Load a checkpoint with both" in line
