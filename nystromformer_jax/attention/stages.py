"""The stages of Nyström attention in jnp.

Only the segment means, `collect`, `distribute` and the convolution read tokens; the other stages use M × M
and M × D arrays. TPU kernels replace these four. Sequence parallelism replaces all of them except
`distribute`, which does not combine tokens.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    accum_dtype,
    check_array,
    check_inputs,
    check_mask,
    zero_padding,
)
from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.attention.landmarks import LandmarkMeans, TokenRanks
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.attention.pinv import invert
from nystromformer_jax.support.target import on_gpu, target_device
from nystromformer_jax.typing import Array, Bool, Float, Int

# Far below every logit, but finite, so that rows without a real key and their gradients stay finite.
MASKED_LOGIT = -1e30
# The two products of attention.
LOGITS, OUTPUT = "BLHD,BTHD->BHLT", "BHLT,BTHD->BLHD"

# Smallest divisor of `normalize_rows`. Sums of rows can be zero or negative after a few iterations.
MIN_ROW_SUM = 0.5


def collect(
    q_landmarks: Float[Array, "B M H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H Dv"],
    *,
    mask: Bool[Array, "B T"] | None,
    assigned: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B M H Dv"], Float[Array, "B M H"], Float[Array, "B M H"]]:
    """Returns kernel_3 @ value before normalization: landmarks attend to tokens.

        kernel_3 = softmax(q_landmarks keyᵀ / √D)             (the paper's B, Eq. 13)
        kernel_3 @ value = values / sum

    Args:
      q_landmarks: Query landmarks.
      key: Keys; must be finite, also at padding.
      value: Values; must be finite, also at padding.
      mask: True at real keys; None means all are real.
      assigned: Landmark that collects the value of each key, or M for none. −1 for all keys of an example
        that uses attention.

    Returns:
      `(values, maximum, sum)` in at least float32: Σ exp(logit − maximum) · value, the maximum of the
      logits, without a gradient, and Σ exp(logit − maximum). To combine parts of a sequence, multiply
      values and sum by exp(maximum − common maximum), then add. Without a real key the maximum is
      `MASKED_LOGIT`, so the part has no effect when combined with others.

    Raises:
      ValueError: Shapes do not agree, or a dtype is unsupported.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 13.
    """
    names = ("q_landmarks", "key", "value")
    check_inputs(q_landmarks, key, value, mask, names, any_value_dim=True)
    tokens = (jnp.asarray(x) for x in (q_landmarks, key, value))
    return collect_parts(*tokens, mask=mask, assigned=assigned)


def collect_parts(
    q_landmarks: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None,
    assigned: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Computes `collect` for validated arguments."""
    logits = scaled_logits(q_landmarks, key, mask)
    if assigned is not None:
        landmark = jnp.arange(logits.shape[2], dtype=jnp.int32)[None, None, :, None]
        logits = _assigned_logits(logits, assigned[:, None, None, :], landmark)
    maximum = jax.lax.stop_gradient(logits.max(axis=-1))
    weights = jnp.exp(logits - maximum[..., None])
    values = weighted_values(weights, value)
    return values, maximum.swapaxes(1, 2), weights.sum(axis=-1).swapaxes(1, 2)


def collect_normalized(
    q_landmarks: Array, key: Array, value: Array, *, mask: Array | None
) -> Array:
    """Returns kernel_3 @ value if one device has all keys; `collect_parts` is for parts of a sequence."""
    return softmax_product(scaled_logits(q_landmarks, key, mask), value)


def distribute(
    query: Float[Array, "B L H D"],
    k_landmarks: Float[Array, "B M H D"],
    landmark_values: Float[Array, "B M H Dv"],
    *,
    landmark_mask: Bool[Array, "B M"] | None,
    assigned: Int[Array, "B L"] | None = None,
    value: Float[Array, "B L H Dv"] | None = None,
    conv_kernel: Float[Array, "H W"] | Float[Array, "H D W"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H Dv"]:
    """Returns kernel_1 @ landmark_values plus the convolution: tokens attend to landmarks.

        output = kernel_1 @ landmark_values + convolution(value, conv_kernel)
        kernel_1 = softmax(query k_landmarksᵀ / √D)           (the paper's F, Eq. 13)

    Args:
      query: Queries; must be finite.
      k_landmarks: Key landmarks.
      landmark_values: pinv(kernel_2) @ kernel_3 @ value.
      landmark_mask: False at landmarks without tokens, which get weight zero.
      assigned: For each query, the index of the landmark whose value is its output; −1 for all queries of
        an example that attend to the landmarks.
      value: Input of the convolution; required only with `conv_kernel`.
      conv_kernel: One kernel per head or per channel, W odd.
      mask: True where `value` is real; the convolution reads zeros elsewhere.

    Returns:
      The attention output in `query`'s dtype.

    Raises:
      ValueError: Shapes do not agree, or a dtype is unsupported.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 13–17.
    """
    names = ("query", "k_landmarks", "landmark_values")
    check_inputs(query, k_landmarks, landmark_values, None, names, any_value_dim=True)
    check_mask(
        "landmark_mask", landmark_mask, k_landmarks.shape[:2], "landmarks with tokens, [B M]"
    )
    query, k_landmarks, landmark_values = (
        jnp.asarray(x) for x in (query, k_landmarks, landmark_values)
    )
    output = distribute_values(
        query, k_landmarks, landmark_values, landmark_mask=landmark_mask, assigned=assigned
    )
    if conv_kernel is None:
        return output
    if value is None:
        raise ValueError("distribute needs `value` when `conv_kernel` is given.")
    check_array("value", value, "batch, length, heads, head_dim")
    if value.shape != output.shape:
        raise ValueError(
            f"distribute with `conv_kernel` needs a value of shape {output.shape}, got {value.shape}."
        )
    check_mask("mask", mask, value.shape[:2], "real values, [B L]")
    value = zero_padding(value, mask)
    return output + depthwise_convolution(value, conv_kernel).astype(query.dtype)


def distribute_values(
    query: Float[Array, "B L H D"],
    k_landmarks: Float[Array, "B M H D"],
    landmark_values: Float[Array, "B M H Dv"],
    *,
    landmark_mask: Bool[Array, "B M"] | None,
    assigned: Int[Array, "B L"] | None,
) -> Float[Array, "B L H Dv"]:
    """Computes `distribute` without a convolution, for validated arguments."""
    logits = scaled_logits(query, k_landmarks, landmark_mask)
    if assigned is not None:
        landmark = jnp.arange(logits.shape[3], dtype=jnp.int32)[None, None, None, :]
        logits = _assigned_logits(logits, assigned[:, None, :, None], landmark)
    return softmax_product(logits, landmark_values.astype(query.dtype)).astype(query.dtype)


def _assigned_logits(
    logits: Float[Array, "B H _ _"],
    assigned: Int[Array, "B 1 _ _"],
    landmark: Int[Array, "1 1 _ _"],
) -> Float[Array, "B H _ _"]:
    """Returns one-hot logits for tokens with an assigned landmark; −1 keeps the logits."""
    one_hot = jnp.where(assigned == landmark, 0.0, MASKED_LOGIT).astype(logits.dtype)
    return jnp.where(assigned < 0, logits, one_hot)


class Assignment(NamedTuple):
    """Assigns tokens to landmarks in examples with at most M real keys or queries."""

    of_keys: Int[Array, "B T"] | None = None  # −1 in other examples; None: no assignment
    of_queries: Int[Array, "B L"] | None = None
    has_few_keys: Bool[Array, " B"] | None = None  # True for examples with assigned keys
    is_exact: Bool[Array, " B"] | None = None  # True for examples with an assignment


def assign_landmarks(
    num_landmarks: int, keys: TokenRanks | None, queries: TokenRanks | None, num_own: int = 0
) -> Assignment:
    """Returns the assignment that makes examples with at most M real keys or queries exact.

    With at most M real keys, each key is a landmark and keeps its value; kernel_1 is the softmax matrix.
    With at most M real queries, each query is a landmark and its output is the landmark's value. In both
    cases the pseudoinverse is not used.

    Args:
      num_landmarks: M.
      keys: Ranks of the keys; None without a mask.
      queries: Ranks of the queries; None without an explicit query mask.
      num_own: Number of tokens with a landmark of their own.
    """
    of_keys = of_queries = few_keys = is_exact = None
    if keys is not None:
        few_keys = is_exact = keys.counts <= num_landmarks
        of_keys = jnp.where(is_exact[:, None], keys.segment_ids(num_landmarks, num_own), -1)
    if queries is not None:
        few_queries = queries.counts <= num_landmarks
        if is_exact is not None:
            few_queries &= ~is_exact
        of_queries = jnp.where(
            few_queries[:, None], queries.segment_ids(num_landmarks, num_own), -1
        )
        is_exact = few_queries if is_exact is None else is_exact | few_queries
    return Assignment(of_keys, of_queries, few_keys, is_exact)


class Landmarks(NamedTuple):
    """Landmarks of queries and keys, and the pseudoinverse of kernel_2."""

    q_landmarks: Float[Array, "B M H D"]
    k_landmarks: Float[Array, "B M H D"]
    k_landmark_mask: Bool[Array, "B M"]
    kernel_2: Float[Array, "B H M M"]
    inverse: Float[Array, "B H M M"]

    def apply_inverse(
        self, collected: Float[Array, "B M H Dv"], is_exact: Bool[Array, " B"] | None
    ) -> Float[Array, "B M H Dv"]:
        """Returns inverse @ collected; for exact examples, `collected` unchanged."""
        values = jnp.einsum(
            "BHNM,BMHD->BNHD", self.inverse, collected, precision=jax.lax.Precision.HIGHEST
        )
        if is_exact is None:
            return values
        return jnp.where(is_exact[:, None, None, None], collected, values)


def invert_landmarks(
    q_means: LandmarkMeans,
    k_means: LandmarkMeans,
    options: NystromOptions,
    precision: jax.lax.Precision | None = None,
) -> Landmarks:
    """Returns the landmarks and the pseudoinverse of kernel_2; for `precision` see `iterative_pinv`."""
    q_landmarks, q_landmark_mask, _ = q_means
    k_landmarks, k_landmark_mask, _ = k_means
    kernel_2 = landmark_kernel(q_landmarks, k_landmarks, q_landmark_mask, k_landmark_mask)
    refine = precision is None and q_landmarks.dtype.itemsize >= 4
    inverse = invert(kernel_2, options, precision, refine=refine)
    return Landmarks(q_landmarks, k_landmarks, k_landmark_mask, kernel_2, inverse)


def landmark_kernel(
    q_landmarks: Float[Array, "B M H D"],
    k_landmarks: Float[Array, "B M H D"],
    q_landmark_mask: Bool[Array, "B M"],
    k_landmark_mask: Bool[Array, "B M"],
) -> Float[Array, "B H M M"]:
    """Returns kernel_2 in at least float32; rows and columns of masked landmarks are zero.

    Zero rows and columns stay zero in the pseudoinverse. An identity instead would be wrong if more
    key landmarks than query landmarks are unmasked.
    """
    dtype = accum_dtype(q_landmarks.dtype)
    logits = scaled_logits(
        q_landmarks.astype(dtype),
        k_landmarks.astype(dtype),
        k_landmark_mask,
        precision=jax.lax.Precision.HIGHEST,
    )
    mask = q_landmark_mask[:, None, :, None] & k_landmark_mask[:, None, None, :]
    return jnp.where(mask, jax.nn.softmax(logits, axis=-1), 0)


def scaled_logits(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    *,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B H L T"]:
    """Returns query · key / √D in at least float32; `MASKED_LOGIT` at masked keys."""
    logits = _product(LOGITS, precision, query, key)
    logits = logits * query.shape[-1] ** -0.5
    if mask is None:
        return logits
    # Added, not selected: XLA's CPU backend fuses an addition with the product.
    return logits + jnp.where(mask, 0.0, MASKED_LOGIT).astype(logits.dtype)[:, None, None, :]


def softmax_product(
    logits: Float[Array, "B H L T"], value: Float[Array, "B T H Dv"]
) -> Float[Array, "B L H Dv"]:
    """Returns softmax(logits) @ value in at least float32; weights are rounded to `value`'s dtype."""
    if on_gpu():
        return weighted_values(_rounded_softmax(logits, value.dtype), value)
    weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    # Normalized after the product, because dividing L × D numbers is cheaper than L × T.
    output = weighted_values(weights, value)
    return _divide(output, weights.sum(axis=-1).swapaxes(1, 2)[..., None])


@jax.custom_jvp
def _divide(
    output: Float[Array, "B L H Dv"], total: Float[Array, "B L H 1"]
) -> Float[Array, "B L H Dv"]:
    """Returns output / total; its gradient with respect to `total` is a matrix product.

    As a sum over Dv, XLA's CPU backend of jaxlib 0.10.2 spends a quarter of the whole gradient on it.
    """
    return output / total


@_divide.defjvp
def _divide_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (output, total), (d_output, d_total) = primals, tangents
    quotient = _divide(output, total)
    ones = jnp.ones((1, quotient.shape[-1]), quotient.dtype)  # transposed: the sum over Dv
    spread = jnp.matmul(d_total, ones, precision=jax.lax.Precision.HIGHEST)
    return quotient, (d_output - quotient * spread) / total


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _rounded_softmax(logits: Float[Array, "B H L T"], dtype: jnp.dtype) -> Float[Array, "B H L T"]:
    """Returns softmax(logits) in `dtype`; only these weights are kept for the gradient."""
    return jax.nn.softmax(logits, axis=-1).astype(dtype)


@_rounded_softmax.defjvp
def _rounded_softmax_jvp(
    dtype: jnp.dtype, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    # The barrier keeps the compiler from recomputing the weights from the logits, which need more memory.
    weights = jax.lax.optimization_barrier(_rounded_softmax(*primals, dtype))
    weights_f32 = weights.astype(primals[0].dtype)
    product = weights_f32 * tangents[0]
    return weights, (product - weights_f32 * product.sum(axis=-1, keepdims=True)).astype(dtype)


def weighted_values(
    weights: Float[Array, "B H L T"], value: Float[Array, "B T H Dv"]
) -> Float[Array, "B L H Dv"]:
    """Returns weights @ value in at least float32; weights are first rounded to `value`'s dtype."""
    return _product(OUTPUT, None, weights.astype(value.dtype), value)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _product(spec: str, precision: jax.lax.PrecisionLike, x: Array, y: Array) -> Array:
    """Returns the product of two arrays of one dtype in at least float32.

    Its gradients are products in the dtype of `x` and `y`, too. JAX's own rule would convert both to float32.
    """
    return _einsum(spec, x, y, precision=precision, preferred_element_type=accum_dtype(x.dtype))


@_product.defjvp
def _product_jvp(
    spec: str,
    precision: jax.lax.PrecisionLike,
    primals: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    (x, y), (dx, dy) = primals, tangents
    output = _product(spec, precision, x, y)
    product = functools.partial(_einsum, spec, precision=precision)
    tangent = product(dx, y).astype(output.dtype) + product(x, dy).astype(output.dtype)
    return output, tangent


def _einsum(spec: str, x: Array, y: Array, **options: Any) -> Array:
    """Returns `jnp.einsum`; on a CPU, after moving the axis of heads before that of tokens.

    Otherwise XLA's CPU backend moves features before tokens, in the loop that computes the operand. This
    makes the loop take up to as long as the product itself.
    """
    if target_device()[0] != "cpu":
        return jnp.einsum(spec, x, y, **options)
    if spec == LOGITS:
        return jnp.einsum("BHLD,BHTD->BHLT", x.swapaxes(1, 2), y.swapaxes(1, 2), **options)
    assert spec == OUTPUT
    output: Array = jnp.einsum("BHLT,BHTD->BHLD", x, y.swapaxes(1, 2), **options)
    return output.swapaxes(1, 2)
