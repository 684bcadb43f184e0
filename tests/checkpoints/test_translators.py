"""Translators from text to text, with languages: transformers' own outputs, plain and guessed."""

import dataclasses
import functools
import json
import warnings

import jax
import pytest
from small_vocabularies import (
    train_model,
    write_json,
    write_m2m100,
    write_marian,
    write_nllb,
)
from tiny import TINY_ROTARY, random_params

import specdec
from specdec.checkpoints import load_huggingface, save_huggingface
from specdec.rules.positions import ForcedFirst
from specdec.runs import main
from specdec.runs.command_line import Given
from tests.runs.conftest import GIN
from tests.runs.decoding import ROOT, read

TEXTS = ["The quick brown fox.", "Grüße, naïve  café!", "a", "日本 The dog sees\na cat 🙂"]
LIMIT = 10
GREEDY = {"max_decode_len": LIMIT, "sampling": specdec.SamplingConfig(0.0), "batch_size": 3}
SMALL = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 48, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
FAMILIES = ("nllb", "mbart", "marian")  # M2M100 is below; mBART-50 is as NLLB.
LANGUAGES = {
    "nllb": ("eng_Latn", "fra_Latn"), "m2m100": ("de", "en"), "mbart50": ("en_XX", "sl_SI"),
    "mbart": ("ro_RO", "en_XX"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(torch, tmp_path_factory):
    """A function of a family: transformers' model and tokenizer, its directory and a draft's."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    @functools.cache
    def made(family):
        one, other = (tmp_path_factory.mktemp(family) for _ in range(2))
        model = _write(transformers, torch, family, one, 0)
        _write(transformers, torch, family, other, 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
            options = {"src_lang": LANGUAGES[family][0]} if family in LANGUAGES else {}
            tokenizer = transformers.AutoTokenizer.from_pretrained(one, **options)
        return model, tokenizer, one, other

    return made


def _write(transformers, torch, family, directory, seed):
    kind, more = "M2M100ForConditionalGeneration", {}
    if family == "nllb":
        size = write_nllb(transformers, directory)
    elif family == "m2m100":
        size = write_m2m100(directory)
    elif family.startswith("mbart"):
        kind = "MBartForConditionalGeneration"
        name = "MBartTokenizer" if family == "mbart" else "MBart50Tokenizer"
        train_model(directory / "sentencepiece.bpe.model")
        write_json(directory / "tokenizer_config.json", {"tokenizer_class": name})
        size = len(getattr(transformers, name).from_pretrained(directory))
    else:
        kind, size = "MarianMTModel", write_marian(directory, apart=True)
        ids = json.loads((directory / "target_vocab.json").read_text())
        more = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), ids["<pad>"])
        more |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(ids)}
        more |= {"eos_token_id": 0}
    model_kind = getattr(transformers, kind)
    model = model_kind(model_kind.config_class(**SMALL | {"vocab_size": size} | more)).eval()
    generator = torch.Generator().manual_seed(7)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.ndim == 2 and "embed_positions" not in path:
                table = any(part in path for part in ("embed", "shared", "lm_head"))
                std = 2.5 * 16**-0.5 if table else 3 * weight.shape[1] ** -0.5
                weight.normal_(std=std, generator=generator)
                weight += seed * 0.1 * std * torch.randn(weight.shape, generator=noise)
    # Outputs are of pieces, and not of one again and again.
    model.generation_config.no_repeat_ngram_size = 2
    if family == "marian":
        model.generation_config.bad_words_ids = [[model.config.pad_token_id]]
    else:
        model.config.save_pretrained(directory)
        kept = _kept(transformers, family, directory)
        model.generation_config.suppress_tokens = [i for i in range(size) if i not in kept]
    model.save_pretrained(directory)
    return model


def _kept(transformers, family, directory):
    """Ids of pieces, of EOS and of the languages' codes that are asked for."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, src_lang=LANGUAGES[family][0])
    names = [f"__{code}__" if family == "m2m100" else code for code in LANGUAGES[family]]
    asked = set(tokenizer.convert_tokens_to_ids(names))
    return asked | {2} | (set(range(len(tokenizer))) - set(tokenizer.all_special_ids) - {3})


def _theirs(torch, model, tokenizer, texts, **options):
    """Ids and texts of transformers' greedy outputs, without what stands before and behind them."""
    ids, found = [], []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            (row,) = model.generate(**inputs, do_sample=False, max_new_tokens=LIMIT, **options)
        ids.append(row[1:].tolist())
        found.append(tokenizer.decode(row[1:], skip_special_tokens=True))
    return ids, found


def _languages(family, tokenizer):
    """Our options and transformers' for a family's outputs."""
    if family not in LANGUAGES:
        return {}, {}
    source, target = LANGUAGES[family]
    token = f"__{target}__" if family == "m2m100" else target
    option = "decoder_start_token_id" if family == "mbart" else "forced_bos_token_id"
    ours = {"source_language": source, "target_language": target}
    return ours, {option: tokenizer.convert_tokens_to_ids(token)}


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_transformers(torch, made, family):
    """With a draft of the family: the language's token is an id, and no text."""
    model, tokenizer, directory, near = made(family)
    ours, theirs = _languages(family, tokenizer)
    texts = [*TEXTS, ">>fra<< The dog"] if family == "marian" else TEXTS
    ids, expected = _theirs(torch, model, tokenizer, texts, **theirs)
    assert len(set(expected)) > 2
    pair = specdec.load_pair(target=directory, draft=near, **ours)
    out = pair.generate(texts, gamma=3, **GREEDY)
    assert [row.tolist() for row in out.tokens] == ids
    assert out.texts == expected
    assert 0 < out.stats.accepted < out.stats.proposed
    if "forced_bos_token_id" in theirs:
        assert {row[0] for row in ids} == set(theirs.values())


def test_beams_begin_with_the_language(torch, made):
    model, tokenizer, directory, near = made("nllb")
    ours, theirs = _languages("nllb", tokenizer)
    _, expected = _theirs(torch, model, tokenizer, TEXTS, num_beams=3, **theirs)
    pair = specdec.load_pair(target=directory, draft=near, **ours)
    beam = specdec.BeamConfig(3, rule="huggingface")
    out = pair.generate(TEXTS, method="speculative_beam", beam=beam, max_decode_len=LIMIT, gamma=2)
    assert out.texts == expected


def test_other_rules_and_a_prefix_keep_the_language(made):
    _, tokenizer, directory, _ = made("nllb")
    ours, theirs = _languages("nllb", tokenizer)
    (code,) = theirs.values()
    pair = specdec.load_pair(target=directory, draft=specdec.Copying(), **ours)
    out = pair.generate(TEXTS, rules=(specdec.MinNewTokens(4),), gamma=2, **GREEDY)
    assert all(row[0] == code and len(row) >= 4 for row in out.tokens)
    given = [code, *pair.vocabulary.encode("The dog")]
    tokens = [prefix.tolist() for prefix in pair.prefix_ids("The dog", 1, max_input_len=9)]
    assert tokens == [given]


def test_ids_are_cut_but_not_what_stands_behind_them(made):
    _, tokenizer, directory, _ = made("mbart")
    pair = specdec.load_pair(
        target=directory, draft=specdec.Copying(), **_languages("mbart", tokenizer)[0]
    )
    (cut,) = pair.token_ids(TEXTS[:1], max_input_len=6, truncate=True)
    assert cut.tolist() == tokenizer(TEXTS[0], truncation=True, max_length=6).input_ids
    assert cut.tolist()[-2:] == [2, tokenizer.convert_tokens_to_ids("ro_RO")]


@pytest.mark.parametrize("where", ["tokenizer_config", "generation_config", "start"])
def test_languages_that_files_tell(made, tmp_path, where):
    """Options are not needed then, and come before them."""
    family = "mbart" if where == "start" else "mbart50"
    _, tokenizer, directory, _ = made(family)
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def tell(name, **values):
        path = tmp_path / f"{name}.json"
        write_json(path, json.loads(path.read_text()) | values)

    tell("tokenizer_config", src_lang="de_DE")
    code = tokenizer.convert_tokens_to_ids("fi_FI")
    if where == "tokenizer_config":
        tell(where, tgt_lang="fi_FI")
    elif where == "generation_config":
        tell(where, forced_bos_token_id=code, suppress_tokens=None)  # It is among these.
    else:
        tell("generation_config", decoder_start_token_id=code)
        tell("config", decoder_start_token_id=code)

    def assert_begins(pair, code):
        start = pair.target.model.config.start_id
        assert (pair.target.first_token, start) == ((None, code) if where == "start" else (code, 2))

    told = specdec.load_pair(target=tmp_path, draft=specdec.Copying())
    assert_begins(told, code)
    assert not any(isinstance(rule, ForcedFirst) for rule in told.target.rules)
    assert tokenizer.convert_tokens_to_ids("de_DE") in told.vocabulary.encode("a", add_eos=True)
    other = specdec.load_pair(
        target=tmp_path, draft=specdec.Copying(), source_language="en_XX", target_language="ro_RO"
    )
    assert_begins(other, tokenizer.convert_tokens_to_ids("ro_RO"))
    assert other.vocabulary.encode("a", add_eos=True) != told.vocabulary.encode("a", add_eos=True)


def test_languages_of_a_t5():
    with pytest.raises(ValueError, match=r"source_language = 'en', but the vocabulary has no lang"):
        specdec.load_pair("quickstart", source_language="en")


def test_a_run_with_languages(torch, made, tmp_path, capsys):
    """Its texts are transformers'; a missing language ends it before anything is decoded."""
    model, tokenizer, directory, near = made("m2m100")
    ours, theirs = _languages("m2m100", tokenizer)
    texts = ["The quick brown fox.", "a cat"]
    data = "".join(f"{text}\tGrüße\n" for text in texts)
    (tmp_path / "test.tsv").write_text(data, encoding="utf-8")
    path = tmp_path / "run.gin"
    path.write_text(GIN.format(target=str(directory), draft=str(near), data=str(tmp_path)))
    source, target = (f"{name.upper()} = {code!r}" for name, code in ours.items())
    limits = f"MAX_DECODE_LEN = {LIMIT}", "MAX_INPUT_LEN = 32"

    def decode(name, *bindings):
        return main.decode(Given([str(path)], bindings, str(tmp_path / name), "test"), ROOT)

    assert decode("out", source, target, *limits) == 0
    _, rows = read(tmp_path / "out")
    ids, expected = _theirs(torch, model, tokenizer, texts, **theirs)
    assert {row["id"]: row["tokens"] for row in rows} == dict(enumerate(ids))
    assert sorted(row["output"] for row in rows) == sorted(expected)
    assert decode("none", source, *limits) == 2
    assert "target_language is missing" in capsys.readouterr().err


def test_images_are_refused(tmp_path):
    """T5Gemma 2's tokens of them, as its files tell; a copy keeps that."""
    config = dataclasses.replace(TINY_ROTARY["t5gemma2"], image_ids=(5, 6, 7))
    params = jax.device_get(random_params(config, 0))
    for name in ("one", "two"):
        save_huggingface(tmp_path / name, config, params)
        config, params = load_huggingface(tmp_path / name)
        assert config.image_ids == (5, 6, 7)
    raw = json.loads((tmp_path / "one/config.json").read_text())
    assert raw["image_token_index"] == 5
    assert [raw["encoder"][f"{name}_token_index"] for name in ("boi", "eoi")] == [6, 7]
    pair = specdec.load_pair(target=tmp_path / "one", draft=specdec.Copying())
    for token in (5, 6, 7):
        with pytest.raises(ValueError, match=f"^text 1 has token {token}, which stands for an"):
            pair.generate([[3], [4, token]], gamma=1, max_decode_len=2)
