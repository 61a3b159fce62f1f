"""The attention map of Nyström attention: the three factors, and single rows."""

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.arguments import check_options, fold_axes, mask_inputs
from nystromformer_jax.attention.checks import check_inputs, check_query_mask, mask_or_ones
from nystromformer_jax.attention.functions import find_landmarks, softmax_weights
from nystromformer_jax.attention.landmarks import TokenRanks
from nystromformer_jax.attention.options import NystromOptions, OptionArguments, read_options
from nystromformer_jax.attention.stages import MIN_ROW_SUM, Assignment, assign_landmarks
from nystromformer_jax.typing import Array, Bool, Float, Int


class NystromFactors(NamedTuple):
    """Factors of the attention map `kernel_1 @ inverse @ kernel_3`, whose rows may not sum to one."""

    kernel_1: Float[Array, "*batch H L M"]
    inverse: Float[Array, "*batch H M M"]
    kernel_3: Float[Array, "*batch H M T"]


def nystrom_factors(
    query: Float[Array, "*batch L H D"],
    key: Float[Array, "*batch T Hkv D"],
    *,
    mask: Bool[Array, "*batch T"] | None = None,
    query_mask: Bool[Array, "*batch L"] | None = None,
    **options: Unpack[OptionArguments],
) -> NystromFactors:
    """Returns the factors of the attention map, without the convolution, in O((L + T) M).

    If `nystrom_attention` is exact, the product of the factors is the softmax matrix and the inverse is the
    identity. With at most M keys, kernel_1 is the softmax matrix and kernel_3 selects each landmark's key.
    With at most M queries, kernel_3 is the softmax matrix and kernel_1 selects each query's landmark.

    Arguments and errors are as in `nystrom_attention`; `options` are its options, with their
    defaults. Rows of masked queries are unspecified.
    """
    folded, batch = fold_axes(query, key, key, mask, query_mask)
    query, key, _, mask, query_mask = folded
    check_inputs(query, key, key, mask)
    chosen = read_options("nystrom_factors", options)
    check_options(chosen, query, key)
    query_mask = check_query_mask(query, key, mask, query_mask)
    factors = _nystrom_factors(query, key, mask, query_mask, chosen)
    if chosen.normalize_rows:
        factors = _normalize_rows(factors)
    return NystromFactors(*(x.reshape(*batch, *x.shape[1:]) for x in factors))


@functools.partial(jax.jit, static_argnames="options")
def _nystrom_factors(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    query_mask: Bool[Array, "B L"] | None,
    options: NystromOptions,
) -> NystromFactors:
    num_landmarks = options.num_landmarks
    query, key = mask_inputs(query, query_mask, options), mask_inputs(key, mask, options)
    if options.landmark_selection == "kmeans":
        # With a mask, `cluster_landmarks` keeps the segment means of examples with at most M real tokens.
        # Below, `assign_landmarks` makes these examples exact, which needs segment means.
        mask, query_mask = mask_or_ones(mask, key), mask_or_ones(query_mask, query)
    landmarks = find_landmarks(query, key, mask, query_mask, options)
    kernel_1 = softmax_weights(query, landmarks.k_landmarks, landmarks.k_landmark_mask)
    kernel_3 = softmax_weights(landmarks.q_landmarks, key, mask)
    if mask is not None:  # also without a real key
        kernel_3 = jnp.where(mask[:, None, None], kernel_3, 0)
    inverse = landmarks.inverse
    if options.landmark_layout == "real":
        q_ranks, k_ranks = (
            TokenRanks.create(mask_or_ones(real, x))
            for x, real in ((query, query_mask), (key, mask))
        )
        assignment = assign_landmarks(num_landmarks, k_ranks, q_ranks, options.num_own_landmarks)
    elif query.shape[1] == key.shape[1] == num_landmarks:  # each position is a landmark
        positions = jnp.broadcast_to(
            jnp.arange(num_landmarks, dtype=jnp.int32)[None], query.shape[:2]
        )
        assignment = Assignment(of_queries=positions, is_exact=jnp.ones(len(query), bool))
    else:
        return NystromFactors(kernel_1, inverse, kernel_3)
    kernel_1 = _one_hot_rows(kernel_1, assignment.of_queries)
    kernel_3 = _one_hot_rows(kernel_3.mT, assignment.of_keys).mT
    assert assignment.is_exact is not None
    identity = jnp.eye(num_landmarks, dtype=inverse.dtype)[None, None]
    inverse = jnp.where(assignment.is_exact[:, None, None, None], identity, inverse)
    return NystromFactors(kernel_1, inverse, kernel_3)


@jax.jit
def _normalize_rows(factors: NystromFactors) -> NystromFactors:
    """Divides the rows of kernel_1 by the row sums of the map, as `nystrom_attention` does."""
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    kernel_1, inverse, kernel_3 = factors
    sums = product(kernel_1, product(inverse, kernel_3.sum(axis=-1, keepdims=True)))
    return NystromFactors(kernel_1 / jnp.maximum(sums, MIN_ROW_SUM), inverse, kernel_3)


def _one_hot_rows(
    weights: Float[Array, "B H L M"], assigned: Int[Array, "B L"] | None
) -> Float[Array, "B H L M"]:
    """Sets the weights of tokens that have an assigned landmark to a one-hot row; −1: no landmark."""
    if assigned is None:
        return weights
    landmark = jnp.arange(weights.shape[3], dtype=jnp.int32)[None, None, None]
    assigned = assigned[:, None, :, None]
    return jnp.where(assigned < 0, weights, (assigned == landmark).astype(weights.dtype))


def nystrom_attention_rows(
    query: Float[Array, "*batch L H D"],
    key: Float[Array, "*batch T Hkv D"],
    rows: Int[Array, "*batch R"],
    **options: Any,
) -> Float[Array, "*batch H R T"]:
    """Returns the rows of the attention map at positions `rows`, without computing the L × T map.

    A single row (R = 1), for example for a class token, costs O((L + T) M).

    Args:
      query: All queries, because landmarks depend on all of them.
      key: All keys.
      rows: R query positions for each example. Negative positions count from the end. A position out of
        range gives NaN.
      **options: Arguments of `nystrom_factors`.

    Returns:
      Rows of `kernel_1 @ inverse @ kernel_3`, zero at masked keys.

    Raises:
      ValueError: `rows` is not an integer array `[..., R]`, or another argument is invalid.
    """
    rows, batch = jnp.asarray(rows), jnp.asarray(query).shape[:-3]
    if rows.shape[:-1] != batch or not rows.ndim or not jnp.issubdtype(rows.dtype, jnp.integer):
        raise ValueError(
            f"rows must be query positions, integers [..., R] with the leading axes {batch} of query; got"
            f" shape {rows.shape} of {rows.dtype}."
        )
    kernel_1, inverse, kernel_3 = nystrom_factors(query, key, **options)
    rows_of_kernel_1 = jnp.take_along_axis(kernel_1, rows[..., None, :, None], axis=-2)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return product(product(rows_of_kernel_1, inverse), kernel_3)
