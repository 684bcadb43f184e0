"""The tokens that a draft needs: those of its task's outputs."""

from __future__ import annotations

import itertools
import os
from collections import Counter

from specdec.checkpoints.draft_vocabulary import save_draft_vocabulary
from specdec.core.progress import say
from specdec.training.checkpointing import load_vocabulary
from specdec.training.speech_rows import SpeechRows
from specdec.training.train import Files


def build(
    directory: str | os.PathLike, *, files: Files | SpeechRows, vocabulary_path: str,
    min_count: int,
) -> list[int]:  # fmt: skip
    """Writes ``draft_vocabulary.json`` with the training outputs' tokens; returns them.

    Args:
      min_count: how often a token must occur to be one of them; EOS is always. One more is added
        to an odd number of them: CPUs read two or four parts of the logits' kernel together.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data, or ``min_count`` below 1.
    """
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, got {min_count}.")
    vocabulary = load_vocabulary(vocabulary_path)
    if isinstance(files, SpeechRows):
        outputs = files.outputs("train")
    else:
        outputs = (vocabulary.encode(output) for _, output in files.read("train"))
    counts = Counter(itertools.chain.from_iterable(outputs))
    kept = {vocabulary.eos_id} | {token for token, count in counts.items() if count >= min_count}
    if len(kept) % 2:
        kept.add(next(token for token in range(len(vocabulary)) if token not in kept))
    tokens = sorted(kept)
    path = save_draft_vocabulary(directory, tokens)
    covered = sum(counts[token] for token in tokens) / counts.total()
    share = f"{len(tokens)} of {len(vocabulary)} tokens, {covered:.4f} of all that occur"
    say(f"Wrote {path}: {share}.")
    return tokens
