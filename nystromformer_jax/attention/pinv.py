"""Iterative pseudoinverse of the landmark kernel."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.checks import accum_dtype, check_dtype, check_pinv
from nystromformer_jax.support.target import on_gpu
from nystromformer_jax.support.values import Start
from nystromformer_jax.typing import Array, Float


def iterative_pinv(
    kernel: Float[Array, "*batch M N"],
    *,
    num_iters: int = 6,
    start: Start = "exact",
    precision: jax.lax.Precision | None = None,
) -> Float[Array, "*batch N M"]:
    """Approximates the Moore–Penrose inverse of each matrix by iteration.

        Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))),   Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞)

    Six iterations do not converge to the inverse. They act like ridge regularization: singular values far
    below √(‖A‖₁ ‖A‖∞) · 3.25^-3 stay damped, which keeps attention stable. The gradient is that of the
    iterations, not −Zᵀ dZ Zᵀ as for the exact inverse. The backward pass recomputes the iterates, except on
    GPUs.

    Args:
      kernel: A. The result for a zero matrix is zero; zero rows and columns stay zero.
      num_iters: Number of iterations, of four M × M products each; six in the paper.
      start: `"exact"` scales each matrix by its norms. `"batch_max"`, the authors' default, divides by the
        largest column sum in the batch, so the result for an example depends on other examples.
      precision: Precision of the products; None for `HIGHEST`. `HIGH` takes half the time on a TPU, with
        errors of 7e-7 … 2e-4; on a GPU it is TF32, with errors of 3e-4 … 1e-2.

    Returns:
      The inverse in at least float32, for any dtype of `kernel`.

    Raises:
      ValueError: The start is unknown, `num_iters` is not from 0 to 100, or `kernel` has an
        unsupported shape or dtype.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 11–15; the iteration is Razavi et al. 2014.
    """
    check_pinv(num_iters, start, ("num_iters", "start"))
    kernel = jnp.asarray(kernel)
    if kernel.ndim < 2 or 0 in kernel.shape:
        raise ValueError(
            f"iterative_pinv needs non-empty matrices [… M N], got shape {kernel.shape}."
        )
    check_dtype("kernel", kernel)
    return invert(kernel.astype(accum_dtype(kernel.dtype)), num_iters, start, precision)


def invert(
    kernel: Float[Array, "*batch M N"],
    num_iters: int,
    start: Start,
    precision: jax.lax.Precision | None,
) -> Float[Array, "*batch N M"]:
    """Computes `iterative_pinv` for validated arguments, in the dtype of `kernel`."""
    iterate = functools.partial(_iterate, num_iters=num_iters, start=start, precision=precision)
    if on_gpu():
        return iterate(kernel)  # recomputing these small arrays would start forty more kernels
    # With checkpointing, A is the only residual of the backward pass, instead of about thirty arrays.
    return jax.checkpoint(iterate)(kernel)


def pinv_residual(
    kernel: Float[Array, "*batch M N"], inverse: Float[Array, "*batch N M"]
) -> Float[Array, "*batch"]:
    """Returns ‖A Z A − A‖ / ‖A‖ per matrix, in Frobenius norms; 0 if Z is a pseudoinverse of A.

    For the kernels of trained models, a few hundredths after six iterations are normal and harmless; see
    `iterative_pinv`. The residual of a zero matrix is zero.

    Raises:
      ValueError: The shapes do not agree, or a dtype is unsupported.
    """
    kernel, inverse = jnp.asarray(kernel), jnp.asarray(inverse)
    if kernel.ndim < 2 or inverse.shape != kernel.mT.shape:
        raise ValueError(
            "pinv_residual needs matrices [… M N] and inverses [… N M], got shapes"
            f" {kernel.shape} and {inverse.shape}."
        )
    check_dtype("kernel", kernel)
    check_dtype("inverse", inverse)
    kernel = kernel.astype(inverse.dtype)
    precision = jax.lax.Precision.HIGHEST
    round_trip = jnp.matmul(
        jnp.matmul(kernel, inverse, precision=precision), kernel, precision=precision
    )
    error, size = ((x**2).sum(axis=(-2, -1)) for x in (round_trip - kernel, kernel))
    return safe_sqrt(error / safe_denominator(size))


def _iterate(
    kernel: Float[Array, "*batch M N"],
    num_iters: int,
    start: Start,
    precision: jax.lax.Precision | None,
) -> Float[Array, "*batch N M"]:
    # The TPU's default, one bfloat16 pass, has errors of 1e-3 … 1e-1 that grow with each iteration.
    precision = jax.lax.Precision.HIGHEST if precision is None else precision

    def product(left: Array, right: Array) -> Array:
        return jnp.matmul(left, right, precision=precision)

    # A constant, not `jnp.eye`: XLA on GPUs fuses `constant - matrix` into the product that reads it.
    identity: Any = np.eye(kernel.shape[-2], dtype=kernel.dtype).reshape(
        *(1,) * (kernel.ndim - 2), *kernel.shape[-2:-1] * 2
    )
    inverse = _initial_inverse(kernel, start)
    for _ in range(num_iters):
        applied = product(kernel, inverse)
        inner = 15 * identity - product(applied, 7 * identity - applied)
        inverse = 0.25 * product(inverse, 13 * identity - product(applied, inner))
    return inverse


def _initial_inverse(
    kernel: Float[Array, "*batch M N"], start: Start
) -> Float[Array, "*batch N M"]:
    """Returns the initial value Z₀ of the iteration."""
    size = jnp.abs(kernel)
    column_sums, row_sums = size.sum(axis=-2, keepdims=True), size.sum(axis=-1, keepdims=True)
    if start == "batch_max":
        return kernel.mT / safe_denominator(column_sums.max(keepdims=True))
    # The product of the norms may overflow float32. The compiler would merge two divisions into one
    # division by that product, so one of them is a multiplication.
    one_norm = column_sums.max(axis=(-2, -1), keepdims=True)
    infinity_norm = row_sums.max(axis=(-2, -1), keepdims=True)
    return kernel.mT / safe_denominator(one_norm) * (1 / safe_denominator(infinity_norm))


def safe_sqrt(x: Array) -> Array:
    """Returns √x, with a gradient of zero at zero, where that of `jnp.sqrt` is infinite."""
    is_zero = x == 0  # not `x > 0`, which is False for NaN
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


def safe_denominator(x: Array) -> Array:
    """Returns `x` with zeros replaced by ones."""
    return jnp.where(x == 0, 1, x)
