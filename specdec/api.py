"""The Python interface: load a pair of models, generate text."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import find_vocabulary
from specdec.checkpoints.loading import BUNDLED, LoadedModel, load_model, resolve
from specdec.core.machine import cache_directory, device_name, fingerprint
from specdec.core.stats import RunStats
from specdec.data.vocabulary import Vocabulary
from specdec.decoding.autoregressive import autoregressive_decode
from specdec.decoding.batches import Batch, Block, blocks_of, bucket, make_batches
from specdec.decoding.speculative import speculative_decode
from specdec.drafters.base import Drafter
from specdec.drafts import DraftSpec, OpenDraft, spec_of
from specdec.measure import gamma as tuning
from specdec.measure.gamma import GammaChoice
from specdec.models.partitioning import DeviceMesh
from specdec.types import DecodeResult, SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.token import TokenVerifier

Method = Literal["speculative", "autoregressive"]
Text = str | Sequence[int]
GREEDY = SamplingConfig(temperature=0.0)
VERIFIER = TokenVerifier()
_PROBED_BATCHES = 8  # Decoded to measure alpha when gamma is chosen.


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """What :meth:`Pair.generate` returns.

    Attributes:
      texts: one string a row; None for a pair without a vocabulary.
      tokens: one int32 array a row, EOS included, without padding.
      stats: totals over all rows.
      traces: for each row its blocks (see :func:`Pair.generate`); None unless asked for.
      gamma_choice: why this gamma, where it was chosen by measurement.
    """

    texts: list[str] | None
    tokens: list[np.ndarray]
    stats: RunStats
    traces: list[list[Block]] | None
    gamma_choice: GammaChoice | None = None


class Pair:
    """A target, a draft and the vocabulary they share. Make one with :func:`load_pair`.

    Attributes:
      target: the model whose law outputs follow.
      draft: what guesses.
      vocabulary: None where the checkpoints have none; then texts are token ids.
      name: for results and tables.
    """

    def __init__(
        self,
        target: LoadedModel,
        draft: OpenDraft,
        vocabulary: Vocabulary | None,
        name: str = "custom",
    ):
        self.target, self.draft = target, draft
        self.vocabulary = vocabulary
        self.name = name

    def generate(
        self,
        texts: Sequence[Text],
        *,
        method: Method = "speculative",
        gamma: int | Literal["auto"] = 4,
        sampling: SamplingConfig = GREEDY,
        max_decode_len: int = 64,
        seed: int = 0,
        batch_size: int = 1,
        max_input_len: int = 512,
        trace: bool = False,
        stop_below: float = 0.0,
        draft_sampling: SamplingConfig | None = None,
        verifier: Verifier = VERIFIER,
    ) -> GenerateOutput:
        """Generates an output for each text.

        With ``method="speculative"`` outputs follow the same law as with "autoregressive": the
        same tokens at temperature 0, the same distribution above it, unless the verifier is a lossy
        one (``verifier.lossless`` tells). A row's output depends on the
        seed and on its place in ``texts``, not on the rows it shares a batch with.

        Args:
          texts: strings, or token ids with EOS at the end.
          method: "speculative" or "autoregressive".
          gamma: guesses a block, in 1..max_decode_len - 1; or "auto": chosen by
            :meth:`choose_gamma` (as for a draft that never stops), plain decoding where speculation
            does not pay.
          sampling: temperature (0: argmax), top-k and top-p.
          max_decode_len: tokens a row may emit, EOS included.
          seed: of the random numbers.
          batch_size: rows decoded together; on a mesh, a multiple of its data axis.
          max_input_len: tokens an input may have, EOS included.
          trace: return every row's blocks.
          stop_below: the draft ends a block's guesses after one less likely than this; see
            :class:`specdec.drafters.model.ModelDrafter`.
          draft_sampling: how guesses are drawn, which does not change the output's law; as
            ``sampling`` if None.
          verifier: who accepts: :class:`specdec.TokenVerifier`, :class:`specdec.BlockVerifier`, or
            the lossy :class:`specdec.LenientVerifier`.

        Raises:
          ValueError: an argument out of range; an empty text, or one longer than max_input_len.
        """
        check_arguments(method, gamma, max_decode_len, batch_size, stop_below)
        ids = self.token_ids(texts, max_input_len=max_input_len)
        choice = None
        if gamma == "auto":
            gamma = 0
            if method == "speculative" and ids:
                choice = self.choose_gamma(
                    ids, sampling=sampling, max_decode_len=max_decode_len, seed=seed,
                    batch_size=batch_size, draft_sampling=draft_sampling,
                )  # fmt: skip
                gamma = choice.gamma
            method = "speculative" if gamma else "autoregressive"
        tokens: list[np.ndarray] = [np.zeros(0, np.int32)] * len(ids)
        traces: list[list[Block]] = [[] for _ in ids]
        stats = []
        for batch in make_batches(ids, batch_size, self.target.model.pad_id):
            result = self.decode(
                batch, method=method, gamma=gamma, sampling=sampling,
                max_decode_len=max_decode_len, seed=seed, trace=trace, stop_below=stop_below,
                draft_sampling=draft_sampling, verifier=verifier,
            )  # fmt: skip
            for place, row in enumerate(batch.row_ids):
                if row >= 0:
                    tokens[row] = result.tokens[place, : result.num_tokens[place]]
                    if result.trace is not None:
                        traces[row] = blocks_of(result.trace, place)
            stats.append(result.stats)
        return GenerateOutput(
            texts=self.text(tokens),
            tokens=tokens,
            stats=RunStats.total(stats, len(ids), gamma if method == "speculative" else 0),
            traces=traces if trace else None,
            gamma_choice=choice,
        )

    def choose_gamma(
        self,
        ids: Sequence[np.ndarray],
        *,
        sampling: SamplingConfig = GREEDY,
        max_decode_len: int = 64,
        seed: int = 0,
        batch_size: int = 1,
        draft_sampling: SamplingConfig | None = None,
        remember: bool = True,
    ) -> GammaChoice:
        """The gamma for these rows on this machine, 0 where plain decoding is faster.

        Decodes the first rows to measure alpha and times the parts of a block; half a minute, most
        of it compilation. The choice is kept in the user's cache directory and found there the
        next time for this pair, device, sampling and shapes.

        Args:
          ids: see :meth:`token_ids`; a few rows are enough.
          remember: whether to look for a choice made before, and to keep this one.

        Raises:
          ValueError: no row, or max_decode_len below 2, which leaves nothing to guess.
        """
        if not ids or max_decode_len < 2:
            raise ValueError(
                f"gamma is chosen for at least one row and max_decode_len >= 2, got {len(ids)} "
                f"rows and {max_decode_len}."
            )
        batches = list(make_batches(ids, batch_size, self.target.model.pad_id))
        shape, _ = Counter(batch.inputs.shape for batch in batches).most_common(1)[0]
        batches = [batch for batch in batches if batch.inputs.shape == shape][:_PROBED_BATCHES]

        def drafter(gamma: int) -> Drafter:
            return self.drafter(gamma, draft_sampling or sampling)

        weights = (fingerprint(self.target.params), fingerprint(self.draft.params))
        key = " ".join(
            map(str, (device_name(), jax.__version__, *weights, self.target.model,
                      sampling, shape, bucket(max_decode_len), drafter(1)))
        )  # fmt: skip
        known = tuning.remembered(cache_directory(), key) if remember else None
        if known is not None and known.gamma < max_decode_len:
            return known
        max_gamma = max_decode_len - 1
        probe = min(tuning.PROBE, max_gamma)
        stats = RunStats.total(
            [
                self.decode(
                    batch, method="speculative", gamma=probe, sampling=sampling,
                    max_decode_len=max_decode_len, seed=seed, draft_sampling=draft_sampling,
                ).stats
                for batch in batches
            ],
            sum(int(np.sum(batch.row_ids >= 0)) for batch in batches),
            probe,
        )  # fmt: skip
        costs = tuning.measure(
            self.target.model, self.target.params,
            drafter, self.draft.params,
            jnp.asarray(batches[0].inputs),
            sampling=sampling, output_bucket=bucket(max_decode_len), max_gamma=max_gamma,
        )  # fmt: skip
        choice = tuning.choose(stats.alpha or 0.0, stats.emitted / stats.num_rows, costs)
        if remember:
            tuning.remember(cache_directory(), key, choice)
        return choice

    def decode(
        self,
        batch: Batch,
        *,
        method: Method,
        gamma: int,
        sampling: SamplingConfig,
        max_decode_len: int,
        seed: int,
        trace: bool = False,
        width: int = 1,
        verifier: Verifier = VERIFIER,
        stop_below: float = 0.0,
        draft_sampling: SamplingConfig | None = None,
    ) -> DecodeResult:
        """Decodes one batch and brings the result to the host as NumPy arrays.

        ``width`` is the autoregressive reference's; see
        :func:`specdec.decoding.autoregressive.autoregressive_decode`.
        """
        output_bucket = bucket(max_decode_len)
        inputs, row_ids = self.target.place_rows(batch.inputs, batch.row_ids)
        if method == "autoregressive":
            result = autoregressive_decode(
                self.target.model, self.target.params, inputs, row_ids, max_decode_len, seed,
                sampling=sampling, output_bucket=output_bucket, width=width, trace=trace,
            )  # fmt: skip
        else:
            result = speculative_decode(
                self.target.model,
                self.drafter(gamma, draft_sampling or sampling, stop_below),
                verifier,
                self.target.params, self.draft.params, inputs, row_ids, max_decode_len, seed,
                sampling=sampling, output_bucket=output_bucket, trace=trace,
            )  # fmt: skip
        return jax.tree.map(np.asarray, result)

    def drafter(self, gamma: int, sampling: SamplingConfig, stop_below: float = 0.0) -> Drafter:
        """The drafter that :meth:`decode` uses; its parameters are ``draft.params``."""
        return self.draft.drafter(gamma, sampling, stop_below)

    def token_ids(
        self, texts: Sequence[Text], *, max_input_len: int, names: Sequence[str] | None = None
    ) -> list[np.ndarray]:
        """Token ids of each text, EOS included.

        Args:
          names: what messages call each text; by its index unless given.

        Raises:
          ValueError: naming the text: empty, too long, not a token of the vocabulary, or a string
            where there is no vocabulary.
        """
        if isinstance(texts, str):
            raise ValueError("texts must be a list of texts, got one string; wrap it in a list.")
        names = names or [f"text {i}" for i in range(len(texts))]
        return [
            self._token_ids(text, name, max_input_len)
            for text, name in zip(texts, names, strict=True)
        ]

    def _token_ids(self, text: Text, name: str, max_input_len: int) -> np.ndarray:
        if isinstance(text, str):
            if not text.strip():
                raise ValueError(f"{name} is empty.")
            if self.vocabulary is None:
                raise ValueError(
                    f"{name} is a string, but this pair has no vocabulary (no spiece.model beside "
                    "the target); give token ids."
                )
            ids = np.asarray(self.vocabulary.encode(text, add_eos=True), np.int32)
        else:
            ids = np.asarray(text)
            if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
                raise ValueError(f"{name} must be a string or a non-empty list of token ids.")
            vocab_size = self.target.model.vocab_size
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError(f"{name} has a token outside the vocabulary [0, {vocab_size}).")
            ids = ids.astype(np.int32)
        if len(ids) > max_input_len:
            raise ValueError(
                f"{name} has {len(ids)} tokens, more than max_input_len = {max_input_len}; "
                "shorten it or raise max_input_len."
            )
        return ids

    def text(self, tokens: Sequence[np.ndarray]) -> list[str] | None:
        """Detokenized rows, or None without a vocabulary."""
        if self.vocabulary is None:
            return None
        return [self.vocabulary.decode(row) for row in tokens]


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | DraftSpec | None = None,
    dtype: str = "float32",
    mesh: DeviceMesh | None = None,
) -> Pair:
    """Loads a target, bundled or from a checkpoint, and what it is drafted with.

    Args:
      name: a bundled pair ("quickstart"); or give both target and draft.
      target, draft: a directory with config.json and safetensors, a T5X checkpoint (a
        checkpoint_<step>, or a directory that holds some, for its latest; gs://bucket/path too), a
        hub id, or the name of a bundled pair for its target or draft. A draft may also be one of
        :class:`specdec.Ngram`, :class:`specdec.Copying`, :class:`specdec.Random`,
        :class:`specdec.Hierarchical`.
      dtype: of weights, activations and caches, "float32" or "bfloat16". On CPU the draft's
        decoder keeps its weights in float16 beside "float32": reading them is most of its work, and
        what it says are guesses.
      mesh: the devices, how many hold one target together, and how the draft lies on them; None
        for one device. Tokens do not depend on it.

    Raises:
      ValueError: an unknown name, a missing argument, a draft of another vocabulary, or a mesh that
        has more devices than there are or does not divide a model.
      CheckpointError: a checkpoint cannot be read.
    """
    if name is not None:
        if target is not None or draft is not None:
            raise ValueError("Give either the name of a bundled pair or target and draft.")
        if name not in BUNDLED:
            raise ValueError(f"No bundled pair {name!r}; there is {', '.join(BUNDLED)}.")
        target = draft = name
    if target is None or draft is None:
        raise ValueError("load_pair needs the name of a bundled pair, or both target and draft.")
    source, spec = resolve(target, "target"), spec_of(draft)
    vocabulary = find_vocabulary(source)
    loaded = load_model(source, dtype, partitioning=mesh and mesh.target)
    if loaded.model.config.encoding_width is not None:
        raise ValueError(
            f"{source} starts from a target's encoding of the text and has none of its own: it can "
            "be a draft, not a target."
        )
    return Pair(
        loaded,
        spec.open(loaded, vocabulary, dtype, mesh and mesh.draft),
        Vocabulary(vocabulary) if vocabulary else None,
        name or f"{Path(target).name}+{Path(str(spec)).name}",
    )


def check_arguments(
    method: str,
    gamma: int | Literal["auto"],
    max_decode_len: int,
    batch_size: int,
    stop_below: float,
) -> None:
    """Raises ValueError for arguments of :meth:`Pair.generate` that are out of range."""
    if method not in ("speculative", "autoregressive"):
        raise ValueError(f'method must be "speculative" or "autoregressive", got {method!r}.')
    if max_decode_len < 1:
        raise ValueError(f"max_decode_len must be at least 1, got {max_decode_len}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if not isinstance(stop_below, (int, float)) or not 0 <= stop_below <= 1:
        raise ValueError(f"stop_below must be in [0, 1], got {stop_below!r}.")
    if gamma == "auto":
        return
    if not isinstance(gamma, int):
        raise ValueError(f'gamma must be a whole number or "auto", got {gamma!r}.')
    if method == "speculative" and not 1 <= gamma < max_decode_len:
        raise ValueError(
            f"gamma must be in [1, max_decode_len - 1] = [1, {max_decode_len - 1}], got {gamma}; "
            'for plain decoding use method="autoregressive".'
        )


__all__ = ["Batch", "Block", "GenerateOutput", "LoadedModel", "Pair", "load_pair"]
