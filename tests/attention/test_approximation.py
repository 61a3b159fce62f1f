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
    """The norms are over real queries; these have their own mask, or that of the keys."""
    query, key, value = (normal(next(rngs), (B, L, H, D)) for _ in range(3))
    mask = mask_of_lengths([41, 29], L)
    masks = {"mask": mask, "query_mask": None if queries is None else mask_of_lengths(queries, L)}
    errors = compiled_error(query, key, value, **masks, num_landmarks=7)
    output = np.asarray(nystrom_attention(query, key, value, **masks, num_landmarks=7))
    exact = np.asarray(softmax_attention(query, key, value, **masks))
    value, mask = np.asarray(value), np.asarray(mask)
    real = mask if queries is None else np.asarray(masks["query_mask"])
    for b in range(B):
        for h in range(H):
            truth = exact[b, real[b], h]
            mean = value[b, mask[b], h].mean(axis=0, keepdims=True)
            for error, found in (
                (errors.nystrom, output[b, real[b], h]),
                (errors.mean_value, mean),
            ):
                expected = np.linalg.norm(found - truth) / np.linalg.norm(truth)
                assert error[b, h] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_grouped_heads_and_leading_axes(rngs, batch):
    query = normal(next(rngs), (*batch, L, 4, D))
    key, value = (normal(next(rngs), (*batch, L, 2, D)) for _ in range(2))
    errors = compiled_error(query, key, value, num_landmarks=7)
    key, value = (jnp.repeat(x, 2, axis=-2).reshape(-1, L, 4, D) for x in (key, value))
    expected = compiled_error(query.reshape(-1, L, 4, D), key, value, num_landmarks=7)
    for error, other in zip(errors, expected, strict=True):
        assert error.shape == (*batch, 4)
        assert_close(error.reshape(-1, 4), other, REFERENCE)


def test_padding_changes_nothing_whatever_it_contains(rngs):
    query, key, value = (normal(next(rngs), (1, L, H, D)) for _ in range(3))
    expected = compiled_error(query, key, value, num_landmarks=7)
    padded = [
        jnp.pad(x, ((0, 0), (0, 9), (0, 0), (0, 0)), constant_values=jnp.nan)
        for x in (query, key, value)
    ]
    with jax.numpy_dtype_promotion("strict"):
        errors = compiled_error(*padded, mask=mask_of_lengths([L], L + 9), num_landmarks=7)
    for one, other in zip(errors, expected, strict=True):
        assert_close(one, other, REFERENCE)


def test_is_zero_with_few_tokens_and_without_any(rngs):
    query, key, value = (normal(next(rngs), (B, L, H, D)) for _ in range(3))
    assert_close(
        compiled_error(query, key, value, num_landmarks=L).nystrom,
        jnp.zeros((B, H)),
        REFERENCE,
    )
    empty = compiled_error(query, key, value, mask=jnp.zeros((B, L), bool), num_landmarks=7)
    assert_close(empty.nystrom, jnp.zeros((B, H)), REFERENCE)


def test_gradients_are_finite_where_an_error_is_zero(rngs):
    exact = normal(next(rngs), (B, L, H, D)).at[0].set(0)
    gradient = jax.grad(lambda output: relative_error(output, exact).sum())
    assert_close(gradient(exact), jnp.zeros_like(exact), REFERENCE)


def test_the_mean_is_exact_for_equal_keys(rngs):
    query, value = (normal(next(rngs), (B, L, H, D)) for _ in range(2))
    errors = compiled_error(query, jnp.ones_like(value), value, num_landmarks=7)
    assert errors.mean_value.max() < 1e-5


def test_queries_of_another_length_and_half_precision(rngs):
    query, key, value = (normal(next(rngs), (B, L, H, D), jnp.bfloat16) for _ in range(3))
    real = jnp.ones((B, 11), bool)
    errors = compiled_error(query[:, :11], key, value, query_mask=real, num_landmarks=7)
    assert errors.nystrom.shape == errors.mean_value.shape == (B, H)
    assert errors.nystrom.dtype == jnp.float32


def test_rejects_a_convolution(rngs):
    x = normal(next(rngs), (B, L, H, D))
    with pytest.raises(ValueError, match="conv_kernel must be None"):
        approximation_error(x, x, x, conv_kernel=jnp.ones((H, 3)))
