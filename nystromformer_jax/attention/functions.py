"""Softmax attention (the reference) and Nyström attention, as functions of query, key and value."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.attention import chunks
from nystromformer_jax.attention.arguments import (
    Inputs,
    check_arguments,
    fold_axes,
    is_exact,
    mask_inputs,
)
from nystromformer_jax.attention.checks import (
    check_inputs,
    check_query_mask,
    mask_or_ones,
    zero_padding,
)
from nystromformer_jax.attention.clusters import cluster_landmarks
from nystromformer_jax.attention.convolution import convolve
from nystromformer_jax.attention.landmarks import (
    LandmarkMeans,
    TokenRanks,
    first_tokens,
    means_of_segments,
)
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.attention.stages import (
    MIN_ROW_SUM,
    Assignment,
    Landmarks,
    assign_landmarks,
    invert_landmarks,
    scaled_logits,
    weighted_values,
)
from nystromformer_jax.kernels import cudnn
from nystromformer_jax.kernels.choice import choose, interpret_mode, run_kernels
from nystromformer_jax.support.values import Implementation, Layout, Pinv, Selection, Start
from nystromformer_jax.typing import Array, Bool, Float


def softmax_attention(
    query: Float[Array, "*batch L H D"],
    key: Float[Array, "*batch T Hkv D"],
    value: Float[Array, "*batch T Hkv D"],
    *,
    mask: Bool[Array, "*batch T"] | None = None,
    query_mask: Bool[Array, "*batch L"] | None = None,
) -> Float[Array, "*batch L H D"]:
    """Computes exact attention, softmax(query keyᵀ / √D) @ value, in O(L T).

    Padding has no effect on the output at real tokens, even if it contains NaN.

    Args:
      query: Queries, [..., length, heads, head_dim], with any number of leading batch axes.
      key: Keys; their length T may differ from L (cross-attention). If they have fewer heads than the
        queries, each key head serves a group of consecutive query heads, as in
        `jax.nn.dot_product_attention`.
      value: Values, of the same shape as `key`.
      mask: True at real keys; None means all are real. Without a real key the output is zero.
      query_mask: True at real queries. None means that the queries use `mask` if L = T, and that all
        queries are real otherwise. Rows of masked queries are finite but otherwise unspecified.

    Raises:
      ValueError: Shapes do not agree, a dtype is unsupported, or a mask is not boolean.
    """
    folded, batch = fold_axes(query, key, value, mask, query_mask)
    query, key, value, mask, query_mask = folded
    check_inputs(query, key, value, mask)
    if query_mask is not None or query.shape[1] == key.shape[1]:
        query = zero_padding(query, check_query_mask(query, key, mask, query_mask))
    output = _softmax_attention(query, key, value, mask)
    return output.reshape(*batch, *output.shape[1:])


# Compiled as one program outside of jit. Inside, it becomes part of the caller's program.
@functools.partial(jax.jit, inline=True)
def _softmax_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
) -> Float[Array, "B L H D"]:
    """Computes `softmax_attention` for validated arguments."""
    key, value = zero_padding(key, mask), zero_padding(value, mask)
    return weighted_values(softmax_weights(query, key, mask), value).astype(query.dtype)


def softmax_weights(
    query: Float[Array, "B L H D"], key: Float[Array, "B T H D"], mask: Bool[Array, "B T"] | None
) -> Float[Array, "B H L T"]:
    """Returns the attention matrix softmax(query keyᵀ / √D) in at least float32."""
    return jax.nn.softmax(scaled_logits(query, key, mask), axis=-1)


def nystrom_attention(
    query: Float[Array, "*batch L H D"],
    key: Float[Array, "*batch T Hkv D"],
    value: Float[Array, "*batch T Hkv D"],
    *,
    num_landmarks: int = 64,
    mask: Bool[Array, "*batch T"] | None = None,
    query_mask: Bool[Array, "*batch L"] | None = None,
    pinv: Pinv = "iterative",
    pinv_iters: int = 6,
    pinv_start: Start = "exact",
    landmark_layout: Layout = "real",
    landmark_selection: Selection = "segments",
    num_own_landmarks: int = 0,
    conv_kernel: Float[Array, "H W"] | Float[Array, "H D W"] | None = None,
    mask_conv: bool = True,
    normalize_rows: bool = False,
    implementation: Implementation = "auto",
) -> Float[Array, "*batch L H D"]:
    """Approximates softmax attention through M landmarks, in time and memory linear in L and T.

        kernel_1 @ (pinv(kernel_2) @ (kernel_3 @ value)) + convolution(value, conv_kernel)

        kernel_1 = softmax(query       k_landmarksᵀ / √D)   [B H L M]
        kernel_2 = softmax(q_landmarks k_landmarksᵀ / √D)   [B H M M]
        kernel_3 = softmax(q_landmarks keyᵀ         / √D)   [B H M T]

    For an example with at most M real keys, or at most M real queries, the result is exact softmax
    attention, with or without padding. The output of an example does not depend on other examples in the
    batch. Padding at the ends has no effect at real tokens. Padding between tokens has an effect only
    through the convolution, which depends on positions.

    Args:
      query: Queries, [..., length, heads, head_dim], with any number of leading batch axes.
      key: Keys; their length T may differ from L (cross-attention). If they have fewer heads than the
        queries, each key head serves a group of consecutive query heads, as in
        `jax.nn.dot_product_attention`.
      value: Values, of the same shape as `key`.
      num_landmarks: M; 32 or 64 in the paper.
      mask: True at real keys; None means all are real. Only padding masks are supported: landmarks
        mix all tokens, so causal or block masks cannot be applied.
      query_mask: True at real queries; None means that the queries use `mask`, for which L = T is
        needed. Rows of masked queries are finite but otherwise unspecified.
      pinv: The pseudoinverse. `"iterative"` is the paper's, see `iterative_pinv`. `"ridge"` damps small
        singular values as the iterations do, with about a fifth of their matrix products in training, see
        `ridge_pinv`. Errors are about equal. Use a model with the pseudoinverse that it was trained with.
      pinv_iters: Number of iterations of the pseudoinverse; for `"ridge"`, those that it resembles.
      pinv_start: `"exact"` scales each matrix by its own norms. `"batch_max"` divides all by the largest
        column sum of the batch, as other implementations do. See `iterative_pinv`.
      landmark_layout: `"real"` divides the real tokens into segments. `"mlpen"` and `"hf"` reproduce the
        authors' code and Hugging Face's, and depend on padding. See `segment_means`.
      landmark_selection: `"segments"` uses the means of M segments of the sequence, as in the paper.
        `"kmeans"` uses the means of M clusters of similar tokens, per head. This takes longer, but
        approximates better if similar tokens are not neighbors.
      num_own_landmarks: k, less than M. Each of the first k real tokens, such as class tokens, is a landmark
        of its own, and the other tokens share the remaining M − k landmarks. This applies to the first k
        real queries and to the first k real keys, also in cross-attention. Otherwise, a landmark averages
        a class token with its neighbors. Needs `landmark_layout="real"`.
      conv_kernel: Kernel of the skip connection, a convolution of the value along the sequence: one per
        head `[H W]`, as in the paper, or one per channel `[H D W]`; W odd.
      mask_conv: If True, the convolution reads zeros at padding. If False, it reads the values of
        padding up to W // 2 positions away from real tokens, as in Hugging Face's code.
      normalize_rows: If True, each row of the attention map is divided by its sum, so a constant value is
        unchanged. If the sum is less than 1/2, the row is divided by 1/2: for sharp attention, six iterations
        are far from the inverse, and sums can be zero or negative. Other implementations do not normalize.
      implementation: `"pallas_tpu"` uses TPU kernels, in O(M D) memory besides the arguments; on other
        devices they run slowly, in interpret mode. `"cudnn"` uses cuDNN's fused attention for the two
        stages that read all tokens, on NVIDIA GPUs and in half precision. `"xla"` uses jnp operations.
        `"auto"` uses the kernels on TPUs, and cuDNN on GPUs for inputs in half precision. Unsupported
        arguments fall back to XLA, with a `UserWarning` once per reason. Kernels and cuDNN support
        first-order reverse-mode differentiation. `"xla"` supports every mode, except that a `conv_kernel`
        supports reverse mode only, of any order. Do not use `"auto"` to compile for devices other than
        the default devices or the ambient mesh, for example with `jax.export`.

    Returns:
      The output in `query`'s dtype. A row without a real key is finite.

    Raises:
      ValueError: An argument has an invalid size, shape or dtype.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–17.
    Differs: segments contain only real tokens, all three factors are masked, attention is exact for few
    tokens, the pseudoinverse is scaled per matrix, and products are associated from the right.
    """
    folded, batch = fold_axes(query, key, value, mask, query_mask)
    inputs = Inputs.create(*folded, conv_kernel)
    options = NystromOptions(
        num_landmarks=num_landmarks,
        pinv=pinv,
        pinv_iters=pinv_iters,
        pinv_start=pinv_start,
        landmark_layout=landmark_layout,
        landmark_selection=landmark_selection,
        num_own_landmarks=num_own_landmarks,
        mask_conv=mask_conv,
        normalize_rows=normalize_rows,
    )
    check_arguments(inputs, options, implementation)
    output = attend_locally(inputs, options, implementation)
    return output.reshape(*batch, *output.shape[1:])


def attend_locally(
    inputs: Inputs, options: NystromOptions, implementation: Implementation
) -> Float[Array, "B L H D"]:
    """Computes attention with the chosen implementation; the length must not be split over devices."""
    if is_exact(inputs, options):
        return _xla_attention(inputs, options, LOCAL)
    chosen = choose(implementation, inputs, options)
    if chosen == "pallas_tpu":
        return _kernel_attention(inputs, options, interpret=interpret_mode())
    return _xla_attention(inputs, options, CUDNN if chosen == "cudnn" else LOCAL)


# Jitted, so that a call outside of jit compiles once instead of once per operation.
@functools.partial(jax.jit, static_argnames=("options", "interpret"))
def _kernel_attention(
    inputs: Inputs, options: NystromOptions, *, interpret: bool
) -> Float[Array, "B L H D"]:
    """Returns the attention output, computed by the TPU kernels."""
    conv_kernel = inputs.conv_kernel
    if conv_kernel is None or conv_kernel.ndim == 2:
        return run_kernels(inputs, options, interpret)
    # The TPU kernels support one convolution kernel per head; XLA handles one per channel.
    output = run_kernels(inputs._replace(conv_kernel=None), options, interpret)
    return add_convolution(output, zero_padding(inputs.value, inputs.mask), conv_kernel)


@functools.partial(jax.jit, static_argnames=("options", "operations"))
def _xla_attention(
    inputs: Inputs, options: NystromOptions, operations: "Operations"
) -> Float[Array, "B L H D"]:
    """Returns the attention output, computed on one device by XLA, or by cuDNN where it combines tokens."""
    if is_exact(inputs, options):
        query, key, value, conv_value = _mask_tokens(inputs, options)
        weights = softmax_weights(query, zero_padding(key, inputs.mask), inputs.mask)
        output = weighted_values(weights, value).astype(query.dtype)
        return add_convolution(output, conv_value, inputs.conv_kernel)
    return nystrom(inputs, options, operations)


class Operations(NamedTuple):
    """The operations of Nyström attention that read tokens, for one device or for several."""

    # (query or key, mask, options, *, of_queries) -> segment means
    means: Callable[..., LandmarkMeans]
    # (q_landmarks, key, value, *, mask) -> kernel_3 @ value, [B M H Dv]
    collect: Callable[..., Float[Array, "B M H Dv"]]
    # (query, k_landmarks, landmark_values, *, landmark_mask, assigned) -> kernel_1 @ values, [B L H Dv]
    distribute: Callable[..., Float[Array, "B L H Dv"]]
    # (value, conv_kernel) -> the convolution, [B L H D]
    convolve: Callable[..., Float[Array, "B L H D"]]
    # sums an array over the devices that share the length
    psum: Callable[[Array], Array]


def nystrom(
    inputs: Inputs, options: NystromOptions, operations: Operations
) -> Float[Array, "B L H D"]:
    """Computes Nyström attention with the given `operations`."""
    query, key, value, conv_value = _mask_tokens(inputs, options)
    q_segments, k_segments = _landmark_means(
        query, key, inputs.mask, inputs.query_mask, options, operations
    )
    landmarks = invert_landmarks(q_segments, k_segments, options)
    assignment = Assignment()
    if options.landmark_layout == "real":
        assignment = assign_landmarks(
            options.num_landmarks,
            None if inputs.mask is None else k_segments.ranks,
            None if inputs.explicit_query_mask is None else q_segments.ranks,
            options.num_own_landmarks,
        )
    if options.normalize_rows:  # attention to a value of ones gives the row sums
        ones = jnp.ones_like(value[..., :1])  # sharded like the value
        value = jnp.concatenate([value, zero_padding(ones, inputs.mask)], axis=-1)
    collected = operations.collect(landmarks.q_landmarks, key, value, mask=inputs.mask)
    if k_segments.ranks is not None and assignment.has_few_keys is not None:
        # Each of few keys is a landmark, and keeps its value.
        bounds = k_segments.ranks.segment_bounds(options.num_landmarks, options.num_own_landmarks)
        # Cast first, so that gradients are also summed over devices in this dtype.
        kept = operations.psum(first_tokens(value, bounds).astype(collected.dtype))
        collected = jnp.where(assignment.has_few_keys[:, None, None, None], kept, collected)
    # Without a mask, no segment is empty; clusters may be.
    all_real = inputs.mask is None and options.landmark_selection == "segments"
    output = operations.distribute(
        query,
        landmarks.k_landmarks,
        landmarks.apply_inverse(collected, assignment.is_exact),
        landmark_mask=None if all_real else landmarks.k_landmark_mask,
        assigned=assignment.of_queries,
    )
    if options.normalize_rows:
        output = output[..., :-1] / jnp.maximum(output[..., -1:], MIN_ROW_SUM)
    return add_convolution(output, conv_value, inputs.conv_kernel, operations.convolve)


def _mask_tokens(inputs: Inputs, options: NystromOptions) -> tuple[Array, Array, Array, Array]:
    """Returns query, key and value with padding zeroed, and the input of the convolution."""
    query = mask_inputs(inputs.query, inputs.query_mask, options)
    key = mask_inputs(inputs.key, inputs.mask, options)
    value = zero_padding(inputs.value, inputs.mask)
    return query, key, value, value if options.mask_conv else inputs.value


def _means(
    x: Array, mask: Array | None, options: NystromOptions, *, of_queries: bool
) -> LandmarkMeans:
    """Returns the segment means on one device."""
    del of_queries  # queries and keys are treated alike
    layout, num_own = options.landmark_layout, options.num_own_landmarks
    means, landmark_mask = means_of_segments(x, mask, options.num_landmarks, layout, num_own)
    ranks = None
    if layout == "real" and (mask is not None or num_own):
        ranks = TokenRanks.create(mask_or_ones(mask, x))
    return LandmarkMeans(means, landmark_mask, ranks)


LOCAL = Operations(_means, chunks.collect, chunks.distribute, convolve, lambda x: x)
CUDNN = LOCAL._replace(collect=cudnn.collect, distribute=cudnn.distribute)


def _landmark_means(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    query_mask: Bool[Array, "B L"] | None,
    options: NystromOptions,
    operations: Operations,
) -> tuple[LandmarkMeans, LandmarkMeans]:
    """Returns the means of segments or clusters of masked queries and keys."""
    q_segments = operations.means(query, query_mask, options, of_queries=True)
    k_segments = operations.means(key, mask, options, of_queries=False)
    if options.landmark_selection == "segments":
        return q_segments, k_segments
    num_own = options.num_own_landmarks
    return cluster_landmarks(query, key, q_segments, k_segments, operations.psum, num_own)


def find_landmarks(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    query_mask: Bool[Array, "B L"] | None,
    options: NystromOptions,
) -> Landmarks:
    """Returns the landmarks of a query and a key that `mask_inputs` has masked."""
    means = _landmark_means(query, key, mask, query_mask, options, LOCAL)
    return invert_landmarks(*means, options)


def add_convolution(
    output: Float[Array, "B L H D"],
    value: Float[Array, "B T H D"],
    conv_kernel: Float[Array, "H W"] | Float[Array, "H D W"] | None,
    convolve: Callable[..., Array] = convolve,
) -> Float[Array, "B L H D"]:
    """Adds the convolution of the value (the skip connection) unless `conv_kernel` is None."""
    if conv_kernel is None:
        return output
    return output + convolve(value, conv_kernel).astype(output.dtype)
