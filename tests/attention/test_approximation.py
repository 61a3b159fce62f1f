"""The error of Nyström attention beside that of the mean value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import approximation_error, nystrom_attention, softmax_attention
from nystromformer_jax.attention.approximation import relative_error
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal

B, L, H, D = 2, 41, 3, 5
compiled_error = jax.jit(approximation_error, static_argnames="num_landmarks")


@pytest.mark.parametrize("queries", [None, [17, 37]])
def test_equals_its_formula_per_example_and_head(rngs, queries):
    """The norms are over real queries; these have their own mask, or that of the keys.

    What padding contains has no effect.
    """
    query, key, value = (normal(next(rngs), (B, L, H, D)) for _ in range(3))
    mask = mask_of_lengths([41, 29], L)
    masks = {"mask": mask, "query_mask": None if queries is None else mask_of_lengths(queries, L)}
    output = np.asarray(nystrom_attention(query, key, value, **masks, num_landmarks=7))
    exact = np.asarray(jax.jit(softmax_attention)(query, key, value, **masks))
    real = mask if queries is None else masks["query_mask"]
    padded = [
        jnp.where(own[..., None, None], x, jnp.nan)
        for x, own in ((query, real), (key, mask), (value, mask))
    ]
    errors = compiled_error(*padded, **masks, num_landmarks=7)
    value, mask, real = (np.asarray(x) for x in (value, mask[..., None, None], real))
    norm = lambda x: np.linalg.norm(np.where(real[..., None, None], x, 0), axis=(1, 3))
    mean = value.mean(axis=1, keepdims=True, where=mask)
    for error, found in ((errors.nystrom, output), (errors.mean_value, mean)):
        np.testing.assert_allclose(error, norm(found - exact) / norm(exact), rtol=1e-4)


def test_an_error_of_zero_has_finite_gradients_also_without_tokens(rngs):
    exact = normal(next(rngs), (B, L, H, D)).at[0].set(0)
    error = lambda output: relative_error(output, exact).sum()
    assert_close(jax.value_and_grad(error)(exact), (0.0, jnp.zeros_like(exact)), REFERENCE)
