"""Tokens attend to landmarks: kernel_1 @ landmark_values with the convolution, and its gradient."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from nystromformer_jax.kernels.band import Band, Convolution
from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, Part, call
from nystromformer_jax.typing import Array, Float, Int

FORWARD_BLOCK = 4096  # positions of bfloat16, half as many of float32
BACKWARD_BLOCK = 4096
PART = 1024  # positions
BACKWARD_PART = 4096


def forward(
    packing: Packing,
    query: Float[Array, "B L E"],
    k_landmarks: Float[Array, "B M E"],
    landmark_values: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
    few: Int[Array, " B"],
    bias: Float[Array, "B groups rows lanes"] | None,
    convolution: Convolution | None,
) -> Float[Array, "B L E"]:
    """Distributes.

    Args:
      packing: Sizes; its mask is that of the queries.
      query: Tokens.
      k_landmarks: Key landmarks, in float32.
      landmark_values: What they hold, in float32.
      ids: Segments of the queries.
      few: Examples in which each query takes the value of its own landmark.
      bias: Added to the logits of each landmark; None where all are alive.
      convolution: The value and the kernel, if it is convolved; its padding is that of the queries.
    """
    blocks = Blocks.of(packing, query.shape[1], FORWARD_BLOCK)
    rows, width = packing.rows, packing.width
    band = None if convolution is None else Band(blocks, convolution.kernel.shape[1])

    def kernel(refs: Any) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            diagonal = packing.to_diagonal(refs.k_landmarks[0] * packing.scale)
            refs.diagonal[...] = diagonal.astype(packing.dtype)
            values = packing.to_diagonal(refs.landmark_values[0])
            refs.values_diagonal[...] = values.astype(packing.dtype)

        blocks.run(refs, attend, take)

    def attend(refs: Any) -> None:
        bias = refs.bias[0, 0][:, :1] if hasattr(refs, "bias") else None
        for part in blocks.parts(refs, PART):
            query = refs.query[0, part.rows]
            if packing.masked:
                query = part.clean(query)
            finish(refs, part, _weights(packing, refs.diagonal[...], query, bias))

    def take(refs: Any) -> None:
        for part in blocks.parts(refs, PART):
            finish(refs, part, part.members(rows))

    def finish(refs: Any, part: Part, weights: Array) -> None:
        output = packing.dot(weights.astype(packing.dtype), refs.values_diagonal[...], (0, 0))
        if band is not None:
            windows = band.windows(part, band.edges(refs), masked=packing.masked)
            output += jnp.concatenate(
                [band.convolve(refs.matrices[0], window) for window in windows], axis=0
            )
        refs.output[0, part.rows] = output.astype(packing.dtype)

    inputs = {
        "ids": (ids, blocks.ids(ids)),
        "k_landmarks": (k_landmarks, blocks.landmarks()),
        "landmark_values": (landmark_values, blocks.landmarks()),
        "query": (query, blocks.tokens()),
    }
    if bias is not None:
        inputs["bias"] = (bias, blocks.of_group(rows, LANES))
    if band is not None and convolution is not None:
        matrices = band.matrices(convolution.kernel)
        inputs |= band.inputs(convolution.x, matrices, ids if packing.masked else None)
    (output,) = call(
        kernel,
        "distribute",
        blocks,
        inputs,
        {"output": (jax.ShapeDtypeStruct(query.shape, query.dtype), blocks.tokens())},
        few=few,
        scratch={
            "diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "values_diagonal": pltpu.VMEM((rows, width), packing.dtype),
        },
    )
    return output


def backward(
    packing: Packing,
    query: Float[Array, "B L E"],
    k_landmarks: Float[Array, "B M E"],
    landmark_values: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
    few: Int[Array, " B"],
    bias: Float[Array, "B groups rows lanes"] | None,
    output_gradient: Float[Array, "B L E"],
) -> tuple[Float[Array, "B L E"], Float[Array, "B M E"], Float[Array, "B M E"]]:
    """Gradients of query, k_landmarks and landmark_values."""
    blocks = Blocks.of(packing, query.shape[1], BACKWARD_BLOCK)
    rows, width = packing.rows, packing.width

    def attend(refs: Any) -> None:
        bias = refs.bias[0, 0][:, :1] if hasattr(refs, "bias") else None
        for part in blocks.parts(refs, BACKWARD_PART):
            query = part.clean(refs.query[0, part.rows])
            gradient = part.inside(refs.output_gradient[0, part.rows])
            weights = _weights(packing, refs.diagonal[...], query, bias)
            weights_gradient = packing.dot(refs.values_diagonal[...], gradient, (1, 1))
            product = weights * weights_gradient
            logits_gradient = product - weights * _by_head(packing, product, jnp.sum)
            logits_gradient = logits_gradient.astype(packing.dtype)
            query_gradient = packing.dot(logits_gradient, refs.diagonal[...], (0, 0))
            if packing.masked:
                query_gradient = part.clean(query_gradient)
            refs.query_out[0, part.rows] = query_gradient.astype(packing.dtype)
            refs.landmarks_sums[...] += packing.dot(logits_gradient, query, (1, 0))
            refs.values_sums[...] += packing.dot(weights.astype(packing.dtype), gradient, (1, 0))

    def take(refs: Any) -> None:
        refs.query_out[...] = jnp.zeros_like(refs.query_out)
        for part in blocks.parts(refs, BACKWARD_PART):
            gradient = part.inside(refs.output_gradient[0, part.rows])
            refs.values_sums[...] += packing.dot(part.members(rows), gradient, (1, 0))

    def kernel(refs: Any) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            diagonal = packing.to_diagonal(refs.k_landmarks[0] * packing.scale)
            refs.diagonal[...] = diagonal.astype(packing.dtype)
            values = packing.to_diagonal(refs.landmark_values[0])
            refs.values_diagonal[...] = values.astype(packing.dtype)
            refs.landmarks_sums[...] = jnp.zeros_like(refs.landmarks_sums)
            refs.values_sums[...] = jnp.zeros_like(refs.values_sums)

        blocks.run(refs, attend, take)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.k_landmarks_out[0] = (
                packing.from_diagonal(refs.landmarks_sums[...]) * packing.scale
            )
            refs.landmark_values_out[0] = packing.from_diagonal(refs.values_sums[...])

    inputs = {
        "ids": (ids, blocks.ids(ids)),
        "k_landmarks": (k_landmarks, blocks.landmarks()),
        "landmark_values": (landmark_values, blocks.landmarks()),
        "query": (query, blocks.tokens()),
        "output_gradient": (output_gradient, blocks.tokens()),
    }
    if bias is not None:
        inputs["bias"] = (bias, blocks.of_group(rows, LANES))
    like_landmarks = jax.ShapeDtypeStruct(k_landmarks.shape, jnp.float32)
    diagonal = pltpu.VMEM((rows, width), packing.dtype)
    sums = pltpu.VMEM((rows, width), jnp.float32)
    query_out, k_landmarks_out, landmark_values_out = call(
        kernel,
        "distribute_backward",
        blocks,
        inputs,
        {
            "query_out": (jax.ShapeDtypeStruct(query.shape, query.dtype), blocks.tokens()),
            "k_landmarks_out": (like_landmarks, blocks.landmarks()),
            "landmark_values_out": (like_landmarks, blocks.landmarks()),
        },
        few=few,
        scratch={
            "diagonal": diagonal,
            "values_diagonal": diagonal,
            "landmarks_sums": sums,
            "values_sums": sums,
        },
    )
    return query_out, k_landmarks_out, landmark_values_out


def _weights(
    packing: Packing, diagonal: Array, query: Array, bias: Array | None
) -> Float[Array, "G·M S"]:
    """kernel_1, transposed: the landmarks of all heads below each other, tokens along lanes."""
    logits = packing.dot(diagonal, query, (1, 1))
    if bias is not None:
        logits = logits + bias
    weights = jnp.exp(logits - _by_head(packing, logits, jnp.max))
    return weights / _by_head(packing, weights, jnp.sum)


def _by_head(packing: Packing, x: Float[Array, "G·M S"], reduce: Any) -> Float[Array, "G·M S"]:
    """Reduces over the landmarks of each head, and gives each of its rows the result."""
    return jnp.concatenate(
        [
            jnp.broadcast_to(reduce(head, axis=0, keepdims=True), head.shape)
            for head in packing.heads(x)
        ],
        axis=0,
    )
