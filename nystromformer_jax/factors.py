"""The attention map that Nyström attention stands for: its three factors, and single rows of it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.attention import find_landmarks, softmax_weights
from nystromformer_jax.inputs import LandmarkOptions, check_inputs, check_query_mask
from nystromformer_jax.landmarks import Layout, segment_ids
from nystromformer_jax.pinv import Start
from nystromformer_jax.typing import Array, Bool, Float, Int


class NystromFactors(NamedTuple):
    """The attention map is `kernel_1 @ inverse @ kernel_3`, `[B H L T]`; rows need not sum to one."""

    kernel_1: Float[Array, "B H L M"]
    inverse: Float[Array, "B H M M"]
    kernel_3: Float[Array, "B H M T"]


def nystrom_factors(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    *,
    num_landmarks: int = 64,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
    pinv_iters: int = 6,
    pinv_start: Start = "exact",
    landmark_layout: Layout = "real",
) -> NystromFactors:
    """The factors of `nystrom_attention`'s map, without the convolution, in O((L + T) M).

    Where `nystrom_attention` is exact (see there), so is the product of the factors: with few keys
    kernel_1 is the softmax matrix and kernel_3 picks the key behind each landmark, with few queries
    kernel_3 is it and kernel_1 picks the landmark of each query; inverse is then the identity.

    Arguments and errors are those of `nystrom_attention`. Rows of masked queries are unspecified.
    """
    query, key = jnp.asarray(query), jnp.asarray(key)
    check_inputs(query, key, key, mask)
    options = LandmarkOptions(
        num_landmarks=num_landmarks,
        pinv_iters=pinv_iters,
        pinv_start=pinv_start,
        landmark_layout=landmark_layout,
    )
    options.check(query, key)
    query_mask = check_query_mask(query, key, mask, query_mask)
    return _nystrom_factors(query, key, mask, query_mask, options)


@functools.partial(jax.jit, static_argnames="options")
def _nystrom_factors(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    query_mask: Bool[Array, "B L"] | None,
    options: LandmarkOptions,
) -> NystromFactors:
    """`nystrom_factors` behind its checks."""
    num_landmarks, landmark_layout = options.num_landmarks, options.landmark_layout
    query, key = options.seen(query, query_mask), options.seen(key, mask)
    landmarks = find_landmarks(query, key, mask, query_mask, options)
    kernel_1 = softmax_weights(query, landmarks.key, landmarks.key_alive)
    kernel_3 = softmax_weights(landmarks.query, key, mask)
    if landmark_layout == "real":
        few_keys = _few(key, mask, num_landmarks)
        few_queries = _few(query, query_mask, num_landmarks) & ~few_keys
    else:  # those codes are exact where every position is a landmark
        few_keys = jnp.full((1, 1, 1, 1), False)
        few_queries = jnp.full((1, 1, 1, 1), query.shape[1] == key.shape[1] == num_landmarks)
    own_key = _membership(key, mask, num_landmarks, landmark_layout).swapaxes(2, 3)
    own_landmark = _membership(query, query_mask, num_landmarks, landmark_layout)
    identity = jnp.eye(num_landmarks, dtype=kernel_1.dtype)[None, None]
    return NystromFactors(
        jnp.where(few_queries, own_landmark.astype(kernel_1.dtype), kernel_1),
        jnp.where(few_keys | few_queries, identity, landmarks.inverse),
        jnp.where(few_keys, own_key.astype(kernel_3.dtype), kernel_3),
    )


def nystrom_attention_rows(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    rows: Int[Array, "B R"],
    *,
    num_landmarks: int = 64,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
    pinv_iters: int = 6,
    pinv_start: Start = "exact",
    landmark_layout: Layout = "real",
) -> Float[Array, "B H R T"]:
    """What the queries at positions `rows` attend to, without ever making the L × T map.

    One row (R = 1), for example that of a class token, costs O((L + T) M).

    Args:
      query: All queries; the landmarks need them.
      key: All keys.
      rows: Positions in the query, of R rows for each example.
      num_landmarks: This and what follows as in `nystrom_attention`.
      mask: As there.
      query_mask: As there.
      pinv_iters: As there.
      pinv_start: As there.
      landmark_layout: As there.

    Returns:
      Rows of the map `kernel_1 @ inverse @ kernel_3`, zero at keys that `mask` does not hold. A row that
      the query has not is NaN: under `jit` a number cannot be refused.

    Raises:
      ValueError: What `nystrom_attention` refuses, and rows that are no whole numbers `[B R]`.
    """
    rows = jnp.asarray(rows)
    if rows.ndim != 2 or len(rows) != len(query) or not jnp.issubdtype(rows.dtype, jnp.integer):
        raise ValueError(
            f"rows must be whole numbers [B R] with B = {len(query)}, positions in the query; got shape"
            f" {rows.shape} of {rows.dtype}."
        )
    kernel_1, inverse, kernel_3 = nystrom_factors(
        query,
        key,
        num_landmarks=num_landmarks,
        mask=mask,
        query_mask=query_mask,
        pinv_iters=pinv_iters,
        pinv_start=pinv_start,
        landmark_layout=landmark_layout,
    )
    chosen = jnp.take_along_axis(kernel_1, rows[:, None, :, None], axis=2)
    precision = jax.lax.Precision.HIGHEST
    return jnp.matmul(
        jnp.matmul(chosen, inverse, precision=precision), kernel_3, precision=precision
    )


def _few(x: Array, mask: Array | None, num_landmarks: int) -> Bool[Array, "B 1 1 1"]:
    """Whether an example has so few real tokens in `x` that each is a landmark of its own."""
    count = jnp.full(x.shape[:1], x.shape[1]) if mask is None else mask.sum(axis=1)
    return (count <= num_landmarks)[:, None, None, None]


def _membership(
    x: Array, mask: Array | None, num_landmarks: int, layout: Layout
) -> Bool[Array, "B 1 L M"]:
    """Which segment each position lies in, as zeros and ones."""
    mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
    ids = segment_ids(mask, num_landmarks, layout=layout)
    return (ids[..., None] == jnp.arange(num_landmarks)[None, None])[:, None]
