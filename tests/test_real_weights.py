"""Real weights against transformers in float32: greedy tokens of every way, and log-probabilities.

SPECDEC_REAL_WEIGHTS names a directory that holds gemma-3-270m and smollm2-135m-instruct.
"""

import os
from pathlib import Path

import jax
import numpy as np
import pytest
from log_probs import read_by_transformers
from tiny import logits_along

import specdec

PLACE = os.environ.get("SPECDEC_REAL_WEIGHTS")
pytestmark = [
    pytest.mark.skipif(PLACE is None, reason="SPECDEC_REAL_WEIGHTS names no directory of models"),
    pytest.mark.filterwarnings("ignore"),
]
COUNT = 12  # Tokens of each output.
TEXTS = {
    "gemma-3-270m": ["The capital of France is", "1, 2, 3,"],
    "smollm2-135m-instruct": [
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        "Once upon a time",
    ],
}  # fmt: skip
WAYS = {
    "plain": {"method": "autoregressive"}, "chain": {"gamma": 4}, "tree": {"tree": (2, 2, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_and_log_probs_of_transformers(name):
    torch = pytest.importorskip("torch")
    directory = Path(PLACE or "") / name
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there")
    pair = specdec.load_pair(target=directory, draft=specdec.Quantized())  # The copy of 8 bits.
    model = read_by_transformers(directory)
    rows = []
    for text in TEXTS[name]:
        ids = torch.tensor([pair.token_ids([text], max_input_len=64)[0].tolist()])
        with torch.no_grad():
            told = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=COUNT,
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        tokens = told.sequences[0, ids.shape[1] :]
        log_probs = torch.log_softmax(torch.cat(told.logits).float(), -1)
        rows.append((tokens.tolist(), log_probs[range(len(tokens)), tokens].numpy()))
        # Those of all tokens of the vocabulary, too.
        loaded, read = pair.target, np.concatenate([ids[0, -1:], tokens[:-1]])[None]
        prompt = loaded.model.prompt(ids.numpy(), np.array([ids.shape[1]]))
        found = logits_along(loaded.model, loaded.params, prompt, read)
        found = jax.nn.log_softmax(found, axis=-1)[0]
        np.testing.assert_allclose(found, log_probs.numpy(), rtol=0, atol=1e-4)
    for way, how in WAYS.items():
        out = pair.generate(
            TEXTS[name], batch_size=len(TEXTS[name]), max_decode_len=COUNT, log_probs=True,
            max_input_len=64, **how,
        )  # fmt: skip
        for found, log_probs, (tokens, expected) in zip(
            out.tokens, out.log_probs, rows, strict=True
        ):
            assert found.tolist() == tokens, way
            np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-4, err_msg=way)
    assert out.stats.accepted > 0
