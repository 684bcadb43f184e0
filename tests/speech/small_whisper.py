"""A small random Whisper of transformers, whose windows last a second, as a directory."""

import json

import numpy as np
import tokenizers
from small_vocabularies import LINES
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import specdec

LANGUAGES = ("en", "de", "fr", "haw")
RATE, POSITIONS, MELS = 16000, 48, 8
SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{each}|>" for each in LANGUAGES),
    "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
    "<|notimestamps|>",
]  # fmt: skip
TIMES = 51  # From 0.00 to 1.00.


def write_vocabulary(directory):
    """A tokenizer of Whisper's kind. Timestamps are beyond it, as in OpenAI's older files."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    ids = {each: tokenizer.token_to_id(each) for each in SPECIAL}
    before, behind = ["<|startoftranscript|>", "<|notimestamps|>"], "<|endoftext|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", behind], special_tokens=[(each, ids[each]) for each in SPECIAL]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": behind, "bos_token": behind,
                "unk_token": behind}  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return ids


def write_whisper(directory, *, seed=2, multilingual=True, **fields):
    """Writes the model and all that a checkpoint has beside it, and returns its special tokens.

    Outputs are of all kinds: texts that are longer than a window, single timestamps, none.
    """
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    ids = write_vocabulary(directory)
    eos = ids["<|endoftext|>"]
    size = ids["<|notimestamps|>"] + 1 + TIMES
    torch.manual_seed(seed)
    given = {
        "num_mel_bins": MELS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24, "max_source_positions": 50, "max_target_positions": POSITIONS,
    }  # fmt: skip
    config = WhisperConfig(
        **(given | fields), vocab_size=size, eos_token_id=eos, bos_token_id=eos, pad_token_id=eos,
        decoder_start_token_id=ids["<|startoftranscript|>"], suppress_tokens=None, init_std=0.6,
        begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():  # Else all tokens are about as likely, and timestamps follow at once.
        model.model.decoder.embed_positions.weight.normal_(0, 1.5)
    model.generation_config = GenerationConfig(
        eos_token_id=eos, bos_token_id=eos, pad_token_id=eos,
        max_length=config.max_target_positions,
        decoder_start_token_id=ids["<|startoftranscript|>"], is_multilingual=multilingual,
        no_timestamps_token_id=ids["<|notimestamps|>"], prev_sot_token_id=ids["<|startofprev|>"],
        suppress_tokens=[1, 2, ids["<|startoftranscript|>"], ids["<|startofprev|>"]],
        begin_suppress_tokens=[3, eos], max_initial_timestamp_index=25, return_timestamps=False,
        **_languages(ids) if multilingual else {},
    )  # fmt: skip
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=1).save_pretrained(
        directory
    )
    return ids


def _languages(ids):
    return {
        "lang_to_id": {f"<|{each}|>": ids[f"<|{each}|>"] for each in LANGUAGES},
        "task_to_id": {each: ids[f"<|{each}|>"] for each in ("transcribe", "translate")},
    }


def sound(seconds, seed=0):
    """A tone that rises and falls, in noise: windows sound unlike each other."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * RATE)) / RATE
    tone = np.sin(2 * np.pi * (300 + 200 * at) * at + seed) * np.sin(5 * at)
    return (tone + rng.normal(0, 0.1, len(at))).astype(np.float32)


class Both:
    """The model of a directory, by specdec and by transformers.

    Args:
      draft: the pair's.
    """

    def __init__(self, directory, draft=None):
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.pair = specdec.load_pair(target=directory, draft=draft or specdec.Quantized())
        self.model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(directory)

    def features(self, samples):
        """transformers' features [1, M, F]."""
        window = self.extractor.n_samples
        long = {"truncation": False, "padding": "longest"} if len(samples) > window else {}
        return self.extractor(
            samples, sampling_rate=RATE, return_tensors="pt", **long
        ).input_features

    def expected(self, samples, **options):
        """transformers' segments, each with what was decoded of its window."""
        return self.model.generate(
            self.features(samples), return_segments=True, return_dict_in_generate=True,
            output_scores=True, return_timestamps=True, **options,
        )["segments"][0]  # fmt: skip
