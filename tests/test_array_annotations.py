"""The annotations of arrays hold in all tests (tests/array_annotations.py says how)."""

import array_annotations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float, Int, TypeCheckError, jaxtyped

from specdec.core.residuals import take

PROBS, TOKENS = jnp.ones((2, 3, 5)), jnp.zeros((2, 3), jnp.int32)


def test_what_is_annotated_passes():
    assert take(PROBS, TOKENS).shape == (2, 3)
    assert take(np.ones((2, 3, 5)), np.zeros((2, 3), np.int32)).shape == (2, 3)
    assert jax.jit(take)(PROBS, TOKENS).shape == (2, 3)


@pytest.mark.parametrize(
    "tokens", [TOKENS[:, :2], TOKENS[0], TOKENS.astype(jnp.float32)],
    ids=["other size", "other dimensions", "other kind"],
)  # fmt: skip
def test_a_wrong_array_fails(tokens):
    with pytest.raises(TypeCheckError, match="typechecking parameter 'tokens'"):
        take(PROBS, tokens)


def test_a_wrong_return_value_fails():
    def last(x: Float[jax.Array, "b n"], name: str) -> Int[jax.Array, " b"]:
        return x[:, -1]

    last = jaxtyped(last, typechecker=array_annotations.check)
    with pytest.raises(TypeCheckError, match="return value"):
        last(jnp.ones((2, 3)), None)
