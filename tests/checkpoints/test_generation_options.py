"""What a checkpoint asks of transformers' generate, and decoding does not do, is told at load."""

import json
import re
import warnings

import jax
import pytest
from tiny import TINY, TINY_GPT, random_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.generation_options import (
    OPTIONS,
    GenerationOptions,
    read_options,
)
from specdec.checkpoints.loading import load_model
from specdec.checkpoints.parameters import CheckpointError
from specdec.decoding.build import rules_of


@pytest.fixture
def checkpoint(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path / "t5", config, jax.device_get(random_params(config, 0)))
    return tmp_path / "t5"


def write(directory, file="generation_config.json", **options):
    path = directory / file
    path.write_text(json.dumps(json.loads(path.read_text()) | options))


# What else transformers has in the file: special tokens, which are served, where the file is from,
# and what changes no output: caches, compiling, what is returned beside tokens, drafts, and what is
# for logits that are not finite, which no checkpoint here has.
OTHERS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "transformers_version", "_from_model_config",
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory",
    "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "assistant_ensemble_weight", "speculation_type", "use_mtp", "remove_invalid_values",
}  # fmt: skip


def test_every_option_of_transformers_is_in_one_place():
    """With its default, as ``generate`` fills it in, as a neutral value."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig()
    known = {name for name in vars(config) if name != "_original_object_hash"}
    assert known == set(OPTIONS) | OTHERS
    assert not set(OPTIONS) & OTHERS
    for name, default in config._get_default_generation_params().items():
        assert name in OTHERS or default is None or default in OPTIONS[name].neutral, name


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_beams": 3, "length_penalty": 0.6, "early_stopping": True},
         "num_beams=3, length_penalty=0.6, early_stopping=True: pass method=\"beam\", beam=specdec."
         'BeamConfig(num_beams=3, length_penalty=0.6, early_stopping=True, rule="huggingface").'),
        ({"do_sample": True, "min_p": 0.1, "typical_p": 0.7},
         "specdec.SamplingConfig(temperature=1.0, top_k=50, top_p=1.0, min_p=0.1, typical_p=0.7)."),
        ({"max_new_tokens": 77}, "max_new_tokens=77: pass max_decode_len=77."),
        ({"max_length": 200}, "max_length=200: pass max_decode_len=199 (max_length counts"),
        ({"num_return_sequences": 2, "do_sample": True}, "sequences=2: pass num_samples=2."),
        ({"num_beams": 4, "do_sample": True}, "num_beams=4: not supported with do_sample=True"),
    ],
)  # fmt: skip
def test_each_option_is_named_with_what_to_do(checkpoint, options, told):
    write(checkpoint, **options)
    line = read_options(checkpoint, False).advice or ""
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
        is_rule = OPTIONS[name].rule is not None
        assert (len(found.rules) == 1) == is_rule
        told = f"{found.advice} {found.refused}"
        assert (f"{name}=" in told) != is_rule, name
        for neutral in (None, *OPTIONS[name].neutral):
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


def passed(pair, told, **options):
    """The decoding options that a message tells, which ``generate`` takes."""
    parts = re.findall(r": pass (.*?)(?: \(max_length.*)?(?:;|\.$|$)", told)
    words = ", ".join(parts).replace(" and ", ", ")
    given = eval(f"dict({words})", {"specdec": specdec})
    pair.generate([], **options | given)  # Nothing is decoded, and everything is built.
    return given


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"num_beams": 3, "length_penalty": 0.6, "early_stopping": True, "num_return_sequences": 2},
         ["beam", "method", "num_return"]),
        ({"do_sample": True, "temperature": 0.7, "min_p": 0.1, "num_return_sequences": 3},
         ["num_samples", "sampling"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_file_is_told_can_be_passed(checkpoint, options, names):
    write(checkpoint, **options)
    with pytest.warns(UserWarning, match="has options for generating") as caught:
        pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    assert sorted(passed(pair, str(caught[0].message))) == names


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"num_return_sequences": 3, "sampling": specdec.SamplingConfig(1.0)}, ["num_samples"]),
        ({"max_length": 5}, ["max_decode_len"]), ({"no_repeat_ngram_size": 2}, ["rules"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_generate_is_told_can_be_passed(checkpoint, options, names):
    pair = specdec.load_pair(target=checkpoint, draft=checkpoint)
    with pytest.raises(TypeError) as caught:
        pair.generate([[3, 4, 1]], **options)
    known = {name: options[name] for name in ("sampling",) if name in options}
    assert sorted(passed(pair, str(caught.value), **known)) == names


@pytest.mark.parametrize(
    ("options", "refused"),
    [({"guidance_scale": 2.0}, None),
     ({"epsilon_cutoff": 0.1}, {"sampling": specdec.SamplingConfig(1.0)}),
     ({"num_beam_groups": 2, "diversity_penalty": 0.5}, {"method": "beam"})],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_where_it_changes_tokens(checkpoint, options, refused):
    """And the way out that is told keeps the other options."""
    write(checkpoint, **options, bad_words_ids=[[5, 6]])

    def load(**given):
        return specdec.load_pair(target=checkpoint, draft=checkpoint, **given)

    if refused:
        pair = load()
        pair.generate([])
    with pytest.raises(ValueError, match="cannot apply") as caught:
        pair.generate([], **refused) if refused else load()
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
    line = read_options(checkpoint, False).advice or ""
    assert line.startswith(f"{checkpoint / 'config.json'} has options")
    assert "num_beams=4" in line
    assert "min_length" not in line


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
