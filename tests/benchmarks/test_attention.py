"""The literal port, and gradients."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.attention import case, literal_attention, with_gradient
from nystromformer_jax import nystrom_attention
from tests.helpers import OTHER_FRAMEWORK, SAME_ARITHMETIC, assert_close, normal, random_inputs


def test_literal_port_equals_nystrom_attention(rngs):
    inputs = random_inputs(rngs, 2, 48, 3, 8)
    kernel = normal(next(rngs), (3, 5))
    options = {"num_landmarks": 12, "pinv_start": "batch_max", "conv_kernel": kernel}
    actual = jax.jit(lambda *inputs: literal_attention(*inputs, kernel, 12))(*inputs)
    expected = jax.jit(lambda *inputs: nystrom_attention(*inputs, **options))(*inputs)
    assert_close(actual, expected, OTHER_FRAMEWORK)


def test_the_cotangent_is_the_last_argument():
    x, y, cotangent = jnp.array([2.0, 3.0, 5.0]), jnp.array([7.0, 11.0, 13.0]), jnp.arange(3.0)
    output, (of_x, of_y) = with_gradient(lambda mask, x, y: x * y)(None, x, y, cotangent)
    assert_close(output, x * y, SAME_ARITHMETIC)
    assert_close(of_x, cotangent * y, SAME_ARITHMETIC)
    assert_close(of_y, cotangent * x, SAME_ARITHMETIC)


@pytest.mark.parametrize("name", ["ours, k-means", "exact (JAX)", "our module"])
def test_a_masked_case_has_an_output_and_the_gradients_of_its_inputs(name):
    function, (mask, *inputs, cotangent) = case(
        name, "gradient", 2, 128, conv=33, dtype=jnp.float32, masked=True
    )
    assert mask.sum() == 2 * 103
    output, gradients = jax.eval_shape(function, mask, *inputs, cotangent)
    assert output.shape == cotangent.shape
    assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, tuple(inputs))
