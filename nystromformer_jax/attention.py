"""Softmax attention, the truth, and its Nyström approximation, as functions of query, key and value."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax import kernels
from nystromformer_jax.convolution import depthwise_convolution
from nystromformer_jax.inputs import (
    Implementation,
    Inputs,
    LandmarkOptions,
    Options,
    check_arguments,
    check_inputs,
    check_query_mask,
    where_real,
)
from nystromformer_jax.landmarks import Layout, segment_ids, segment_means
from nystromformer_jax.pinv import Start, iterative_pinv
from nystromformer_jax.steps import (
    collect,
    distribute,
    landmark_kernel,
    scaled_logits,
    weighted_values,
)
from nystromformer_jax.typing import Array, Bool, Float


def softmax_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Exact attention, softmax(query keyᵀ / √D) @ value, in O(L T).

    Args:
      query: What padding holds is never seen, here and in `key` and `value`.
      key: May have another length T (cross-attention).
      value: As long as `key`.
      mask: True at real keys; None means that all are. With no real key at all the output is zero.
      query_mask: True at real queries; None means that the queries carry `mask` where L = T, and
        that all are real where they differ. Rows of masked queries are finite and unspecified.

    Raises:
      ValueError: Shapes that do not fit, or a mask that is not a boolean `[B T]`.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    if query_mask is not None or query.shape[1] == key.shape[1]:
        query = where_real(query, check_query_mask(query, key, mask, query_mask))
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
    mask_conv: bool = True,
    normalize_rows: bool = False,
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
      mask_conv: Whether the convolution sees zeros at padding. False lets it read what padding
        holds, up to W // 2 positions into real tokens, as Hugging Face's does.
      normalize_rows: Divides each row of the map by its sum, which six iterations leave near one,
        so that a constant value comes out as it went in. The peers do not.
      implementation: `"pallas_tpu"` are kernels for TPUs, in O(M D) memory beside the arguments (on
        other machines they are interpreted, slowly); `"xla"` is plain jnp; `"auto"` takes the kernels on a
        TPU. What the kernels cannot serve goes by jnp, and the log says once why. They are
        differentiated once and backwards; `"xla"` in every way. A program for other devices than the
        default ones or the ambient mesh's, such as one that `jax.export` makes, asks for its own.

    Returns:
      The output in `query`'s dtype. A row with no real key is finite.

    Raises:
      ValueError: Sizes of zero, shapes that do not fit, or a mask of another shape.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–17.
    Differs: segments over real tokens, masks in all three factors, exact where it can be, each
    matrix scaled by its own norms, products associated from the right.
    """
    inputs = Inputs.of(query, key, value, mask, query_mask, conv_kernel)
    options = Options(
        num_landmarks=num_landmarks,
        pinv_iters=pinv_iters,
        pinv_start=pinv_start,
        landmark_layout=landmark_layout,
        mask_conv=mask_conv,
        normalize_rows=normalize_rows,
    )
    check_arguments(inputs, options, implementation)
    if not options.exact(inputs) and kernels.chosen(implementation, inputs, options):
        return _by_kernels(inputs, options, interpret=kernels.interpreted())
    return _nystrom_attention(inputs, options)


@functools.partial(jax.jit, static_argnames=("options", "interpret"))
def _by_kernels(inputs: Inputs, options: Options, *, interpret: bool) -> Float[Array, "B L H D"]:
    """`nystrom_attention` behind its checks, on a TPU."""
    return kernels.on_each_device(
        lambda own: kernels.kernel_attention(own, options, interpret), inputs
    )


# Compiled as a whole, so that a call outside of jit costs one compilation and not one an operation.
@functools.partial(jax.jit, static_argnames="options")
def _nystrom_attention(inputs: Inputs, options: Options) -> Float[Array, "B L H D"]:
    """`nystrom_attention` behind its checks."""
    query, key, value, mask, own_query_mask, conv_kernel = inputs
    query_mask = inputs.query_mask
    query, key = options.seen(query, query_mask), options.seen(key, mask)
    conv_value = where_real(value, mask) if options.mask_conv else value
    value = where_real(value, mask)
    if options.exact(inputs):
        output = weighted_values(softmax_weights(query, key, mask), value).astype(query.dtype)
        return add_convolution(output, conv_value, conv_kernel)

    landmarks = find_landmarks(query, key, mask, query_mask, options)
    # The sum of a row is its attention to ones.
    attended = with_ones(value, mask) if options.normalize_rows else value
    values, _, total = collect(landmarks.query, key, attended, mask=mask)
    collected = values / total[..., None]
    landmark_values = jnp.einsum(
        "BHNM,BMHD->BNHD", landmarks.inverse, collected, precision=jax.lax.Precision.HIGHEST
    )
    real = options.landmark_layout == "real"
    if real and mask is not None:
        landmark_values = _exact_for_few_keys(landmark_values, attended, mask)
    few_queries = own_query_mask if real else None  # where they are `mask`, so are the keys few
    # The convolution rides in `distribute` where nothing has to happen to its output before.
    plain = not options.normalize_rows and few_queries is None and conv_kernel is not None
    output = distribute(
        query,
        landmarks.key,
        landmark_values,
        landmark_mask=landmarks.key_alive,
        value=conv_value if plain else None,
        conv_kernel=conv_kernel if plain else None,
    )
    if plain:
        return output
    if few_queries is not None:
        output = _exact_for_few_queries(output, collected, few_queries)
    if options.normalize_rows:
        output = over_row_sums(output)
    return add_convolution(output, conv_value, conv_kernel)


def with_ones(
    value: Float[Array, "B T H D"], mask: Bool[Array, "B T"] | None
) -> Float[Array, "B T H Dv"]:
    """Adds a column of ones at real tokens."""
    ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
    return jnp.concatenate([value, where_real(ones, mask)], axis=-1)


def over_row_sums(output: Float[Array, "B L H Dv"]) -> Float[Array, "B L H D"]:
    """What `with_ones` began: divides by the last column; a row that sums to zero is left as it is."""
    total = output[..., -1:]
    return output[..., :-1] / jnp.where(total == 0, 1, total)


class Landmarks(NamedTuple):
    """The landmarks of queries and keys, and what is made of them alone."""

    query: Float[Array, "B M H D"]
    key: Float[Array, "B M H D"]
    query_alive: Bool[Array, "B M"]  # False where no token stands behind a landmark
    key_alive: Bool[Array, "B M"]
    kernel_2: Float[Array, "B H M M"]
    inverse: Float[Array, "B H M M"]


def find_landmarks(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    query_mask: Bool[Array, "B L"] | None,
    options: LandmarkOptions,
) -> Landmarks:
    """Averages segments of what is `options.seen`, and inverts the attention of landmarks to landmarks."""
    means = functools.partial(
        segment_means, num_landmarks=options.num_landmarks, layout=options.landmark_layout
    )
    q_landmarks, q_alive = means(query, mask=query_mask)
    k_landmarks, k_alive = means(key, mask=mask)
    kernel_2 = landmark_kernel(q_landmarks, k_landmarks, q_alive, k_alive)
    inverse = iterative_pinv(kernel_2, num_iters=options.pinv_iters, start=options.pinv_start)
    return Landmarks(q_landmarks, k_landmarks, q_alive, k_alive, kernel_2, inverse)


def _exact_for_few_keys(
    landmark_values: Float[Array, "B M H Dv"],
    value: Float[Array, "B T H Dv"],
    mask: Bool[Array, "B T"],
) -> Float[Array, "B M H Dv"]:
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
    output: Float[Array, "B L H Dv"],
    collected: Float[Array, "B M H Dv"],
    query_mask: Bool[Array, "B L"],
) -> Float[Array, "B L H Dv"]:
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
