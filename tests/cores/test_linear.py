import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.cores.linear import linear_attention
from tests.helpers import (
    REFERENCE,
    assert_close,
    assert_same_attention,
    forward_and_gradients,
    largest_array,
    mask_of_lengths,
    random_inputs,
)

BATCH, QUERIES, KEYS, HEADS, DIM = 3, 31, 43, 2, 5
jit_linear = jax.jit(linear_attention)


def from_log_features(log_query, log_key, value):
    """Weights φ(query) · φ(key), normalized, in float64 for one example: log φ [L H R], value [L H D]."""
    log_query, log_key, value = (np.float64(x) for x in (log_query, log_key, value))
    log_weights = np.logaddexp.reduce(log_query[:, None] + log_key[None], axis=-1)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return np.einsum("lth,thd->lhd", weights / weights.sum(axis=1, keepdims=True), value)


def with_the_whole_map(features):
    """Attention with the weights φ(query) · φ(key), normalized."""

    def attend(query, key, value, mask):
        weights = jnp.einsum("BLHR,BTHR->BHLT", features(query), features(key))
        weights = weights * mask[:, None, None, :]
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return jnp.einsum("BHLT,BTHD->BLHD", weights, value)

    return attend


def assert_equals_the_whole_map(rngs, attend, features):
    """Cross-attention with padding of queries and keys, forward and gradient."""
    inputs = random_inputs(rngs, BATCH, QUERIES, HEADS, DIM, key_length=KEYS)
    masks = {"mask": mask_of_lengths([43, 17, 1], KEYS)}
    masks["query_mask"] = mask_of_lengths([31, 5, 23], QUERIES)
    whole = functools.partial(with_the_whole_map(features), mask=masks["mask"])
    own = functools.partial(attend, **masks)
    assert_same_attention(own, whole, inputs, masks["query_mask"])


def test_equals_attention_with_the_whole_map(rngs):
    assert_equals_the_whole_map(rngs, linear_attention, lambda x: jax.nn.elu(x) + 1)


@pytest.mark.slow_except("both", "apart")
@pytest.mark.parametrize("which", ["queries", "keys", "both", "apart"])
def test_tiny_features_do_not_underflow(which, rngs):
    query, key, value = random_inputs(rngs, 1, QUERIES, HEADS, DIM, key_length=KEYS)
    if which in ("queries", "both"):
        query = query - 80
    if which in ("keys", "both"):
        key = key - 80
    if which == "apart":  # each feature is small in all queries or in all keys
        first = jnp.arange(DIM) < 2
        query, key = jnp.where(first, query - 120, query), jnp.where(first, key, key - 120)
    inputs = query, key, value
    log_features = lambda x: np.where(x > 0, np.log1p(np.maximum(x, 0)), x)
    expected = from_log_features(log_features(query[0]), log_features(key[0]), value[0])
    assert_close(jit_linear(*inputs)[0], expected, REFERENCE)
    _, found = forward_and_gradients(linear_attention, inputs, jnp.cos(query))
    assert all(jnp.isfinite(gradient).all() for gradient in found)
    assert jnp.abs(found[0]).max() > 1e-4  # the gradient did not underflow


def test_never_allocates_a_quadratic_map():
    length = 4096
    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    assert largest_array(linear_attention, shape, shape, shape) == length * 8


def test_bfloat16_is_computed_in_float32(rngs):
    inputs = random_inputs(rngs, 1, QUERIES, HEADS, DIM, key_length=KEYS, dtype=jnp.bfloat16)
    expected = jit_linear(*(x.astype(jnp.float32) for x in inputs))
    assert (jit_linear(*inputs) == expected.astype(jnp.bfloat16)).all()
