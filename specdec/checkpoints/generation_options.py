"""Options of transformers' ``generate`` that a checkpoint sets, and what to do about each here.

transformers' ``GenerationConfig`` reads the file. Rules for logits become the target's own. How to
search or sample is for :class:`specdec.Decoding` to tell, so a line names what to pass. What cannot
be done, and would change tokens, is refused by the methods whose tokens it would change.

Source: ``generate`` of transformers 5.24, with the defaults that it takes.
Special tokens are served; what only makes ``generate`` faster, or return more, changes no output.
"""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.checkpoints.hf_files import CONFIG, GENERATION_CONFIG
from specdec.checkpoints.hf_library import generation_fields
from specdec.checkpoints.parameters import CheckpointError
from specdec.core.checkpoint_files import read_json
from specdec.rules.base import Rule
from specdec.rules.forbidden import Forbidden
from specdec.rules.ngrams import NoRepeatNgram
from specdec.rules.normalized import Renormalized
from specdec.rules.penalties import RepetitionPenalty
from specdec.rules.positions import (
    ForcedFirst,
    ForcedLast,
    MinLength,
    MinNewTokens,
    Suppressed,
)

Found = Mapping[str, Any]  # Options that are not neutral, with their values.
_EOS = "eos_token_id"
_SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def _beams(found: Found) -> str:
    if "do_sample" in found:
        return "not supported with do_sample=True: beams are not sampled"
    names = ("num_beams", "length_penalty", "early_stopping")
    given = ", ".join(f"{name}={found[name]!r}" for name in names if name in found)
    return f'pass method="beam", beam=specdec.BeamConfig({given}, rule="huggingface")'


def _sampling(found: Found) -> str:
    values = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, **found}
    names = [name for name in _SAMPLED if name in values]
    given = ", ".join(f"{name}={reprlib.repr(values[name])}" for name in names)
    return f"pass sampling=specdec.SamplingConfig({given})"


def _returned(found: Found) -> str:
    beams = "num_beams" in found or "beam" in str(found.get("method"))
    name = "num_return" if beams else "num_samples"
    sampled = beams or "do_sample" in found or "sampling" in found
    more = "" if sampled else " and sampling=specdec.SamplingConfig(1.0)"
    return f"pass {name}={reprlib.repr(found['num_return_sequences'])}{more}"


def _length(found: Found) -> str:
    if "max_new_tokens" in found:
        return f"pass max_decode_len={reprlib.repr(found['max_new_tokens'])}"
    length = found["max_length"]
    if isinstance(length, int) and length > 1:
        return (
            f"pass max_decode_len={length - 1} (max_length counts the start token or prompt, too)"
        )
    return "pass max_decode_len"


def _stops(found: Found) -> str:
    return f"pass stop={reprlib.repr(found['stop_strings'])}"


def _time(found: Found) -> str:
    return f"pass time_limit={reprlib.repr(found['max_time'])}"


def _rule(found: Found) -> str:
    try:
        rules = [make(found, ()) for name, make in RULES.items() if name in found]
        return f"pass rules=({', '.join(f'specdec.{rule}' for rule in rules)},)"
    except (ValueError, TypeError):
        return "pass rules=(...); see help(specdec.Decoding)"


def _unsupported(found: Found) -> str:
    """For all methods."""
    return _UNSUPPORTED


def _not_sampled(found: Found) -> str:
    """For sampled decoding alone."""
    return _UNSUPPORTED


def _not_searched(found: Found) -> str:
    """For beams alone."""
    return _UNSUPPORTED


_UNSUPPORTED = "not supported: outputs differ from those of transformers' generate"
# Of what the tokens would be others; see :attr:`specdec.decoding.target.LoadedTarget.refused`.
_REFUSED = {_unsupported: "", _not_sampled: "sampled", _not_searched: "beams"}


def _bad_words(found: Found, eos_ids: tuple[int, ...]) -> Rule | None:
    # transformers leaves out what would forbid the end.
    kept = [each for each in found["bad_words_ids"] if list(each) not in [[end] for end in eos_ids]]
    return Forbidden(kept) if kept else None


def _begin(found: Found, eos_ids: tuple[int, ...]) -> Rule:
    # Behind a first token that is forced, it is the second one.
    return Suppressed(found["begin_suppress_tokens"], at=int("forced_bos_token_id" in found))


def _last(found: Found, eos_ids: tuple[int, ...]) -> Rule:
    given = found["forced_eos_token_id"]
    return ForcedLast(given[0] if isinstance(given, list) else given)


# The rule of each option, in the order in which transformers applies them.
RULES: dict[str, Callable[[Found, tuple[int, ...]], Rule | None]] = {
    "repetition_penalty": lambda found, eos: RepetitionPenalty(found["repetition_penalty"]),
    "no_repeat_ngram_size": lambda found, eos: NoRepeatNgram(found["no_repeat_ngram_size"]),
    "bad_words_ids": _bad_words,
    "min_length": lambda found, eos: MinLength(found["min_length"]),
    "min_new_tokens": lambda found, eos: MinNewTokens(found["min_new_tokens"]),
    "forced_bos_token_id": lambda found, eos: ForcedFirst(found["forced_bos_token_id"]),
    "forced_eos_token_id": _last,
    "suppress_tokens": lambda found, eos: Suppressed(found["suppress_tokens"]),
    "begin_suppress_tokens": _begin,
    "renormalize_logits": lambda found, eos: Renormalized(),
}


# Each option's neutral values beside null, and what to do about others.
OPTIONS: dict[str, tuple[tuple[Any, ...], Callable[[Found], str]]] = {
    "num_beams": ((1,), _beams),
    "length_penalty": ((1,), _beams),
    "early_stopping": ((False,), _beams),
    "do_sample": ((False,), _sampling),
    "temperature": ((1,), _sampling),
    "top_k": ((0, 50), _sampling),
    "top_p": ((1,), _sampling),
    "max_new_tokens": ((), _length),
    "max_length": ((20,), _length),
    "num_return_sequences": ((1,), _returned),
    "min_length": ((0,), _rule),
    "min_new_tokens": ((0,), _rule),
    "repetition_penalty": ((1,), _rule),
    "encoder_repetition_penalty": ((1,), _unsupported),
    "no_repeat_ngram_size": ((0,), _rule),
    "encoder_no_repeat_ngram_size": ((0,), _unsupported),
    "forced_bos_token_id": ((), _rule),
    "forced_eos_token_id": ((), _rule),
    "suppress_tokens": (([],), _rule),
    "begin_suppress_tokens": (([],), _rule),
    "bad_words_ids": (([],), _rule),
    "sequence_bias": (([], {}), _unsupported),
    "exponential_decay_length_penalty": ((), _unsupported),
    "num_beam_groups": ((1,), _not_searched),
    "diversity_penalty": ((0,), _not_searched),
    "constraints": (([],), _not_searched),
    "force_words_ids": (([],), _not_searched),
    "renormalize_logits": ((False,), _rule),
    "typical_p": ((1,), _sampling),
    "min_p": ((0,), _sampling),
    "top_h": ((), _not_sampled),
    "epsilon_cutoff": ((0,), _not_sampled),
    "eta_cutoff": ((0,), _not_sampled),
    "penalty_alpha": ((0,), _unsupported),
    "guidance_scale": ((1,), _unsupported),
    "watermarking_config": ((), _unsupported),
    "dola_layers": ((), _unsupported),
    "token_healing": ((False,), _unsupported),
    "stop_strings": ((), _stops),
    "max_time": ((), _time),
}

# What else transformers has there: special tokens, which are served, where the file is from, and
# what changes no output: caches, compiling, what is returned beside tokens, drafts, and what is
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


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """What a checkpoint sets for ``generate``.

    Attributes:
      rules: its rules for logits, in transformers' order.
      advice: a line about what to pass to decode so; None if there is nothing to say.
      refused: a line about what cannot be done, for "sampled" decoding, for "beams" and, by the
        name "", for any.
    """

    rules: tuple[Rule, ...] = ()
    advice: str | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_options(directory: Path, prompted: bool, given: Found | None = None) -> GenerationOptions:
    """Options that are not neutral: of generation_config.json, or of config.json where it is alone.

    Args:
      prompted: whether outputs continue their texts, as a decoder-only model's do.
      given: options in place of the file's; None for none.

    Raises:
      CheckpointError: a file cannot be read, or a rule has no valid value.
      ValueError: one of the given is no option.
    """
    config, path = read_json(directory / CONFIG), directory / GENERATION_CONFIG
    alone = not path.exists()
    file = directory / CONFIG if alone else path
    raw = {**(config if alone else read_json(path)), **(given or {})}
    for name in given or {}:
        if name not in OPTIONS:
            raise ValueError(f"generation_config has no option {name!r} of transformers' generate.")
    _rules_of(file, _not_neutral(raw), raw.get(_EOS))  # Names the option that has no value of it.
    read = raw if raw.keys() <= OTHERS else generation_fields(raw, file, alone=alone)
    found = _not_neutral(read)
    if prompted:  # It forces a token behind a single first one: a prompt has more.
        found.pop("forced_bos_token_id", None)
    shown = {name: value for name, value in found.items() if _is_told(name, found)}
    advice = _lines(shown, found)
    if not alone and _EOS not in raw and config.get(_EOS) is not None:
        advice.append(
            f"no {_EOS}: outputs end at their limit only, as with transformers, which does not "
            f"look for it in {CONFIG}; add it"
        )
    if not alone and (unknown := _unknown(raw)):
        advice.append(f"{', '.join(unknown)}: unknown to specdec, and not looked at")
    return GenerationOptions(
        _rules_of(file, found, raw.get(_EOS)),
        f"{file} has options for generating that specdec does not apply. {'; '.join(advice)}."
        if advice
        else None,
        _refused(file, found),
    )


def _not_neutral(raw: Found) -> dict[str, Any]:
    return {
        name: raw[name]
        for name, (neutral, _) in OPTIONS.items()
        if raw.get(name) is not None and raw[name] not in neutral
    }


def _is_told(name: str, found: Found) -> bool:
    """Whether an option is to be passed: those of beams and sampling alone do nothing."""
    advice = OPTIONS[name][1]
    if advice is _beams:
        return "num_beams" in found
    return advice not in (_rule, *_REFUSED) and (advice is not _sampling or "do_sample" in found)


def _refused(file: Path, found: Found) -> dict[str, str]:
    """See :class:`GenerationOptions`."""
    lines = {}
    for advice, methods in _REFUSED.items():
        names = [name for name in found if OPTIONS[name][1] is advice]
        if names:
            named = ", ".join(f"{name}={reprlib.repr(found[name])}" for name in names)
            what = f"{methods or 'all'} outputs"
            lines[methods] = (
                f"{file} has options for generating that specdec cannot apply, and without them "
                f"{what} differ from those of transformers' generate: {named}. Remove them, or "
                f"load the pair with generation_config={dict.fromkeys(names)}, which keeps others."
            )
    return lines


def _unknown(raw: Found) -> list[str]:
    """The names that neither transformers has nor this module, with what they may stand for."""
    found = []
    for name in raw.keys() - OPTIONS.keys() - OTHERS:
        if raw[name] is not None:
            close = difflib.get_close_matches(name, OPTIONS, 1, 0.8)
            found.append(name + (f" (did you mean {close[0]}?)" if close else ""))
    return sorted(found, key=lambda each: ("(" not in each, each))


def _lines(shown: Found, found: Found) -> list[str]:
    advice: dict[str, list[str]] = {}
    for name, value in shown.items():
        advice.setdefault(OPTIONS[name][1](found), []).append(f"{name}={reprlib.repr(value)}")
    return [f"{', '.join(options)}: {what}" for what, options in advice.items()]


def _rules_of(file: Path, found: Found, eos: Any) -> tuple[Rule, ...]:
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    rules = []
    for name, make in RULES.items():
        if name in found:
            try:
                rule = make(found, eos_ids)
            except (ValueError, TypeError) as error:
                value = reprlib.repr(found[name])
                raise CheckpointError(f"{file}: {name} = {value}: {error}") from None
            if rule is not None:
                rules.append(rule)
    return tuple(rules)


def advice_on(options: Found) -> dict[str, str]:
    """What to do here about each of these options of transformers; others are left out."""
    return {name: OPTIONS[name][1](options) for name in options if name in OPTIONS}
