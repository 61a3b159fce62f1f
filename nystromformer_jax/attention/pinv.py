"""Pseudoinverses of the landmark kernel: the paper's iterations, and the ridge inverse that they resemble."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.checks import accum_dtype, check_dtype, check_pinv
from nystromformer_jax.attention.options import NystromOptions
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
    check_pinv("iterative", num_iters, start, ("num_iters", "start"))
    options = NystromOptions(pinv_iters=num_iters, pinv_start=start)
    return invert(_matrices("iterative_pinv", kernel), options, precision, refine=False)


def ridge_pinv(
    kernel: Float[Array, "*batch M N"],
    *,
    num_iters: int = 6,
    precision: jax.lax.Precision | None = None,
) -> Float[Array, "*batch N M"]:
    """Computes the ridge inverse of each matrix, which `num_iters` steps of `iterative_pinv` resemble.

        Z = (AᵀA + λ c I)⁻¹ Aᵀ,   λ = 3.25^−num_iters,   c = ‖A‖₁ ‖A‖∞

    Each iteration multiplies small singular values of Z by 3.25 until they are inverses; here those below
    √(λ c) are damped directly. The errors of attention are about the same. Unlike the iterations, Z
    converges, so its gradient needs no steps: for six iterations, 15 products of matrices (18 for a kernel in
    float32, whose inverse is refined) and 5 for the gradient replace 24 and 71. Every mode of differentiation
    is supported, of any order.

    Args:
      kernel: A. The result for a zero matrix is zero; zero rows and columns stay zero.
      num_iters: Number of iterations that the inverse resembles, at most 10. For six, relative errors in
        float32 are about 5e-7, those of the gradient 1e-5; for a kernel in half precision, 6e-5.
      precision: Precision of the products; None for `HIGHEST`.

    Returns:
      The inverse in at least float32, for any dtype of `kernel`.

    Raises:
      ValueError: `num_iters` is not from 0 to 10, or `kernel` has an unsupported shape or dtype.

    Source: ridge (Tikhonov) regularization; the inverse of AᵀA + λ c I by Newton-like steps with optimal
    polynomials, as in Pan and Schreiber 1991.
    """
    check_pinv("ridge", num_iters, "exact", ("num_iters", "start"))
    options = NystromOptions(pinv="ridge", pinv_iters=num_iters)
    half = jnp.asarray(kernel).dtype.itemsize < 4
    return invert(_matrices("ridge_pinv", kernel), options, precision, refine=not half)


def _matrices(function: str, kernel: Any) -> Float[Array, "*batch M N"]:
    """Returns the argument of a public function as matrices in at least float32."""
    kernel = jnp.asarray(kernel)
    if kernel.ndim < 2 or 0 in kernel.shape:
        raise ValueError(f"{function} needs non-empty matrices [… M N], got shape {kernel.shape}.")
    check_dtype("kernel", kernel)
    return kernel.astype(accum_dtype(kernel.dtype))


def invert(
    kernel: Float[Array, "*batch M N"],
    options: NystromOptions,
    precision: jax.lax.Precision | None,
    *,
    refine: bool,
) -> Float[Array, "*batch N M"]:
    """Computes the pseudoinverse that the validated options choose, in the dtype of `kernel`.

    With `refine`, the ridge inverse has the precision of float32; otherwise it is sufficient for inputs in
    half precision.
    """
    # The TPU's default, one bfloat16 pass, has errors of 1e-3 … 1e-1 that grow with each iteration.
    precision = jax.lax.Precision.HIGHEST if precision is None else precision
    if options.pinv == "ridge":
        one_norm, infinity_norm = _norms(kernel)
        # √c as two factors: the product of the norms may overflow float32.
        size = jnp.sqrt(one_norm) * jnp.sqrt(infinity_norm)
        return _ridge(kernel / size, options.pinv_iters, precision, refine) / size
    iterate = functools.partial(
        _iterate, num_iters=options.pinv_iters, start=options.pinv_start, precision=precision
    )
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
    wider = max((kernel.dtype, inverse.dtype), key=lambda dtype: jnp.finfo(dtype).bits)
    dtype = accum_dtype(wider)
    kernel, inverse = kernel.astype(dtype), inverse.astype(dtype)
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
    precision: jax.lax.Precision,
) -> Float[Array, "*batch N M"]:
    def product(left: Array, right: Array) -> Array:
        return jnp.matmul(left, right, precision=precision)

    identity = _identity(kernel, kernel.shape[-2])
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
    if start == "batch_max":
        column_sums = jnp.abs(kernel).sum(axis=-2, keepdims=True)
        return kernel.mT / safe_denominator(column_sums.max(keepdims=True))
    # The product of the norms may overflow float32. The compiler would merge two divisions into one
    # division by that product, so one of them is a multiplication.
    one_norm, infinity_norm = _norms(kernel)
    return kernel.mT / one_norm * (1 / infinity_norm)


def _norms(kernel: Float[Array, "*batch M N"]) -> tuple[Array, Array]:
    """Returns ‖A‖₁ and ‖A‖∞ per matrix, [… 1 1], and one for a zero matrix."""
    size = jnp.abs(kernel)
    column_sums, row_sums = size.sum(axis=-2, keepdims=True), size.sum(axis=-1, keepdims=True)
    norms = (sums.max(axis=(-2, -1), keepdims=True) for sums in (column_sums, row_sums))
    one_norm, infinity_norm = map(safe_denominator, norms)
    return one_norm, infinity_norm


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _ridge(
    kernel: Float[Array, "*batch M N"], num_iters: int, precision: jax.lax.Precision, refine: bool
) -> Float[Array, "*batch N M"]:
    """Returns (AᵀA + λ I)⁻¹ Aᵀ for matrices of norm 1 or less."""
    return _damped_inverse(kernel, num_iters, precision, refine)[1]


@_ridge.defjvp
def _ridge_jvp(
    num_iters: int,
    precision: jax.lax.Precision,
    refine: bool,
    primals: tuple[Array],
    tangents: tuple[Array],
) -> tuple[Array, Array]:
    """Returns Z and dZ = P dAᵀ (I − A Z) − Z dA Z; with −P d(AᵀA) P, it would lose three digits."""
    product = functools.partial(jnp.matmul, precision=precision)
    (kernel,), (tangent,) = primals, tangents
    damped, inverse = _damped_inverse(kernel, num_iters, precision, refine)
    rest = _identity(kernel, kernel.shape[-2]) - product(kernel, inverse)
    change = product(product(damped, tangent.mT), rest)
    return inverse, change - product(product(inverse, tangent), inverse)


def _damped_inverse(
    kernel: Float[Array, "*batch M N"], num_iters: int, precision: jax.lax.Precision, refine: bool
) -> tuple[Float[Array, "*batch N N"], Float[Array, "*batch N M"]]:
    """Returns P = (AᵀA + λ I)⁻¹ and Z = P Aᵀ."""
    product = functools.partial(jnp.matmul, precision=precision)
    damping = 3.25 ** -int(num_iters)  # a NumPy integer would change the dtype
    identity = _identity(kernel, kernel.shape[-1])
    # Eigenvalues are in [λ, 1 + λ], then in [λ / (1 + λ), 1].
    matrix = (product(kernel.mT, kernel) + damping * identity) / (1 + damping)
    inverse: Any = None
    for a, b, c in _chebyshev_steps(damping / (1 + damping), float(jnp.finfo(kernel.dtype).eps)):
        applied = matrix if inverse is None else product(matrix, inverse)
        polynomial = a * identity + b * applied + c * product(applied, applied)
        inverse = polynomial if inverse is None else product(inverse, polynomial)
    damped = inverse / (1 + damping)
    inverse = product(damped, kernel.mT)
    if refine:  # P has the rounding errors of AᵀA divided by λ, but this residual has those of A
        rest = _identity(kernel, kernel.shape[-2]) - product(kernel, inverse)
        inverse += product(damped, product(kernel.mT, rest) - damping * inverse)
    return damped, inverse


@functools.cache
def _chebyshev_steps(low: float, epsilon: float) -> tuple[tuple[float, float, float], ...]:
    """Returns coefficients of steps X ← X (a + b BX + c (BX)²) to the inverse of B.

    Each polynomial maps the eigenvalues of BX, first in [`low`, 1], as close to 1 as a cubic without
    constant term can: x (a + b x + c x²) = 1 − T₃(t(x)) / T₃(t(0)), with t linear from the interval to
    [1, −1]. The steps end when the distance to 1 is below 16 times `epsilon`.
    """
    steps, high, error = [], 1.0, 1.0
    while error > 16 * epsilon:
        center, half = (high + low) / 2, (high - low) / 2
        y: Any = np.polynomial.Polynomial([center / half, -1 / half])
        chebyshev = 4 * y**3 - 3 * y
        error = 1 / float(chebyshev(0))
        a, b, c = (-error * chebyshev.coef[1:]).tolist()
        steps.append((a, b, c))
        low, high = 1 - error, 1 + error
    return tuple(steps)


def _identity(like: Float[Array, "*batch M N"], size: int) -> Any:
    # A constant, not `jnp.eye`: XLA on GPUs fuses `constant - matrix` into the product that reads it.
    return np.eye(size, dtype=like.dtype).reshape(*(1,) * (like.ndim - 2), size, size)


def safe_sqrt(x: Array) -> Array:
    """Returns √x, with a gradient of zero at zero, where that of `jnp.sqrt` is infinite."""
    is_zero = x == 0  # not `x > 0`, which is False for NaN
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


def safe_denominator(x: Array) -> Array:
    """Returns `x` with zeros replaced by ones."""
    return jnp.where(x == 0, 1, x)
