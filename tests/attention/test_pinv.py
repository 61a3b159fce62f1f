import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from nystromformer_jax.attention.pinv import iterative_pinv, pinv_residual, ridge_pinv
from tests.helpers import REFERENCE, assert_close, normal, ridge_inverse

jit_pinv = jax.jit(iterative_pinv, static_argnames=("num_iters", "start"))


def random_kernel(rngs, batch, heads, landmarks, sharpness=3.0):
    logits = sharpness * normal(next(rngs), (batch, heads, landmarks, landmarks))
    return jax.jit(jax.nn.softmax)(logits)


def test_converges_to_the_pseudoinverse(rngs):
    with jax.enable_x64(True):
        kernel = random_kernel(rngs, 2, 3, 7).astype(jnp.float64)
        assert_close(jit_pinv(kernel, num_iters=30), np.linalg.pinv(kernel), REFERENCE)


@pytest.mark.parametrize("pinv", [iterative_pinv, ridge_pinv])
def test_each_matrix_is_inverted_alone_and_zeros_stay_zero(rngs, pinv):
    """With finite gradients, also of zero matrices and of bfloat16, which is inverted in float32."""
    kernel = random_kernel(rngs, 3, 2, 7)
    kernel = kernel.at[0, :, 3].set(0).at[0, :, :, 5].set(0).at[1].set(0)
    pinv = jax.jit(pinv)
    inverse, pull_back = jax.vjp(pinv, kernel)
    assert (inverse[0, :, :, 3] == 0).all()
    assert (inverse[0, :, 5] == 0).all()
    assert (inverse[1] == 0).all()
    assert jnp.isfinite(pull_back(jnp.ones_like(inverse))[0]).all()
    assert_close(inverse[2:], pinv(kernel[2:]), REFERENCE)
    assert jax.eval_shape(pinv, kernel.astype(jnp.bfloat16)).dtype == jnp.float32


def test_batch_max_start_divides_by_the_largest_column_sum():
    kernel = jnp.array([[[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.5, 0.5]]])
    start = jit_pinv(kernel, num_iters=0, start="batch_max")
    np.testing.assert_allclose(start, kernel.mT / 1.5, rtol=1e-6)


@pytest.mark.slow_except("exact")
@pytest.mark.parametrize("start", ["exact", "batch_max"])
def test_gradient_equals_that_of_the_iteration(rngs, start):
    @jax.jit
    def of_logits(logits):  # with respect to logits, so that all row sums stay one
        return iterative_pinv(jax.nn.softmax(logits, axis=-1), start=start)

    with jax.enable_x64(True):
        logits = 3 * normal(next(rngs), (2, 1, 5, 5), jnp.float64)
        check_grads(of_logits, (logits,), order=1, modes=["rev"], rtol=1e-5)


def test_residual_is_zero_for_an_inverse_one_for_a_zero_inverse_and_nan_for_nan():
    """It is zero with a zero gradient for a zero matrix."""
    kernel = jnp.stack([jnp.diag(jnp.array([1.0, 2.0])), jnp.zeros((2, 2))])
    inverse = jnp.stack([jnp.diag(jnp.array([1.0, 0.5])), jnp.zeros((2, 2))])
    residual, nan = jax.jit(pinv_residual), jnp.full_like(kernel, jnp.nan)
    np.testing.assert_allclose(residual(kernel, inverse), [0, 0], atol=1e-7)
    np.testing.assert_allclose(residual(kernel, 0 * inverse), [1, 0], atol=1e-7)
    assert jnp.isnan(residual(kernel, nan)).all()
    assert jnp.isnan(residual(nan, inverse)).all()
    third = jnp.diag(jnp.array([3.0, 3.0])), jnp.diag(jnp.array([1 / 3, 1 / 3]))
    half = residual(third[0], third[1].astype(jnp.bfloat16))  # the rounding of the inverse alone
    assert half == pytest.approx(abs(3 * float(jnp.bfloat16(1 / 3)) - 1), rel=1e-4)
    gradient = jax.jit(jax.grad(lambda a: pinv_residual(a, iterative_pinv(a))))(kernel[1])
    assert (gradient == 0).all()


def test_backward_pass_stores_only_the_kernel(rngs):
    kernel = random_kernel(rngs, 2, 3, 7)
    _, pull_back = jax.vjp(iterative_pinv, kernel)
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull_back) if leaf.size >= kernel.size)
    assert kept == kernel.size


@pytest.mark.parametrize(("pinv", "bias"), [(iterative_pinv, 1e-5), (ridge_pinv, 2 * 3.25**-6)])
def test_very_small_and_very_large_matrices_are_inverted(pinv, bias):
    sizes = np.array([1e-25, 1e25])[:, None, None]
    inverse = jax.jit(pinv)(np.float32(sizes * np.eye(3)))
    np.testing.assert_allclose(inverse, np.eye(3) / sizes, rtol=bias, atol=0)


@pytest.mark.parametrize(
    ("precision", "name"), [(None, "HIGHEST"), (jax.lax.Precision.HIGH, "HIGH")]
)
def test_every_product_has_the_highest_or_the_given_precision(precision, name):
    """On a CPU it makes no difference; on a TPU the default precision is too low for the inverse."""
    pinv = functools.partial(iterative_pinv, precision=precision)
    jaxpr = str(jax.make_jaxpr(pinv)(jnp.eye(4)))
    assert jaxpr.count("dot_general") == 24
    assert jaxpr.count(f"Precision.{name}, Precision.{name}") == 24


@pytest.mark.parametrize(
    ("shape", "num_iters"), [((2, 3, 17, 17), 6), ((5, 4), 10), ((3, 4, 9), 0)]
)
def test_ridge_solves_the_regularized_equations(rngs, shape, num_iters):
    with jax.enable_x64(True):
        kernel = jax.nn.softmax(3 * normal(next(rngs), shape, jnp.float64))
        actual = jax.jit(functools.partial(ridge_pinv, num_iters=num_iters))(kernel)
        assert_close(actual, ridge_inverse(kernel, num_iters), REFERENCE)


@pytest.mark.parametrize(("dtype", "error"), [(jnp.float32, 1e-6), (jnp.float16, 1e-4)])
def test_ridge_has_the_errors_of_its_docstring(rngs, dtype, error):
    kernel = random_kernel(rngs, 8, 2, 37).astype(dtype)
    exact = ridge_inverse(kernel, 6)
    assert np.linalg.norm(ridge_pinv(kernel) - exact) < error * np.linalg.norm(exact)


def test_ridge_has_derivatives_of_every_order_and_mode(rngs):
    with jax.enable_x64(True):
        kernel = jnp.abs(normal(next(rngs), (2, 5, 4), jnp.float64))
        check_grads(jax.jit(ridge_pinv), (kernel,), order=2, modes=["fwd", "rev"], rtol=1e-4)


@pytest.mark.parametrize(("dtype", "forward"), [(jnp.bfloat16, 15), (jnp.float32, 18)])
def test_products_of_ridge_and_five_more_for_the_gradient(dtype, forward):
    kernel = jnp.eye(4, dtype=dtype)
    assert str(jax.make_jaxpr(ridge_pinv)(kernel)).count("dot_general[") == forward
    both = jax.make_jaxpr(lambda a, g: jax.vjp(ridge_pinv, a)[1](g))(kernel, jnp.eye(4))
    assert str(both).count("dot_general[") == forward + 5
