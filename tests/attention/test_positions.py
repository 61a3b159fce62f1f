"""Rotary embeddings, compared with complex numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import rotary_embedding
from tests.helpers import HALF, REFERENCE, assert_close, normal

B, L, H, D = 2, 13, 3, 10


def test_equals_multiplication_by_complex_numbers(rngs):
    x = normal(next(rngs), (B, L, H, D))
    positions = jax.random.randint(next(rngs), (B, L), 0, 500)
    float64 = np.float64(x)
    rates = 100.0 ** (-2 * np.arange(D // 2) / D)
    angles = np.float64(positions)[:, :, None, None] * rates[None, None, None]
    turned = (float64[..., : D // 2] + 1j * float64[..., D // 2 :]) * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    turn = jax.jit(functools.partial(rotary_embedding, base=100.0))
    assert_close(turn(x, positions), expected, REFERENCE)
    half = turn(x.astype(jnp.bfloat16), positions)
    assert half.dtype == jnp.bfloat16
    assert_close(half, expected, HALF)


def test_default_base_positions_and_leading_axes(rngs):
    x = normal(next(rngs), (B, 2, L, H, D))
    rotated = rotary_embedding(x)
    np.testing.assert_array_equal(rotated, rotary_embedding(x, jnp.arange(L), base=10_000.0))
    np.testing.assert_array_equal(rotated[1], rotary_embedding(x[1]))
    np.testing.assert_array_equal(rotated[..., 0, :, :], x[..., 0, :, :])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"x": jnp.ones((2, 5, 3, 7))}, "even"),
        ({"positions": jnp.ones((2, 1), int)}, "positions"),
        ({"positions": jnp.ones((3, 5), int)}, "leading axes"),
    ],
)
def test_rejects_invalid_arguments(no_annotations, changes, word):
    with pytest.raises(ValueError, match=word):
        rotary_embedding(**{"x": jnp.ones((2, 5, 3, 4)), **changes})
