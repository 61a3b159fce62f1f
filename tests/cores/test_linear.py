import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.cores.linear import linear_attention
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    largest_array,
    mask_of_lengths,
    random_inputs,
)

BATCH, QUERIES, KEYS, HEADS, DIM = 3, 31, 43, 2, 5
jit_linear = jax.jit(linear_attention)


def by_the_paper(query, key, value):
    """Weights φ(query) · φ(key), normalised, in float64 for one example: arrays [L H D]."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    phi = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    weights = np.einsum("lhd,thd->lht", phi(query), phi(key))
    return np.einsum("lht,thd->lhd", weights / weights.sum(-1, keepdims=True), value)


def quadratic(query, key, value, mask):
    """The same with a mask, in jnp."""
    phi = lambda x: jax.nn.elu(x) + 1
    weights = jnp.einsum("BLHD,BTHD->BHLT", phi(query), phi(key)) * mask[:, None, None, :]
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.einsum("BHLT,BTHD->BLHD", weights, value)


def gradients(attend, inputs):
    @jax.jit
    def run(*inputs):
        output, pull_back = jax.vjp(attend, *inputs)
        return pull_back(jnp.cos(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape))

    return run(*inputs)


def test_equals_its_quadratic_form(rngs):
    inputs = random_inputs(rngs, BATCH, QUERIES, HEADS, DIM, key_length=KEYS)
    lengths, query_lengths = [43, 17, 1], [31, 5, 23]
    mask, query_mask = mask_of_lengths(lengths, KEYS), mask_of_lengths(query_lengths, QUERIES)
    output = jit_linear(*inputs, mask=mask, query_mask=query_mask)
    query, key, value, output = jax.device_get((*inputs, output))
    for b, (real, asking) in enumerate(zip(lengths, query_lengths, strict=True)):
        expected = by_the_paper(query[b, :asking], key[b, :real], value[b, :real])
        assert_close(output[b, :asking], expected, REFERENCE)


def test_gradient_equals_that_of_the_quadratic_form(rngs):
    inputs = random_inputs(rngs, BATCH, KEYS, HEADS, DIM)
    mask = mask_of_lengths([43, 17, 1], KEYS)
    attend = lambda *inputs: linear_attention(*inputs, mask=mask) * mask[..., None, None]
    expected = lambda *inputs: quadratic(*inputs, mask) * mask[..., None, None]
    assert_close(gradients(attend, inputs), gradients(expected, inputs), REFERENCE)


def test_a_constant_value_is_preserved(rngs):
    query, key, value = random_inputs(rngs, BATCH, QUERIES, HEADS, DIM, key_length=KEYS)
    constant = jnp.broadcast_to(value[:, :1], value.shape)
    expected = jnp.broadcast_to(value[:, :1], query.shape)
    assert_close(jit_linear(query, key, constant), expected, SAME_ARITHMETIC)


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
    expected = by_the_paper(*(x[0] for x in inputs))
    assert_close(jit_linear(*inputs)[0], expected, REFERENCE)
    found = gradients(linear_attention, inputs)
    assert all(jnp.isfinite(gradient).all() for gradient in found)
    assert jnp.abs(found[0]).max() > 1e-4  # the gradient did not underflow


def test_never_allocates_a_quadratic_map():
    length = 4096
    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    assert largest_array(linear_attention, shape, shape, shape) == length * 8


def test_bfloat16_is_computed_in_float32(rngs):
    inputs = random_inputs(rngs, 1, QUERIES, HEADS, DIM, key_length=KEYS, dtype=jnp.bfloat16)
    output = jit_linear(*inputs)
    expected = jit_linear(*(x.astype(jnp.float32) for x in inputs))
    assert output.dtype == jnp.bfloat16
    assert (output == expected.astype(jnp.bfloat16)).all()


def test_rejects_queries_of_another_length_without_query_mask(rngs):
    inputs = random_inputs(rngs, BATCH, QUERIES, HEADS, DIM, key_length=KEYS)
    mask = mask_of_lengths([43, 17, 1], KEYS)
    with pytest.raises(ValueError, match="pass query_mask"):
        linear_attention(*inputs, mask=mask)
