import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.convolution import _banded, _shifted, depthwise_convolution
from tests.helpers import GRADIENT, REFERENCE, assert_close


def grouped_convolution(value, kernel):
    """The same by XLA's convolution with one group a head, as the peers do it."""
    return jax.lax.conv_general_dilated(
        value,
        kernel.T[:, None, None, :],  # W, 1, 1, H
        window_strides=(1, 1),
        padding=((kernel.shape[1] // 2,) * 2, (0, 0)),
        feature_group_count=kernel.shape[0],
        dimension_numbers=("NHCW", "HWIO", "NHCW"),  # H is our L, C our heads
    )


@pytest.mark.parametrize(
    ("length", "width"), [(1, 1), (1, 35), (7, 3), (127, 35), (128, 33), (129, 35), (263, 301)]
)
def test_agrees_with_the_grouped_convolution_forward_and_gradient(rngs, length, width):
    value = jax.random.normal(next(rngs), (2, length, 3, 5))
    kernel = jax.random.normal(next(rngs), (3, width))
    tangent = jax.random.normal(next(rngs), value.shape)

    actual, pull_back = jax.vjp(depthwise_convolution, value, kernel)
    expected, expected_pull_back = jax.vjp(grouped_convolution, value, kernel)
    assert_close(actual, expected, REFERENCE)
    assert_close(pull_back(tangent), expected_pull_back(tangent), GRADIENT)


@pytest.mark.parametrize("form", [_banded, _shifted])
@pytest.mark.parametrize(("length", "width"), [(1, 5), (7, 3), (131, 33), (300, 35)])
def test_both_forms_are_the_sum_that_the_docstring_writes(rngs, form, length, width):
    value = jax.random.normal(next(rngs), (2, length, 3, 5))
    kernel = jax.random.normal(next(rngs), (3, width))
    padded = np.pad(np.asarray(value, np.float64), ((0, 0), (width // 2,) * 2, (0, 0), (0, 0)))
    expected = sum(
        padded[:, w : w + length] * np.asarray(kernel, np.float64)[None, None, :, w, None]
        for w in range(width)
    )
    assert_close(form(value, kernel), expected, REFERENCE)


def test_its_gradient_can_be_differentiated(rngs):
    value = jax.random.normal(next(rngs), (1, 11, 2, 3))
    kernel = jax.random.normal(next(rngs), (2, 5))
    total = lambda value, kernel: (depthwise_convolution(value, kernel) ** 2).sum()
    reference = lambda value, kernel: (grouped_convolution(value, kernel) ** 2).sum()
    squared = lambda function: (
        lambda *x: sum((leaf**2).sum() for leaf in jax.grad(function, (0, 1))(*x))
    )
    actual = jax.grad(squared(total), (0, 1))(value, kernel)
    expected = jax.grad(squared(reference), (0, 1))(value, kernel)
    assert_close(actual, expected, GRADIENT)


def test_an_impulse_shows_the_kernel_reversed_and_one_a_head():
    value = jnp.zeros((1, 9, 2, 1)).at[0, 4].set(1.0)
    kernel = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    output = depthwise_convolution(value, kernel)[0, :, :, 0].T
    np.testing.assert_array_equal(
        output, [[0, 0, 0, 3, 2, 1, 0, 0, 0], [0, 0, 0, 6, 5, 4, 0, 0, 0]]
    )


def test_bfloat16_stays_bfloat16_and_sums_in_float32():
    value = jnp.ones((1, 1024, 1, 1), jnp.bfloat16)
    output = depthwise_convolution(value, jnp.full((1, 513), 1.0))
    assert output.dtype == jnp.bfloat16
    assert float(output[0, 512, 0, 0]) == 512  # 513 rounds to 512; a bfloat16 sum stops at 256


@pytest.mark.parametrize("shape", [(3, 4), (2, 3), (3,)])
def test_a_kernel_that_does_not_fit_is_refused_in_words(shape, no_annotations):
    with pytest.raises(ValueError, match="W odd"):
        depthwise_convolution(jnp.ones((1, 8, 3, 2)), jnp.ones(shape))


def test_a_value_of_another_rank_is_refused_in_words(no_annotations):
    with pytest.raises(ValueError, match="value must be"):
        depthwise_convolution(jnp.ones((8, 3, 2)), jnp.ones((3, 5)))
