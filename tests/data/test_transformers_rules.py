"""Which file beside a vocabulary wins: ids and texts of transformers for all their combinations."""

import itertools
import json
import shutil
import warnings

import pytest
import sentencepiece
from small_vocabularies import train_pieces

from specdec.checkpoints import find_vocabulary
from specdec.text.opening import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs the extra [test]")
tokenizers = pytest.importorskip("tokenizers")

LINES = [
    "The quick brown fox jumps over the lazy dog and sees a cat.",
    "Grüße, naïve café! = 5",
] * 30
TEXTS = [
    "a<=5", "The fox", " the dog\n\njumps", "naïve 日本 🙂", "", " ", " \n ", "  two  spaces ",
    "a</s>b <pad> c <unk>", "<extra_id_0>. The", "x <extra_id_1>y<extra_id_99> z", "<s> <mask> x",
    "\x00a\x1f\x7f\x9b\u202eb", "e\u0301 ﬁ ½ Ⅷ \u0301x", "\t tab\r\nnl ", "שלום עולם مرحبا",
    "👨‍👩‍👧‍👦 🏳️‍🌈", "fox" * 500, "<new>x <new> y<new>", "foo<strip> bar <strip>baz <strip>",
    "word single words singles single", "ＦＵＬＬ Ｆｕｌｌ Full full xFullx", "▁a ▁▁b", "<0x41>",
    "\ufeffbom\u00a0nb\u3000id\u2028ls\u200b", "<new><strip><=5>>", "don't , . ! ? 's", "İ ǅ ß",
    "<|endoftext|> a<|endoftext|>",
]  # fmt: skip
FLAGS = {
    "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False,
}  # fmt: skip
ADDED = {
    "<": {}, "<strip>": {"lstrip": True, "rstrip": True}, "single": {"single_word": True},
    "Full": {}, "<new>": {"special": True, "normalized": False},
}  # fmt: skip
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
PIECES = 44


def write_json(path, value):
    path.write_text(json.dumps(value))


def decoder(first, sentinels=()):
    """``added_tokens_decoder`` of ADDED from id ``first`` on, after sentinels."""
    listed = [(name, {"special": True, "normalized": False}) for name in reversed(sentinels)]
    told = enumerate([*listed, *ADDED.items()], start=first - len(listed))
    return {str(i): FLAGS | {"content": name} | flags for i, (name, flags) in told}


def add(tokenizer, directory):
    """Writes tokenizer.json with ADDED in it."""
    for name, flags in ADDED.items():
        tokenizer.add_tokens(tokenizers.AddedToken(name, **(FLAGS | flags)))
    tokenizer.save_pretrained(directory)


def check(directory):
    """Differences from transformers, as texts; None where transformers refuses the files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(directory)
        except ValueError:
            return None
        ours = open_tokenizer(find_vocabulary(directory), 10**4)
        assert len(ours) >= len(theirs)
        wrong = [
            text
            for text in TEXTS
            if ours.encode(text) != theirs(text, add_special_tokens=False).input_ids
        ]
        for text in TEXTS:
            ids = theirs(text).input_ids
            kept = [i for i in ids if i not in ours._no_text]
            found = ours.encode(text, add_eos=True)
            if found not in (ids, [*ids, ours.eos_id]) or found[-1] != ours.eos_id:
                wrong.append(text)
            if ours.decode(ids) != theirs.decode(kept):
                wrong.append(text)
    return wrong


def tried(tmp_path, model_type, sources, configs, maps, added):
    """Checks all combinations of files; how many transformers takes."""
    taken = 0
    for files, config, names, ids in itertools.product(sources, configs, maps, (None, added)):
        directory = tmp_path / "tried"
        directory.mkdir()
        write_json(directory / "config.json", {"model_type": model_type})
        for file in files:
            shutil.copy(file, directory)
        for name, content in (
            ("tokenizer_config.json", config), ("special_tokens_map.json", names),
            ("added_tokens.json", ids),
        ):  # fmt: skip
            if content is not None:
                write_json(directory / name, content)
        wrong = check(directory)
        assert not wrong, (files, config, names, ids, wrong)
        taken += wrong is not None
        shutil.rmtree(directory)
    return taken


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    directory = tmp_path_factory.mktemp("spiece")
    train_pieces(directory, LINES, PIECES)
    add(transformers.T5Tokenizer.from_pretrained(directory), directory / "added")
    transformers.T5Tokenizer.from_pretrained(directory).save_pretrained(directory / "plain")
    return directory


OWN = {"tokenizer_class": "T5Tokenizer"}
NAMED = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
T5_CONFIGS = [
    None,
    OWN | NAMED | {"extra_ids": 100, "additional_special_tokens": SENTINELS, "legacy": False},
    OWN | {"added_tokens_decoder": decoder(PIECES + 100, SENTINELS), "legacy": True},
    {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": SENTINELS} | NAMED,
    OWN | {"image_token": "<image>", "extra_special_tokens": {"own": "<own>"}, "pad_token": None},
    OWN | {"clean_up_tokenization_spaces": True, "split_special_tokens": True},
]
T5_MAPS = [
    None,
    NAMED | {"additional_special_tokens": SENTINELS},
    {"eos_token": FLAGS | {"content": "</s>", "rstrip": True}, "mask_token": "<mask>"},
]


@pytest.mark.parametrize("model_type", ["t5", "mt5", pytest.param("umt5", marks=pytest.mark.slow)])
def test_t5(spiece, tmp_path, model_type):
    pieces, *saved = (spiece / name for name in ("spiece.model", "plain/tokenizer.json"))
    sources = [[pieces], *[[file] for file in saved], [pieces, spiece / "added/tokenizer.json"]]
    added = {name: PIECES + 100 + i for i, name in enumerate(ADDED)}
    count = tried(tmp_path, model_type, sources, T5_CONFIGS, T5_MAPS, added)
    assert count >= (102 if model_type != "umt5" else 72)


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "RobertaTokenizer"])
def test_byte_level_bpe(tmp_path, kind):
    special = ["<|endoftext|>"] if kind == "GPT2Tokenizer" else ["<s>", "</s>", "<pad>", "<unk>"]
    special += [] if kind == "GPT2Tokenizer" else ["<mask>"]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=300, special_tokens=special, show_progress=False)
    trained.save_model(str(tmp_path))
    files = [tmp_path / "vocab.json", tmp_path / "merges.txt"]
    size = len(json.loads(files[0].read_text()))
    both = dict(zip(("vocab", "merges"), map(str, files), strict=True))
    add(getattr(transformers, kind)(**both, add_prefix_space=True), tmp_path / "added")
    own = {"tokenizer_class": kind}
    configs = [
        own,
        own | {"add_prefix_space": True},
        own | {"add_bos_token": True, "add_eos_token": True, "tokenizer_class": f"{kind}Fast"},
        own | {"added_tokens_decoder": decoder(size + 1), "clean_up_tokenization_spaces": True},
        own | {"additional_special_tokens": ["<new>", "single"], "pad_token": "<pad>"},
        own | {"bos_token": None, "add_bos_token": True, "split_special_tokens": True},
    ]
    # GPT-2 has "<" among its bytes; added tokens begin behind what is not.
    added = {name: size + i for i, name in enumerate(name for name in ADDED if name != "<")}
    configs[3]["added_tokens_decoder"] = {
        key: value for key, value in decoder(size - 1).items() if value["content"] != "<"
    }
    maps = [
        None,
        {"eos_token": special[0], "mask_token": FLAGS | {"content": special[-1], "lstrip": True}},
        {"pad_token": "Full", "additional_special_tokens": ["<new>"]},
    ]
    sources = [
        files,
        [tmp_path / "added/tokenizer.json"],
        [*files, tmp_path / "added/tokenizer.json"],
    ]
    model_type = "gpt2" if kind == "GPT2Tokenizer" else "t5"
    assert tried(tmp_path, model_type, sources, configs, maps, added) >= 90


def test_byt5(tmp_path):
    sentinels = [f"<extra_id_{i}>" for i in range(125)]
    own = {"tokenizer_class": "ByT5Tokenizer"}
    told = decoder(259) | {"264": FLAGS | {"content": "é"}}
    configs = [
        own,
        own | {"extra_ids": 0},
        own | {"additional_special_tokens": sentinels, "extra_ids": 125},
        own | {"added_tokens_decoder": told, "extra_ids": 0},
        own | {"extra_special_tokens": ["<new>", "x"], "clean_up_tokenization_spaces": True},
        own | {"split_special_tokens": True, "pad_token": "<p>"},
    ]
    maps = [None, {"eos_token": FLAGS | {"content": "</s>", "rstrip": True}, "bos_token": "<s>"}]
    assert tried(tmp_path, "t5", [[]], configs, maps, {"<new>": 259, "Full": 260}) >= 24


def test_tokenizer_json_wins_over_spiece_model(spiece, tmp_path):
    """Of two different vocabularies, transformers takes tokenizer.json's."""
    other = tmp_path / "other"
    other.mkdir()
    with open(other / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, vocab_size=PIECES - 2,
            model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
        )  # fmt: skip
    write_json(other / "config.json", {"model_type": "t5"})
    alone = open_tokenizer(find_vocabulary(other)).encode(LINES[0])
    shutil.copy(spiece / "plain/tokenizer.json", other)
    assert check(other) == []
    assert open_tokenizer(find_vocabulary(other)).encode(LINES[0]) != alone
