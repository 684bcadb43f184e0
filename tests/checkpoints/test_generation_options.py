"""What a checkpoint asks of transformers' generate, and decoding does not do, is told at load."""

import json
import re
import warnings
from pathlib import Path

import jax
import pytest
from tiny import TINY, TINY_GPT, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.generation_options import (
    OPTIONS,
    OTHERS,
    RULES,
    GenerationOptions,
    read_options,
)
from specdec.checkpoints.loading import load_model
from specdec.checkpoints.parameters import CheckpointError
from specdec.decoding.build import rules_of
from specdec.runs import main
from specdec.runs.command_line import Given

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkpoint(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path / "t5", config, jax.device_get(random_params(config, 0)))
    return tmp_path / "t5"


def write(directory, file="generation_config.json", **options):
    path = directory / file
    path.write_text(json.dumps(json.loads(path.read_text()) | options))


def test_every_option_of_transformers_is_in_one_place():
    """With its default, as ``generate`` fills it in, as a neutral value."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig()
    known = {name for name in vars(config) if name != "_original_object_hash"}
    assert known == set(OPTIONS) | OTHERS
    assert not set(OPTIONS) & OTHERS
    for name, default in config._get_default_generation_params().items():
        assert name in OTHERS or default is None or default in OPTIONS[name][0], name


def test_what_transformers_saves_by_default_is_neutral(checkpoint):
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig(
        **transformers.GenerationConfig()._get_default_generation_params(),
        eos_token_id=1, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    config.save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").write_text(config.to_json_string(use_diff=False))
    assert read_options(checkpoint, False) == GenerationOptions()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_beams": 4}, 'num_beams=4: pass method="beam", beam=specdec.BeamConfig(num_beams=4, '
         'rule="huggingface").'),
        ({"num_beams": 3, "length_penalty": 0.6, "early_stopping": True},
         "num_beams=3, length_penalty=0.6, early_stopping=True: pass method=\"beam\", beam=specdec."
         'BeamConfig(num_beams=3, length_penalty=0.6, early_stopping=True, rule="huggingface").'),
        ({"do_sample": True}, "do_sample=True: pass sampling=specdec.SamplingConfig("
         "temperature=1.0, top_k=50, top_p=1.0)."),
        ({"do_sample": True, "temperature": 0.7, "top_k": 10, "top_p": 0.9},
         "top_p=0.9: pass sampling=specdec.SamplingConfig(temperature=0.7, top_k=10, top_p=0.9)."),
        ({"do_sample": True, "min_p": 0.1, "typical_p": 0.7},
         "specdec.SamplingConfig(temperature=1.0, top_k=50, top_p=1.0, min_p=0.1, typical_p=0.7)."),
        ({"max_new_tokens": 77}, "max_new_tokens=77: pass max_decode_len=77."),
        ({"max_length": 200}, "max_length=200: pass max_decode_len=199 (max_length counts"),
        ({"num_return_sequences": 2, "num_beams": 2}, "num_return_sequences=2: pass num_return=2."),
        ({"num_return_sequences": 2, "do_sample": True}, "sequences=2: pass num_samples=2."),
        ({"num_beams": 4, "do_sample": True}, "num_beams=4: not supported with do_sample=True"),
        ({"bad_words_ids": [[5], [6, 7]], "max_new_tokens": 9},
         "max_new_tokens=9: pass max_decode_len=9."),
    ],
)  # fmt: skip
def test_each_option_is_named_with_what_to_do(checkpoint, options, told):
    write(checkpoint, **options)
    line = read_options(checkpoint, False).advice
    assert line is not None
    assert line.startswith(f"{checkpoint / 'generation_config.json'} has options for generating")
    assert told in line
    assert "\n" not in line


# What goes with an option, where alone it does nothing or is no value.
WITH = {
    "num_beams": {"length_penalty": 7, "early_stopping": True, "num_return_sequences": 7},
    "do_sample": dict.fromkeys(("temperature", "top_k", "top_p", "typical_p", "min_p"), 7),
}
VALUES = {
    "bad_words_ids": [[7]], "suppress_tokens": [7], "begin_suppress_tokens": [7],
    "early_stopping": True, "renormalize_logits": True, "do_sample": True,
    "watermarking_config": {"bias": 1.5},
}  # fmt: skip


def test_no_option_is_passed_over(checkpoint):
    for name in OPTIONS:
        value = VALUES.get(name, 7)
        beside = next((other for other, names in WITH.items() if name in names), None)
        also = {} if beside is None else {beside: VALUES.get(beside, 7)}
        write(checkpoint, **{name: value, **also})
        found = read_options(checkpoint, False)
        assert (len(found.rules) == 1) == (name in RULES)
        told = f"{found.advice} {found.refused}"
        assert (f"{name}=" in told) == (name not in RULES), name
        for neutral in (None, *OPTIONS[name][0]):
            write(checkpoint, **{name: neutral, **dict.fromkeys(also)})
            assert read_options(checkpoint, False) == GenerationOptions(), name


@pytest.mark.parametrize("options", [*WITH["num_beams"], *WITH["do_sample"]])
def test_what_does_nothing_in_transformers_is_not_told(checkpoint, options):
    """It decodes greedily where the file neither samples nor searches."""
    if options != "num_return_sequences":
        write(checkpoint, **{options: VALUES.get(options, 0.5)})
        assert read_options(checkpoint, False) == GenerationOptions()


def test_what_transformers_refuses_is_told_in_a_line(checkpoint):
    write(checkpoint, num_return_sequences=3)
    with pytest.raises(CheckpointError, match=r"generation_config.json: .*num_return_sequences"):
        read_options(checkpoint, False)
    assert read_options(checkpoint, False, {"num_return_sequences": 1}) == GenerationOptions()


def test_unknown_names(checkpoint):
    write(checkpoint, repetition_penalti=1.3, made_up=None, lang_to_id={"<de>": 7})
    found = read_options(checkpoint, False)
    assert (found.rules, found.refused) == ((), {})
    assert "repetition_penalti (did you mean repetition_penalty?), lang_to_id: unknown" in (
        found.advice or ""
    )
    assert "made_up" not in (found.advice or "")


ASKED = [
    {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True, "num_return_sequences": 2},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "num_return_sequences": 3},
]  # fmt: skip


@pytest.mark.parametrize("options", ASKED, ids=str)
def test_what_a_file_is_told_can_be_passed(checkpoint, options):
    write(checkpoint, **options)
    with pytest.warns(UserWarning, match="has options for generating") as caught:
        pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    parts = re.findall(r": pass (.*?)(?: \(max_length.*)?(?:;|\.$)", str(caught[0].message))
    assert len(parts) >= len({OPTIONS[name][1] for name in options})
    given = eval(f"dict({', '.join(parts)})", {"specdec": specdec})
    out = pair.generate([[3, 4, 1]], **{"max_decode_len": 4, **given})
    found = out.beams or out.samples
    assert len(found[0]) == options.get("num_return_sequences", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 3, "sampling": specdec.SamplingConfig(1.0)},
        {"max_length": 5}, {"no_repeat_ngram_size": 2},
    ],
    ids=str,
)  # fmt: skip
def test_what_generate_is_told_can_be_passed(checkpoint, options):
    pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    with pytest.raises(TypeError) as caught:
        pair.generate([[3, 4, 1]], **options)
    told = re.search(r": pass (.*?)(?: \(max_length.*)?$", str(caught.value))
    known = {name: options[name] for name in ("method", "sampling") if name in options}
    words = told[1].replace(" and ", ", ")
    given = eval(f"dict({words})", {"specdec": specdec})
    out = pair.generate([[3, 4, 1]], **{"max_decode_len": 4, **known, **given})
    if "num_samples" in given:
        assert len(out.samples[0]) == 3


@pytest.mark.parametrize(
    ("options", "refused"),
    [({"guidance_scale": 2.0}, ""), ({"epsilon_cutoff": 0.1}, "sampled"),
     ({"num_beam_groups": 2, "diversity_penalty": 0.5}, "beams")],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_where_it_changes_tokens(checkpoint, options, refused):
    """And the way out that is told keeps the other options."""
    write(checkpoint, **options, bad_words_ids=[[5, 6]])
    how = {
        "sampled": {"sampling": specdec.SamplingConfig(1.0)}, "beams": {"method": "beam"},
    }  # fmt: skip

    def load(**given):
        return specdec.load_pair(target=checkpoint, draft=checkpoint, **given)

    if refused:
        pair = load()
        pair.generate([[3, 4, 1]], max_decode_len=4)
        with pytest.raises(ValueError, match="cannot apply") as caught:
            pair.generate([[3, 4, 1]], max_decode_len=4, **how[refused])
    else:
        with pytest.raises(CheckpointError, match="cannot apply") as caught:
            load()
    told = re.search(r"generation_config=({.*}), which keeps", str(caught.value))
    pair = load(generation_config=eval(told[1]))
    assert pair.target.rules == (specdec.Forbidden([[5, 6]]),)
    with pytest.raises(ValueError, match="no option 'no_such'"):
        load(generation_config={"no_such": 1})


def test_only_beams_are_normalised(checkpoint):
    """A public Marian's options: the rules hold in every method."""
    write(checkpoint, renormalize_logits=True, remove_invalid_values=True, bad_words_ids=[[5, 6]])
    rules = specdec.Forbidden([[5, 6]]), specdec.Renormalized()
    pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    assert pair.target.rules == rules
    assert rules_of(pair.target, specdec.Decoding()) == rules[:1]
    assert rules_of(pair.target, specdec.Decoding(method="beam")) == rules


def test_config_json_counts_only_where_it_is_alone(checkpoint):
    """And what is for a task only counts nowhere."""
    own = {"num_beams": 4, "task_specific_params": {"summarization": {"min_length": 30}}}
    write(checkpoint, "config.json", **own)
    assert read_options(checkpoint, False) == GenerationOptions()
    (checkpoint / "generation_config.json").unlink()
    line = read_options(checkpoint, False).advice
    assert line is not None
    assert line.startswith(f"{checkpoint / 'config.json'} has options")
    assert "num_beams=4" in line
    assert "min_length" not in line


def test_values_without_end_are_cut(checkpoint):
    write(checkpoint, sequence_bias=[[list(range(5000)), 1.0]], stop_strings="x" * 5000)
    assert len(read_options(checkpoint, False).refused[""]) < 500


def test_a_target_warns_once_and_a_draft_does_not(checkpoint, tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path / "plain", config, jax.device_get(random_params(config, 1)))
    write(checkpoint, num_beams=4)
    with pytest.warns(UserWarning, match="has options for generating") as caught:
        specdec.load_pair(target=checkpoint, draft=tmp_path / "plain")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        specdec.load_pair(target=tmp_path / "plain", draft=checkpoint)
        load_model(str(checkpoint), "float32", as_draft=True)


def test_a_dry_run_tells_it_too(checkpoint, tmp_path, capsys):
    write(checkpoint, repetition_penalty=1.5, guidance_scale=2.0, num_beams=3)
    path = str(ROOT / "configs" / "experiments" / "quickstart_ende.gin")
    bindings = f"TARGET='{checkpoint}'", f"DRAFT='{checkpoint}'"
    given = Given([path], bindings, str(tmp_path / "out"), "test")
    assert main.decode(given, ROOT, dry_run=True) == 2
    assert "generate: guidance_scale=2.0. Remove them, or" in capsys.readouterr().err


def test_rules_are_the_pairs_own_unless_others_are_given(checkpoint):
    write(checkpoint, forced_bos_token_id=7, no_repeat_ngram_size=2, bad_words_ids=[[1], [5, 6]])
    pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    rules = (specdec.NoRepeatNgram(2), specdec.Forbidden([[5, 6]]), specdec.ForcedFirst(7))
    assert pair.target.rules == rules
    assert "NoRepeatNgram(size=2), Forbidden(sequences=((5, 6),)), ForcedFirst(token=7)" in str(
        pair
    )
    text = [[3, 4, 1]]
    assert pair.generate(text, gamma=2, max_decode_len=8).tokens[0][0] == 7
    free = pair.generate(text, gamma=2, max_decode_len=8, rules=()).tokens[0]
    ignoring = specdec.load_pair(target=checkpoint, draft=checkpoint, generation_config="ignore")
    assert free.tolist() == ignoring.generate(text, gamma=2, max_decode_len=8).tokens[0].tolist()
    assert ignoring.target.rules == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size = -1: NoRepeatNgram.size must be at"),
     ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: RepetitionPenalty.penalty must be"),
     ({"suppress_tokens": 3}, "suppress_tokens = 3: ")],
)  # fmt: skip
def test_values_that_are_none(checkpoint, options, told):
    write(checkpoint, **options)
    with pytest.raises(CheckpointError, match=re.escape(told)):
        specdec.load_pair(target=checkpoint, draft=checkpoint)
    specdec.load_pair(target=checkpoint, draft=checkpoint, generation_config="ignore")


def test_a_first_token_is_not_forced_behind_a_prompt(tmp_path):
    """As transformers has it: only a single token before it is followed by a forced one."""
    config = TINY_GPT["gpt_untied"]
    save_huggingface(tmp_path, config, jax.device_get(random_params(config, 0)))
    write(tmp_path, forced_bos_token_id=7, begin_suppress_tokens=[3])
    pair = specdec.load_pair(target=tmp_path, draft=tmp_path)
    assert pair.target.rules == (specdec.Suppressed([3], at=0),)
