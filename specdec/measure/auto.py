"""The choice of "auto" for a target, a draft and some rows; kept for the next time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from specdec.core.machine import cache_directory, device_name, fingerprint
from specdec.decoding.batches import bucket, commonest, make_batches
from specdec.decoding.options import Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.measure import chooser
from specdec.measure.beam_choice import BeamSpace
from specdec.measure.choice import Choice, keep, remembered
from specdec.measure.decode_choice import DecodeSpace
from specdec.models.placing import agreed

_PROBED_BATCHES = 32  # Decoded to measure acceptance, and to time what is promising.


def choose(
    target: LoadedTarget,
    draft: OpenDraft,
    decoding: Decoding,
    ids: Sequence[np.ndarray],
    prefixes: Sequence[np.ndarray] | None = None,
    given: Sequence[np.ndarray] | None = None,
    *,
    remember: bool = True,
) -> Choice:
    """The gamma or tree for these rows on this machine, or none where plain decoding is faster.

    Decodes the first rows to measure acceptance and costs, then times the most promising shapes
    that draft and verifier can do (:mod:`specdec.measure.chooser`): 30 s at most for a gamma, 60 s
    for a tree or beams. The choice uses what could be measured in that time. A choice that was
    timed is kept in the user's cache directory, and used again for the same pair, device, way of
    decoding and shapes.

    Args:
      decoding: its gamma or tree is "auto".
      ids: see :meth:`specdec.Pair.token_ids`; a few rows are enough.
      prefixes: of each row; see :meth:`specdec.Pair.prefix_ids`.
      given: of each row; see :meth:`specdec.Pair.given_ids`.
      remember: whether to look for a choice made before, and to keep this one.

    Raises:
      ValueError: nothing is "auto"; there is no row; max_decode_len is below 2, which leaves
        nothing to guess; the draft or the verifier cannot do what is to be chosen.
    """
    name = decoding.to_choose
    if name is None or not ids:
        raise ValueError(
            'A choice needs gamma="auto" or tree="auto", max_decode_len >= 2, and at least one '
            f"row; got {len(ids)} rows and {decoding}."
        )
    if (count := decoding.num_samples) > 1:  # They are measured as texts of their own.
        ids = [each for each in ids for _ in range(count)]
        prefixes = prefixes and [each for each in prefixes for _ in range(count)]
        given = given and [each for each in given for _ in range(count)]
        size = decoding.batch_size * count
        decoding = dataclasses.replace(decoding, num_samples=1, batch_size=size)
    size = decoding.batch_size
    batches = commonest(list(make_batches(ids, size, target.model, prefixes, given=given)))
    batches = batches[:_PROBED_BATCHES]
    space = (BeamSpace if name == "beams" else DecodeSpace)(target, draft, decoding)
    engine = space.engine
    # Options that change no program and no time are left out.
    most = bucket(decoding.max_decode_len)
    alike = dataclasses.replace(decoding, seed=0, max_input_len=1, max_decode_len=most)
    weights = fingerprint(target.params), fingerprint(draft.weights)
    where = device_name(), jax.__version__
    agree = functools.partial(agreed, target.partitioning)
    # Choices are kept apart by process 0's key: its parts of the weights, its device.
    key = agree(" ".join(map(str, (name, *where, *weights, engine, alike, batches[0].shape))))
    known = agree(remembered(cache_directory(), key)) if remember else None
    if known is not None and known.levels < decoding.max_decode_len:
        return known
    choice = chooser.choose(space, batches, decoding.max_decode_len, agree)
    # Else time was up too early.
    if remember and any(each.measured is not None for each in choice.candidates):
        keep(cache_directory(), key, choice)
    return choice
