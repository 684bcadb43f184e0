"""A target and a draft by name or path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from specdec.api import Pair
from specdec.checkpoints import find_vocabulary, is_t5x
from specdec.checkpoints.formats import located
from specdec.checkpoints.loading import (
    BUNDLED,
    DraftLoader,
    GenerationConfig,
    check_generation_config,
    load_model,
    resolve,
    translating,
)
from specdec.core.arguments import choice
from specdec.core.kept_programs import keep_programs
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import draft_spec
from specdec.models.partitioning import DeviceMesh, check_mesh
from specdec.speech.listening import open_listening
from specdec.text.base import check_languages
from specdec.text.opening import open_tokenizer


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | DraftSpec | None = None,
    dtype: str = "float32",
    weights: Literal["int8"] | None = None,
    mesh: DeviceMesh | None = None,
    generation_config: GenerationConfig = "follow",
    source_language: str | None = None,
    target_language: str | None = None,
) -> Pair:
    """Loads a target and its draft, bundled or from checkpoints.

    Args:
      name: a bundled pair ("quickstart", "quickstart_lm"); or give both target and draft.
      target, draft: a directory with config.json and safetensors, a T5X checkpoint (a
        ``checkpoint_<step>``, or a directory that holds some, for its latest; gs://bucket/path
        too), a hub id, or the name of a bundled pair for its target or draft. A draft may also be
        one of :class:`specdec.Ngram`, :class:`specdec.Copying`, :class:`specdec.Given`, texts that
        are given with the rows, :class:`specdec.Random`, :class:`specdec.Hierarchical`,
        :class:`specdec.Heads`, what was trained on the target's hidden states, or
        :class:`specdec.Quantized`, the target's own copy in 8 or 4 bits.
      dtype: of activations and caches, "float32", "bfloat16" or "float16", and of weights that are
        stored in more bits. With "float32", weights of 16 bits stay in 16 bits, and results are the
        same. On CPU the draft's decoder then has float16 weights: reading them is most of its work,
        and its guesses are verified anyway.
      weights: "int8" rounds the target's to 8 bits, with a scale for each output of a kernel. The
        result is another model, and outputs follow its distribution. None rounds nothing.
      mesh: the devices, how many hold one target together, and how the draft lies on them; None
        for one device. Tokens do not depend on it, except for rounding: a token differs only if two
        were about equally likely, or if a random number fell on the boundary between two.
      generation_config: "follow": rules for logits that the target's generation_config.json sets
        are the pair's, unless ``generate`` is given others. A dict: it is followed with these
        options in place of its own, such as ``{"guidance_scale": None}``, None for none. "ignore":
        that file is not read for options.
      source_language, target_language: codes of the texts' and the outputs' language, for a model
        whose vocabulary has languages: NLLB ("eng_Latn"), M2M100 ("en"), mBART ("en_XX"). None for
        ``src_lang`` and ``tgt_lang`` of its tokenizer_config.json; an output's may also be that
        which its other files force.

    Raises:
      ValueError: an unknown name, a missing argument, a draft or a vocabulary of another model, a
        language that is unknown, missing or of no use, or a mesh that has more devices than there
        are or does not divide a model.
      CheckpointError: a checkpoint cannot be read, or its generation_config.json asks for what
        cannot be done.
    """
    if name is not None:
        if target is not None or draft is not None:
            raise ValueError("Give either the name of a bundled pair or target and draft.")
        if name not in BUNDLED:
            raise ValueError(f"No bundled pair {name!r}; there is {', '.join(BUNDLED)}.")
        target = draft = name
    if target is None or draft is None:
        raise ValueError("load_pair needs the name of a bundled pair, or both target and draft.")
    if not isinstance(target, str | os.PathLike):
        raise ValueError(f"target must be a checkpoint's path or name, got {target!r}.")
    spec = draft_spec("draft", draft)
    choice("dtype", dtype, "float32", "bfloat16", "float16")
    choice("weights", weights, "int8", None)
    check_generation_config(generation_config)
    check_mesh(mesh)
    keep_programs()
    source = resolve(target, "target")
    vocabulary = find_vocabulary(source)
    loaded = load_model(
        source, dtype, partitioning=mesh and mesh.target, int8=weights == "int8",
        generation_config=generation_config,
    )  # fmt: skip
    if loaded.reads_encoding is not None:
        raise ValueError(
            f"{source} starts from a target's encoding of the text and has none of its own: it can "
            "be a draft, not a target."
        )
    tokenizer = None
    if vocabulary is not None:
        rows = loaded.model.vocab_size
        tokenizer = open_tokenizer(
            vocabulary, rows, of_t5x=is_t5x(source), source_language=source_language
        )
    languages = {"source_language": source_language, "target_language": target_language}
    check_languages(tokenizer, **languages)
    ends = loaded.model.eos_ids
    if tokenizer and ends and not loaded.model.reads_prefix and tokenizer.eos_id not in ends:
        raise ValueError(
            f"{vocabulary} ends a text with token {tokenizer.eos_id}, and the model of {source} "
            f"with {' or '.join(map(str, ends))}: it is another model's vocabulary. Put the "
            "model's own beside its weights, or correct eos_token_id in config.json."
        )
    name = name or f"{Path(target).name}+{Path(str(spec)).name}"
    opened = spec.open(DraftLoader(loaded, vocabulary, dtype, mesh and mesh.draft))
    if tokenizer is not None and tokenizer.languages is not None:
        loaded = translating(loaded, tokenizer.languages, target_language)
    listening = None
    if loaded.model.input_shape is not None and tokenizer is not None:
        listening = open_listening(Path(located(source)), loaded.model, tokenizer)
    name = f"{name}, {weights} weights" if weights else name
    return Pair(loaded, opened, tokenizer, name, listening)
