"""Softmax attention, the truth, and its Nyström approximation, as functions of query, key and value."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from nystromformer_jax.convolution import check_kernel, depthwise_convolution
from nystromformer_jax.landmarks import Layout, check_landmarks, segment_ids, segment_means
from nystromformer_jax.pinv import Start, iterative_pinv
from nystromformer_jax.steps import collect, distribute, scaled_logits, weighted_values
from nystromformer_jax.typing import Array, Bool, Float

Implementation = Literal["auto", "xla"]


def softmax_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "B L H D"]:
    """Exact attention, softmax(query keyᵀ / √D) @ value, in O(L T).

    Args:
      query: What asks.
      key: What padding holds is never seen.
      value: What padding holds is never seen.
      mask: True at real keys; None means that all are. With no real key at all the output is zero.

    Raises:
      ValueError: Shapes that do not fit, or a mask that is not a boolean `[B T]`.
    """
    check_inputs(query, key, value, mask)
    key, value = where_real(key, mask), where_real(value, mask)
    weights = softmax_weights(query, key, mask)
    return weighted_values(weights, value).astype(query.dtype)


def softmax_weights(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
) -> Float[Array, "B H L T"]:
    """The attention matrix softmax(query keyᵀ / √D) in at least float32; rows sum to one."""
    return jax.nn.softmax(scaled_logits(query, key, mask), axis=-1)


def nystrom_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    num_landmarks: int = 64,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
    pinv_iters: int = 6,
    pinv_start: Start = "exact",
    landmark_layout: Layout = "real",
    conv_kernel: Float[Array, "H W"] | None = None,
    implementation: Implementation = "auto",
) -> Float[Array, "B L H D"]:
    """Approximates softmax attention through M landmarks, in time and memory linear in L and T.

        kernel_1 @ (pinv(kernel_2) @ (kernel_3 @ value)) + convolution(value, conv_kernel)

        kernel_1 = softmax(query       k_landmarksᵀ / √D)   [B H L M]
        kernel_2 = softmax(q_landmarks k_landmarksᵀ / √D)   [B H M M]
        kernel_3 = softmax(q_landmarks keyᵀ         / √D)   [B H M T]

    An example with no more than M real keys, or no more than M real queries, gets its softmax
    attention exactly, alone and in a padded batch alike. An output depends on its own example only,
    and padding at the ends changes nothing at real tokens, for any mask; padding between tokens
    changes nothing either without the convolution, which sees positions.

    Args:
      query: What padding holds is never seen, here and in `key` and `value`.
      key: May have another length T (cross-attention).
      value: As long as `key`.
      num_landmarks: M; 32 or 64 in the paper.
      mask: True at real keys; None means that all are. Key padding only: landmarks mix all tokens,
        so that causal or block masks cannot hold.
      query_mask: True at real queries; None means that the queries carry `mask`. Rows of masked
        queries are finite and otherwise unspecified.
      pinv_iters: Iterations of the pseudoinverse.
      pinv_start: See `iterative_pinv`.
      landmark_layout: See `segment_means`; others than `"real"` reproduce other codes.
      conv_kernel: The skip connection, one kernel a head over positions of the value, W odd.
      implementation: `"auto"` chooses; `"xla"` is plain jnp.

    Returns:
      The output in `query`'s dtype. A row with no real key is finite.

    Raises:
      ValueError: Sizes of zero, shapes that do not fit, or a mask of another shape.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–17.
    Differs: segments over real tokens, masks in all three factors, exact where it can be, each
    matrix scaled by its own norms, products associated from the right.
    """
    check_inputs(query, key, value, mask)
    query_mask_is_mask = query_mask is None
    query_mask = check_query_mask(query, key, mask, query_mask)
    length, key_length = query.shape[1], key.shape[1]
    check_landmarks(num_landmarks, min(length, key_length), landmark_layout)
    check_convolution(query, key, conv_kernel)
    if implementation not in get_args(Implementation):
        raise ValueError(
            f"implementation must be one of {', '.join(map(repr, get_args(Implementation)))},"
            f" got {implementation!r}."
        )

    if landmark_layout != "hf":  # Hugging Face averages in what padding holds
        query, key = where_real(query, query_mask), where_real(key, mask)
    value = where_real(value, mask)
    real = landmark_layout == "real"
    if (real and min(length, key_length) <= num_landmarks) or (
        length == key_length == num_landmarks
    ):
        output = weighted_values(softmax_weights(query, key, mask), value).astype(query.dtype)
        return add_convolution(output, value, conv_kernel)

    q_landmarks, q_alive = segment_means(query, num_landmarks, query_mask, layout=landmark_layout)
    k_landmarks, k_alive = segment_means(key, num_landmarks, mask, layout=landmark_layout)
    kernel_2 = landmark_kernel(q_landmarks, k_landmarks, q_alive, k_alive)
    inverse = iterative_pinv(kernel_2, num_iters=pinv_iters, start=pinv_start)
    values, _, total = collect(q_landmarks, key, value, mask=mask)
    collected = values / total[..., None]
    landmark_values = jnp.einsum(
        "BHNM,BMHD->BNHD", inverse, collected, precision=jax.lax.Precision.HIGHEST
    )
    if real and mask is not None:
        landmark_values = _exact_for_few_keys(landmark_values, value, mask)
    if real and query_mask is not None and not query_mask_is_mask:
        output = distribute(query, k_landmarks, landmark_values, landmark_mask=k_alive)
        output = _exact_for_few_queries(output, collected, query_mask)
        return add_convolution(output, value, conv_kernel)
    return distribute(
        query,
        k_landmarks,
        landmark_values,
        landmark_mask=k_alive,
        value=None if conv_kernel is None else value,
        conv_kernel=conv_kernel,
    )


def landmark_kernel(
    q_landmarks: Float[Array, "B M H D"],
    k_landmarks: Float[Array, "B M H D"],
    q_alive: Bool[Array, "B M"],
    k_alive: Bool[Array, "B M"],
) -> Float[Array, "B H M M"]:
    """kernel_2 in at least float32; rows and columns of dead landmarks are zero.

    Zeros stay zero through the pseudoinverse. Unit rows, as an identity would have them, are wrong
    where live keys outnumber live queries.
    """
    dtype = jnp.promote_types(q_landmarks.dtype, jnp.float32)
    logits = scaled_logits(
        q_landmarks.astype(dtype),
        k_landmarks.astype(dtype),
        k_alive,
        precision=jax.lax.Precision.HIGHEST,
    )
    alive = q_alive[:, None, :, None] & k_alive[:, None, None, :]
    return jnp.where(alive, jax.nn.softmax(logits, axis=-1), 0)


def _exact_for_few_keys(
    landmark_values: Float[Array, "B M H D"],
    value: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"],
) -> Float[Array, "B M H D"]:
    """With at most M real keys each is a landmark, kernel_1 is the softmax, and its values are theirs."""
    num_landmarks = landmark_values.shape[1]
    few = mask.sum(axis=1) <= num_landmarks

    def replace(landmark_values: Array) -> Array:
        own, _ = segment_means(value, num_landmarks, mask)
        return jnp.where(
            few[:, None, None, None], own.astype(landmark_values.dtype), landmark_values
        )

    return jax.lax.cond(few.any(), replace, lambda kept: kept, landmark_values)


def _exact_for_few_queries(
    output: Float[Array, "B L H D"],
    collected: Float[Array, "B M H D"],
    query_mask: Bool[Array, "B L"],
) -> Float[Array, "B L H D"]:
    """With at most M real queries each is a landmark, and its output is what that landmark collected."""
    num_landmarks = collected.shape[1]
    few = query_mask.sum(axis=1) <= num_landmarks

    def replace(output: Array) -> Array:
        ids = jnp.minimum(segment_ids(query_mask, num_landmarks), num_landmarks - 1)
        own = jnp.take_along_axis(collected, ids[..., None, None], axis=1)
        return jnp.where(few[:, None, None, None], own.astype(output.dtype), output)

    return jax.lax.cond(few.any(), replace, lambda kept: kept, output)


def add_convolution(
    output: Float[Array, "B L H D"],
    value: Float[Array, "B T H D"],
    conv_kernel: Float[Array, "H W"] | None,
) -> Float[Array, "B L H D"]:
    """Adds the skip connection of the (masked) value, where there is a kernel for it."""
    if conv_kernel is None:
        return output
    return output + depthwise_convolution(value, conv_kernel).astype(output.dtype)


def where_real(
    x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None
) -> Float[Array, "B L H D"]:
    """Zeros where `mask` is False, by selection: 0 · NaN is NaN."""
    return x if mask is None else jnp.where(mask[..., None, None], x, 0)


def check_inputs(query: Array, key: Array, value: Array, mask: Array | None) -> None:
    """Refuses query, key, value and key mask that do not fit each other, in words."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise ValueError(f"{name} must be [batch, length, heads, head_dim], got {x.shape}.")
        if 0 in x.shape:
            raise ValueError(
                f"{name} has an empty axis: [batch, length, heads, head_dim] = {x.shape}."
            )
    if key.shape != value.shape:
        raise ValueError(f"key and value must have one shape, got {key.shape} and {value.shape}.")
    if query.shape[:1] + query.shape[2:] != key.shape[:1] + key.shape[2:]:
        raise ValueError(
            "query and key may differ in length (axis 1) only: batch, heads and head_dim must agree,"
            f" got {query.shape} and {key.shape}."
        )
    _check_mask("mask", mask, key.shape[0], key.shape[1], "real keys, [B T]")


def check_query_mask(
    query: Array, key: Array, mask: Array | None, query_mask: Array | None
) -> Array | None:
    """The mask of the queries: `query_mask`, or `mask` where the lengths say that it can serve."""
    if query_mask is not None:
        _check_mask("query_mask", query_mask, query.shape[0], query.shape[1], "real queries, [B L]")
        return query_mask
    if mask is not None and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query and key differ in length ({query.shape[1]} and {key.shape[1]}), so `mask` tells"
            " nothing about the queries: pass query_mask [B L] too (all True if none is padding)."
        )
    return mask


def check_convolution(query: Array, key: Array, conv_kernel: Array | None) -> None:
    """Refuses a convolution kernel of a wrong shape, or one over values that are not the queries'."""
    if conv_kernel is None:
        return
    check_kernel(conv_kernel, query.shape[2])
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            "The convolution adds value positions to query positions, so conv_kernel needs equal"
            f" lengths; got L = {query.shape[1]} and T = {key.shape[1]}. Pass conv_kernel=None."
        )


def _check_mask(name: str, mask: Array | None, batch: int, length: int, meaning: str) -> None:
    if mask is None:
        return
    if mask.ndim == 4:
        raise ValueError(
            f"{name} must be True at {meaning} = {(batch, length)}; got {mask.shape}. Nyström attention"
            " takes padding only: its landmarks mix all tokens, so that a causal or block mask"
            " [B 1 L T] cannot hold. Use softmax attention with such masks."
        )
    if mask.shape != (batch, length):
        raise ValueError(
            f"{name} must be True at {meaning} = {(batch, length)}, got shape {mask.shape}."
        )
    if mask.dtype != jnp.bool_:
        raise ValueError(
            f"{name} must be boolean, True at {meaning}; got {mask.dtype}. Pass {name} != 0 if"
            " non-zero means real."
        )
