"""What :meth:`specdec.Pair.generate` can be told, checked in one place."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from inspect import get_annotations
from typing import Any, Literal, get_args

from specdec.arguments import real, whole
from specdec.checkpoints.generation_options import advice_on
from specdec.decoding.beam_rules import BeamConfig
from specdec.drafters.tree import Tree, as_tree
from specdec.topology import MOST_NODES
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier

Method = Literal["speculative", "autoregressive", "beam", "speculative_beam"]
BEAM_METHODS = ("beam", "speculative_beam")
DEFAULT_GAMMA = 4


def check_arguments(
    *,
    method: str,
    gamma: int | str | None,
    tree: Any = None,
    sampling: SamplingConfig,
    max_decode_len: int,
    seed: int,
    batch_size: int,
    max_input_len: int,
    stop_below: float,
    draft_sampling: SamplingConfig | None,
    verifier: Verifier | None,
    beam: Any = None,
    num_return: int | None = None,
    draft_beams: int | None = None,
    most_guesses: int = MOST_NODES,
) -> dict[str, Any]:
    """The arguments of :meth:`Pair.generate` with numbers of Python's own types.

    A gamma that was not given is made to fit ``max_decode_len``. One token leaves nothing to guess:
    the method is the plain one then, unless gamma or a tree was given.

    Args:
      most_guesses: in a row, that the draft can make.

    Raises:
      ValueError: naming the one that is of another type or out of range.
    """
    if method not in get_args(Method):
        raise ValueError(
            'method must be "speculative", "autoregressive", "beam" or "speculative_beam", got '
            f"{method!r}."
        )
    max_decode_len = whole("max_decode_len", max_decode_len, 1)
    if draft_beams is not None and method != "speculative_beam":
        raise ValueError(
            f'draft_beams belongs to method="speculative_beam": leave it out, got {draft_beams!r}.'
        )
    if method in BEAM_METHODS:
        of_drafts = {
            "tree": tree, "verifier": verifier, "draft_sampling": draft_sampling,
            "stop_below": stop_below or None,
        }  # fmt: skip
        if method == "beam":
            of_drafts = {"gamma": gamma, **of_drafts}
            gamma = 0
        beam, num_return = _checked_beam(method, beam, num_return, sampling, of_drafts)
        if draft_beams is not None:
            draft_beams = whole("draft_beams", draft_beams, beam.num_beams)
    elif beam is not None or num_return is not None:
        raise ValueError(
            'beam and num_return belong to method="beam" and "speculative_beam": leave them out '
            f"with method={method!r}, got beam = {beam!r} and num_return = {num_return!r}."
        )
    if tree is not None:
        if method == "autoregressive":
            raise ValueError(f"Plain decoding has no guesses: tree must be None, got {tree!r}.")
        gamma, tree = 0, _checked_tree(tree, gamma, max_decode_len, stop_below)
    plain = {"speculative": "autoregressive", "speculative_beam": "beam"}.get(method)
    if plain and max_decode_len == 1 and (gamma in (None, "auto") or tree == "auto"):
        method, gamma, tree = plain, 0, None
    elif gamma is None:
        gamma = min(DEFAULT_GAMMA, max_decode_len - 1, most_guesses)
    if gamma != "auto" and tree is None:
        if isinstance(gamma, str):
            raise ValueError(f'gamma must be a whole number or "auto", got {gamma!r}.')
        gamma = whole("gamma", gamma, -sys.maxsize)
        if method.startswith("speculative"):
            _check_gamma(gamma, max_decode_len, plain)
    for name, value in (("sampling", sampling), ("draft_sampling", draft_sampling)):
        if not isinstance(value, SamplingConfig) and (name == "sampling" or value is not None):
            raise ValueError(
                f"{name} must be a SamplingConfig, such as SamplingConfig(temperature=0.5), got "
                f"{value!r}."
            )
    wrong = not isinstance(verifier, Verifier) or isinstance(verifier, type)
    if verifier is not None and wrong:
        raise ValueError(
            f"verifier must be an object such as specdec.BlockVerifier(), got {verifier!r}."
        )
    stop_below = real("stop_below", stop_below, "in [0, 1]", 0, 1)
    return {
        "method": method, "gamma": None if method == "beam" else gamma, "tree": tree,
        "sampling": sampling,
        "max_decode_len": max_decode_len,
        "seed": whole("seed", seed, -(2**63), 2**64 - 1),
        "batch_size": whole("batch_size", batch_size, 1),
        "max_input_len": whole("max_input_len", max_input_len, 1),
        "stop_below": stop_below, "draft_sampling": draft_sampling, "verifier": verifier,
        "beam": beam, "num_return": num_return, "draft_beams": draft_beams,
    }  # fmt: skip


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises TypeError for keywords that generate does not have, with what to give instead."""
    advice = advice_on(options)
    for name, value in options.items():
        close = difflib.get_close_matches(name, get_annotations(check_arguments), cutoff=0.6)
        hint = advice.get(name) or (f"did you mean {close[0]}?" if close else "")
        raise TypeError(
            f"generate has no keyword {name} (got {value!r}): "
            f"{hint or 'help(specdec.Pair.generate) lists those that there are'}"
        )


def _checked_beam(
    method: str, beam: Any, num_return: int | None, sampling: SamplingConfig,
    of_drafts: dict[str, Any],
) -> tuple[BeamConfig, int]:  # fmt: skip
    """The beams, and how many hypotheses to return of each row; ``of_drafts`` must be None."""
    why = "Beam search has no draft" if method == "beam" else "A draft of beams is one itself"
    for name, value in of_drafts.items():
        if value is not None:
            raise ValueError(f"{why}: leave {name} out, got {value!r}.")
    beam = BeamConfig() if beam is None else beam
    if not isinstance(beam, BeamConfig):
        raise ValueError(
            f"beam must be a BeamConfig, such as specdec.BeamConfig(num_beams=4), got {beam!r}."
        )
    if isinstance(sampling, SamplingConfig) and sampling != SamplingConfig(temperature=0.0):
        raise ValueError(
            "Beam search draws nothing: sampling must have temperature 0 and neither top_k nor "
            f"top_p, got {sampling}."
        )
    return beam, whole("num_return", 1 if num_return is None else num_return, 1, beam.num_beams)


def _check_gamma(gamma: int, max_decode_len: int, plain: str | None) -> None:
    if not 1 <= gamma < max_decode_len:
        raise ValueError(
            f"gamma must be in [1, max_decode_len - 1] = [1, {max_decode_len - 1}], got {gamma}; "
            f'for plain decoding use method="{plain}".'
        )
    if gamma > MOST_NODES:
        raise ValueError(
            f"gamma must be at most {MOST_NODES}, got {gamma}: the target scores gamma + 1 tokens "
            "in one call, and what they attend to is the square of it. Good values are below 20."
        )


def _checked_tree(
    tree: Any, gamma: int | str | None, max_decode_len: int, stop_below: float
) -> Tree | Literal["auto"]:
    if gamma is not None:
        raise ValueError(
            "Give gamma, which is a chain, or tree (in gin with GAMMA = None), not both; got "
            f"gamma = {gamma!r} and tree = {tree!r}."
        )
    if stop_below:
        raise ValueError(f"A tree cannot stop early: stop_below must be 0, got {stop_below}.")
    if isinstance(tree, str) and tree == "auto":
        return "auto"
    shape = as_tree(tree)
    if shape.levels >= max_decode_len:
        raise ValueError(
            f"{shape} has {shape.levels} guesses in a row; an output of max_decode_len = "
            f"{max_decode_len} tokens has room for {max_decode_len - 1}."
        )
    return shape
