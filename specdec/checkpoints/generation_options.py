"""Options of transformers' ``generate`` that a checkpoint sets, and what to do about each here.

transformers' ``GenerationConfig`` reads the file. Rules for logits become the target's own. How to
search or sample is an option of :class:`specdec.Decoding`, so a line names what to pass. What
cannot be done, and would change tokens, is refused by the methods whose tokens it would change.
Source: ``generate`` of transformers 5.24, with the defaults that it takes. Special tokens are
served; what only makes ``generate`` faster, or return more, changes no output.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.checkpoints.hf_files import CONFIG, GENERATION_CONFIG
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
from specdec.text.hf_library import generation_fields

Found = Mapping[str, Any]  # Options that are not neutral, with their values.
_EOS = "eos_token_id"
_UNSUPPORTED = "not supported: outputs differ from those of transformers' generate"
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


# Options without which others do nothing.
_NEEDED: dict[Any, str] = {_beams: "num_beams", _sampling: "do_sample"}


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


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of ``generate`` and what specdec does about it, one of three things.

    Attributes:
      neutral: values beside null with which it does nothing.
      advice: says what to pass to decode so, given all options.
      rule: makes the rule for logits, given all options and the EOS ids, or None.
      refused: whose outputs would be others: those of "sampled" decoding, "beams" or "" for all.
    """

    neutral: tuple[Any, ...]
    advice: Callable[[Found], str] | None = None
    rule: Callable[[Found, tuple[int, ...]], Rule | None] | None = None
    refused: str | None = None


# Rules are in the order in which transformers applies them.
OPTIONS: dict[str, Option] = {
    "num_beams": Option((1,), _beams),
    "length_penalty": Option((1,), _beams),
    "early_stopping": Option((False,), _beams),
    "do_sample": Option((False,), _sampling),
    "temperature": Option((1,), _sampling),
    "top_k": Option((0, 50), _sampling),
    "top_p": Option((1,), _sampling),
    "typical_p": Option((1,), _sampling),
    "min_p": Option((0,), _sampling),
    "max_new_tokens": Option((), _length),
    "max_length": Option((20,), _length),
    "num_return_sequences": Option((1,), _returned),
    "stop_strings": Option((), _stops),
    "max_time": Option((), _time),
    "repetition_penalty": Option(
        (1,), rule=lambda found, eos: RepetitionPenalty(found["repetition_penalty"])
    ),
    "no_repeat_ngram_size": Option(
        (0,), rule=lambda found, eos: NoRepeatNgram(found["no_repeat_ngram_size"])
    ),
    "bad_words_ids": Option(([],), rule=_bad_words),
    "min_length": Option((0,), rule=lambda found, eos: MinLength(found["min_length"])),
    "min_new_tokens": Option((0,), rule=lambda found, eos: MinNewTokens(found["min_new_tokens"])),
    "forced_bos_token_id": Option(
        (), rule=lambda found, eos: ForcedFirst(found["forced_bos_token_id"])
    ),
    "forced_eos_token_id": Option((), rule=_last),
    "suppress_tokens": Option(([],), rule=lambda found, eos: Suppressed(found["suppress_tokens"])),
    "begin_suppress_tokens": Option(([],), rule=_begin),
    "renormalize_logits": Option((False,), rule=lambda found, eos: Renormalized()),
    "encoder_repetition_penalty": Option((1,), refused=""),
    "encoder_no_repeat_ngram_size": Option((0,), refused=""),
    "sequence_bias": Option(([], {}), refused=""),
    "exponential_decay_length_penalty": Option((), refused=""),
    "penalty_alpha": Option((0,), refused=""),
    "guidance_scale": Option((1,), refused=""),
    "watermarking_config": Option((), refused=""),
    "dola_layers": Option((), refused=""),
    "token_healing": Option((False,), refused=""),
    "top_h": Option((), refused="sampled"),
    "epsilon_cutoff": Option((0,), refused="sampled"),
    "eta_cutoff": Option((0,), refused="sampled"),
    "num_beam_groups": Option((1,), refused="beams"),
    "diversity_penalty": Option((0,), refused="beams"),
    "constraints": Option(([],), refused="beams"),
    "force_words_ids": Option(([],), refused="beams"),
}


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """Settings of a checkpoint for ``generate``.

    Attributes:
      rules: its rules for logits, in transformers' order.
      advice: a line about what to pass to decode so; None if there is nothing to say.
      refused: a line about what cannot be done, for "sampled" decoding, for "beams" and, by the
        name "", for any.
    """

    rules: tuple[Rule, ...] = ()
    advice: str | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_options(
    directory: Path, prompted: bool, given: Found | None = None, *, listens: bool = False
) -> GenerationOptions:
    """Options that are not neutral: of generation_config.json, or of config.json where it is alone.

    Args:
      prompted: whether outputs continue their texts, as a decoder-only model's do.
      given: options in place of the file's; None for none.
      listens: whether it is of a model of sound, whose outputs have all of its positions anyway.

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
    read = raw if raw.keys().isdisjoint(OPTIONS) else generation_fields(raw, file, alone=alone)
    found = _not_neutral(read)
    if prompted:  # It forces a token behind a single first one: a prompt has more.
        found.pop("forced_bos_token_id", None)
    if listens:
        found.pop("max_length", None)
    advice = _lines(found)
    if not alone and _EOS not in raw and config.get(_EOS) is not None:
        advice.append(
            f"no {_EOS}: outputs end at their limit only, as with transformers, which does not "
            f"look for it in {CONFIG}; add it"
        )
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
        for name, option in OPTIONS.items()
        if raw.get(name) is not None and raw[name] not in option.neutral
    }


def _refused(file: Path, found: Found) -> dict[str, str]:
    """See :class:`GenerationOptions`."""
    lines = {}
    for methods in ("", "sampled", "beams"):
        names = [name for name in found if OPTIONS[name].refused == methods]
        if names:
            named = ", ".join(f"{name}={reprlib.repr(found[name])}" for name in names)
            what = f"{methods or 'all'} outputs"
            lines[methods] = (
                f"{file} has options for generating that specdec cannot apply, and without them "
                f"{what} differ from those of transformers' generate: {named}. Remove them, or "
                f"load the pair with generation_config={dict.fromkeys(names)}, which keeps others."
            )
    return lines


def _lines(found: Found) -> list[str]:
    """Lines about what to pass; those of beams and of sampling alone do nothing."""
    options: dict[str, list[str]] = {}
    for name, value in found.items():
        advice = OPTIONS[name].advice
        if advice is not None and _NEEDED.get(advice, name) in found:
            options.setdefault(advice(found), []).append(f"{name}={reprlib.repr(value)}")
    return [f"{', '.join(names)}: {what}" for what, names in options.items()]


def _rules_of(file: Path, found: Found, eos: Any) -> tuple[Rule, ...]:
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    rules = []
    for name in found:
        if (make := OPTIONS[name].rule) is not None:
            try:
                rules.append(make(found, eos_ids))
            except (ValueError, TypeError) as error:
                value = reprlib.repr(found[name])
                raise CheckpointError(f"{file}: {name} = {value}: {error}") from None
    return tuple(rule for rule in rules if rule is not None)


def advice_on(options: Found) -> dict[str, str]:
    """Advice on each of these options of transformers; others are left out."""
    found = {name: OPTIONS[name] for name in options if name in OPTIONS}
    return {name: _advice(option, options) for name, option in found.items()}


def _advice(option: Option, options: Found) -> str:
    if option.advice is not None:
        return option.advice(options)
    if option.rule is None:
        return _UNSUPPORTED
    try:
        makers = [OPTIONS[name].rule for name in OPTIONS if name in options]
        rules = [make(options, ()) for make in makers if make is not None]
        return f"pass rules=({', '.join(f'specdec.{rule}' for rule in rules)},)"
    except (ValueError, TypeError):
        return "pass rules=(...); see help(specdec.Decoding)"
