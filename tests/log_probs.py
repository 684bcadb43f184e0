"""Log-probabilities of fixed outputs: a model that transformers reads against one that decodes.

Greedy tokens do not see a wrong temperature; these do.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tiny import logits_along, sounds

from specdec.checkpoints.loading import load_model

TOLERANCE = 1e-4
COUNT = 20  # Tokens of each output.


def assert_same_log_probs(theirs, ours, lengths=(24, 5, 13), tolerance=TOLERANCE):
    """Every log-probability along fixed outputs, of rows of several lengths, within 1e-4.

    Args:
      theirs: transformers' model, or a directory that it reads.
      ours: a checkpoint that ``load_model`` reads: what decodes, as users get it.
    """
    loaded = load_model(str(ours), "float32")
    generator = np.random.default_rng(0)
    vocab_size, size = loaded.model.vocab_size, max(lengths)
    inputs = generator.integers(2, vocab_size, (len(lengths), size))
    outputs = generator.integers(0, vocab_size, (len(lengths), COUNT))
    pad = loaded.model.pad_id  # Some models of transformers count positions by pads.
    inputs, outputs = (
        np.where(ids == pad, (pad + 1) % vocab_size, ids) for ids in (inputs, outputs)
    )
    if loaded.model.input_shape is not None:
        inputs = sounds(len(lengths), loaded.model.input_shape)
        lengths = [inputs.shape[1]] * len(lengths)
    prompt = loaded.model.prompt(inputs, np.array(lengths))
    last = np.asarray(prompt.prefix)[np.arange(len(lengths)), np.asarray(prompt.prefix_lengths) - 1]
    read = np.concatenate([last[:, None], outputs[:, :-1]], axis=1)
    found = logits_along(loaded.model, loaded.params, prompt, jnp.asarray(read))
    found = jax.nn.log_softmax(found, axis=-1)

    model = read_by_transformers(theirs) if isinstance(theirs, Path) else theirs
    for row, length in enumerate(lengths):
        expected = _log_probs(model, inputs[row, :length], read[row])
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=tolerance)
    spread = np.std(np.asarray(found), axis=-1)
    assert np.median(spread) > 0.5, "a model that tells little of each token shows little"


def as_theirs(given, real=None):
    """Keywords of texts, or of sounds, for a model of transformers; all of them real if None."""
    import torch

    given = torch.tensor(given)
    if given.ndim == 3:
        return {"input_features": given.mT}
    mask = torch.ones_like(given) if real is None else torch.tensor(real).long()
    return {"input_ids": given, "attention_mask": mask}


def read_by_transformers(directory):
    """The model of a directory, in float32."""
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    transformers.logging.disable_progress_bar()
    is_t5 = AutoConfig.from_pretrained(directory).is_encoder_decoder
    model = AutoModelForSeq2SeqLM if is_t5 else AutoModelForCausalLM
    return model.from_pretrained(directory).float().eval()


def _log_probs(model, text, read):
    """transformers' behind each of the tokens that were ``read`` after a text, [T, V]."""
    import torch

    with torch.no_grad():
        if model.config.is_encoder_decoder:
            logits = model(
                **as_theirs(text[None]), decoder_input_ids=torch.tensor(read)[None]
            ).logits
        else:
            whole = np.concatenate([text[:-1], read])  # The first that is read ends the text.
            logits = model(torch.tensor(whole)[None]).logits[:, len(text) - 1 :]
    return torch.log_softmax(logits.float(), -1)[0].numpy()
