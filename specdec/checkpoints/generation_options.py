"""Options of transformers' ``generate`` that a checkpoint sets, and what to do about each here.

Source: ``GenerationConfig`` of transformers 5.24, with the defaults that ``generate`` takes.
Special tokens are served; what only makes ``generate`` faster, or return more, changes no output.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.checkpoints.files import read_json
from specdec.checkpoints.hf_files import CONFIG, GENERATION_CONFIG

Found = Mapping[str, Any]  # Options that are not neutral, with their values.
_EOS = "eos_token_id"


def _beams(found: Found) -> str:
    names = ("num_beams", "length_penalty", "early_stopping")
    given = ", ".join(f"{name}={found[name]!r}" for name in names if name in found)
    return f'pass method="beam", beam=specdec.BeamConfig({given}, rule="huggingface")'


def _sampling(found: Found) -> str:
    values = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, **found}
    names = ("temperature", "top_k", "top_p")
    given = ", ".join(f"{name}={reprlib.repr(values[name])}" for name in names)
    return f"pass sampling=specdec.SamplingConfig({given})"


def _returned(found: Found) -> str:
    return f"pass num_return={reprlib.repr(found['num_return_sequences'])}"


def _length(found: Found) -> str:
    if "max_new_tokens" in found:
        return f"pass max_decode_len={reprlib.repr(found['max_new_tokens'])}"
    return "pass max_decode_len (max_length counts the start token or the prompt, too)"


def _unsupported(found: Found) -> str:
    return "not supported: outputs differ from those of transformers' generate"


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
    "min_length": ((0,), _unsupported),
    "min_new_tokens": ((0,), _unsupported),
    "repetition_penalty": ((1,), _unsupported),
    "encoder_repetition_penalty": ((1,), _unsupported),
    "no_repeat_ngram_size": ((0,), _unsupported),
    "encoder_no_repeat_ngram_size": ((0,), _unsupported),
    "forced_bos_token_id": ((), _unsupported),
    "forced_eos_token_id": ((), _unsupported),
    "suppress_tokens": (([],), _unsupported),
    "begin_suppress_tokens": (([],), _unsupported),
    "bad_words_ids": (([],), _unsupported),
    "sequence_bias": (([], {}), _unsupported),
    "exponential_decay_length_penalty": ((), _unsupported),
    "num_beam_groups": ((1,), _unsupported),
    "diversity_penalty": ((0,), _unsupported),
    "constraints": (([],), _unsupported),
    "force_words_ids": (([],), _unsupported),
    "renormalize_logits": ((False,), _unsupported),
    "remove_invalid_values": ((False,), _unsupported),
    "typical_p": ((1,), _unsupported),
    "min_p": ((0,), _unsupported),
    "top_h": ((), _unsupported),
    "epsilon_cutoff": ((0,), _unsupported),
    "eta_cutoff": ((0,), _unsupported),
    "penalty_alpha": ((0,), _unsupported),
    "guidance_scale": ((1,), _unsupported),
    "watermarking_config": ((), _unsupported),
    "dola_layers": ((), _unsupported),
    "token_healing": ((False,), _unsupported),
    "stop_strings": ((), _unsupported),
    "max_time": ((), _unsupported),
}


def unserved(directory: Path) -> str | None:
    """A line about options that this checkpoint sets and decoding does not apply by itself.

    generation_config.json has them where there is one, else config.json. None where all are
    neutral.

    Raises:
      CheckpointError: a file cannot be read.
    """
    config, path = read_json(directory / CONFIG), directory / GENERATION_CONFIG
    alone = not path.exists()
    file = directory / CONFIG if alone else path
    raw = config if alone else read_json(path)
    found = {
        name: raw[name]
        for name, (neutral, _) in OPTIONS.items()
        if raw.get(name) is not None and raw[name] not in neutral
    }
    advice: dict[str, list[str]] = {}
    for name, value in found.items():
        advice.setdefault(OPTIONS[name][1](found), []).append(f"{name}={reprlib.repr(value)}")
    lines = [f"{', '.join(options)}: {what}" for what, options in advice.items()]
    if not alone and _EOS not in raw and config.get(_EOS) is not None:
        lines.append(
            f"no {_EOS}: outputs end at their limit only, as with transformers, which does not "
            f"look for it in {CONFIG}; add it"
        )
    if not lines:
        return None
    return f"{file} has options for generating that specdec does not apply. {'; '.join(lines)}."


def advice_on(options: Found) -> dict[str, str]:
    """What to do here about each of these options of transformers; others are left out."""
    return {name: OPTIONS[name][1](options) for name in options if name in OPTIONS}
