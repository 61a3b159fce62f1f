"""Attention from tokens to landmarks: kernel_1 @ landmark_values, convolution, and gradients.

Shape comments: G heads of a group, M landmarks, S positions of a part, D head dimension.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from nystromformer_jax.kernels.band import Band, Convolution, ConvolutionRefs
from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, Part, Ref, call
from nystromformer_jax.typing import Array, Float, Int

FORWARD_BLOCK = 4096  # positions in bfloat16; half as many in float32
BACKWARD_BLOCK = 4096
PART = 1024  # positions
BACKWARD_PART = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributeRefs(ConvolutionRefs):
    """References that both passes use."""

    k_landmarks: Ref  # [1 M G·D] float32
    landmark_values: Ref  # [1 M G·D] float32
    query: Ref  # [1 S G·D]
    bias: Ref = None  # [1 1 G·M lanes] float32; None without a mask
    k_diagonal: Ref  # [G·M G·D], block-diagonal landmarks, scaled
    values_diagonal: Ref  # [G·M G·D], block-diagonal landmark_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardRefs(DistributeRefs):
    """References of `forward`."""

    output: Ref  # [1 S G·D], output


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackwardRefs(DistributeRefs):
    """References of `backward`; `d_x` is the gradient with respect to x."""

    d_output: Ref  # [1 S G·D]
    d_query: Ref  # [1 S G·D], output
    d_k_landmarks: Ref  # [1 M G·D] float32, output
    d_landmark_values: Ref  # [1 M G·D] float32, output
    landmarks_acc: Ref  # [G·M G·D] float32, d_logits @ query so far
    values_acc: Ref  # [G·M G·D] float32, weights @ d_output so far


def forward(
    packing: Packing,
    query: Float[Array, "B L E"],
    k_landmarks: Float[Array, "B M E"],
    landmark_values: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
    copies: Int[Array, " B"],
    bias: Float[Array, "B groups rows lanes"] | None,
    convolution: Convolution | None,
) -> Float[Array, "B L E"]:
    """Returns the attention output.

    `k_landmarks` and `landmark_values` are float32. In examples with `copies` = 1, each query copies the
    value of its landmark. `bias` masks landmarks without tokens; None: all landmarks have tokens. The input
    of `convolution` has the same padding as the queries.
    """
    blocks = Blocks.create(packing, query.shape[1], FORWARD_BLOCK)
    band = None if convolution is None else Band(blocks, convolution.kernel.shape[1])

    def kernel(refs: ForwardRefs) -> None:
        pl.when(refs.step == 0)(lambda: _fill_diagonals(packing, refs))
        blocks.run(refs, attend, copy_exact)

    def attend(refs: ForwardRefs) -> None:
        bias = _bias_column(refs)
        for part in blocks.parts(refs, PART):
            query = refs.query[0, part.positions]  # [S G·D]
            if packing.masked:
                query = part.clean(query)
            write_output(refs, part, _weights(packing, refs.k_diagonal[...], query, bias))

    def copy_exact(refs: ForwardRefs) -> None:
        for part in blocks.parts(refs, PART):
            write_output(refs, part, part.members(packing.rows))

    def write_output(refs: ForwardRefs, part: Part, weights: Array) -> None:  # weights: [G·M S]
        output = packing.dot(weights.astype(packing.dtype), refs.values_diagonal[...], (0, 0))
        if band is not None:
            windows = band.windows(refs, part, band.edges(refs), masked=packing.masked)
            output += jnp.concatenate(
                [band.convolve(refs.matrices[0], window) for window in windows], axis=0
            )
        refs.output[0, part.positions] = output.astype(packing.dtype)  # [S G·D]

    inputs = _inputs(blocks, query, k_landmarks, landmark_values, ids, bias)
    if band is not None and convolution is not None:
        matrices = band.matrices(convolution.kernel)
        inputs |= band.inputs(convolution.x, matrices, ids if packing.masked else None)
    (output,) = call(
        kernel,
        ForwardRefs,
        "distribute",
        blocks,
        inputs,
        {"output": blocks.token_output()},
        copies=copies,
        scratch=_diagonals(packing),
    )
    return output


def backward(
    packing: Packing,
    query: Float[Array, "B L E"],
    k_landmarks: Float[Array, "B M E"],
    landmark_values: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
    copies: Int[Array, " B"],
    bias: Float[Array, "B groups rows lanes"] | None,
    d_output: Float[Array, "B L E"],
) -> tuple[Float[Array, "B L E"], Float[Array, "B M E"], Float[Array, "B M E"]]:
    """Returns the gradients with respect to query, k_landmarks and landmark_values."""
    blocks = Blocks.create(packing, query.shape[1], BACKWARD_BLOCK)

    def kernel(refs: BackwardRefs) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            _fill_diagonals(packing, refs)
            refs.landmarks_acc[...] = jnp.zeros_like(refs.landmarks_acc)
            refs.values_acc[...] = jnp.zeros_like(refs.values_acc)

        blocks.run(refs, attend, copy_exact)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.d_k_landmarks[0] = packing.from_diagonal(refs.landmarks_acc[...]) * packing.scale
            refs.d_landmark_values[0] = packing.from_diagonal(refs.values_acc[...])

    def attend(refs: BackwardRefs) -> None:
        bias = _bias_column(refs)
        for part in blocks.parts(refs, BACKWARD_PART):
            query = part.clean(refs.query[0, part.positions])  # [S G·D]
            d_output = part.inside(refs.d_output[0, part.positions])  # [S G·D]
            weights = _weights(packing, refs.k_diagonal[...], query, bias)  # [G·M S]
            d_weights = packing.dot(refs.values_diagonal[...], d_output, (1, 1))  # [G·M S]
            product = weights * d_weights
            d_logits = product - weights * _by_head(packing, product, jnp.sum)
            d_logits = d_logits.astype(packing.dtype)  # [G·M S]
            d_query = packing.dot(d_logits, refs.k_diagonal[...], (0, 0))  # [S G·D]
            if packing.masked:
                d_query = part.clean(d_query)
            refs.d_query[0, part.positions] = d_query.astype(packing.dtype)
            refs.landmarks_acc[...] += packing.dot(d_logits, query, (1, 0))  # [G·M G·D]
            refs.values_acc[...] += packing.dot(weights.astype(packing.dtype), d_output, (1, 0))

    def copy_exact(refs: BackwardRefs) -> None:
        refs.d_query[...] = jnp.zeros_like(refs.d_query)
        for part in blocks.parts(refs, BACKWARD_PART):
            d_output = part.inside(refs.d_output[0, part.positions])  # [S G·D]
            refs.values_acc[...] += packing.dot(part.members(packing.rows), d_output, (1, 0))

    acc = pltpu.VMEM((packing.rows, packing.width), jnp.float32)
    d_query, d_k_landmarks, d_landmark_values = call(
        kernel,
        BackwardRefs,
        "distribute_backward",
        blocks,
        _inputs(blocks, query, k_landmarks, landmark_values, ids, bias, d_output=d_output),
        {
            "d_query": blocks.token_output(),
            "d_k_landmarks": blocks.landmark_output(),
            "d_landmark_values": blocks.landmark_output(),
        },
        copies=copies,
        scratch={**_diagonals(packing), "landmarks_acc": acc, "values_acc": acc},
    )
    return d_query, d_k_landmarks, d_landmark_values


def _inputs(
    blocks: Blocks,
    query: Array,
    k_landmarks: Array,
    landmark_values: Array,
    ids: Array,
    bias: Array | None,
    **tokens: Array,
) -> dict[str, tuple[Array, pl.BlockSpec]]:
    """Returns arrays and specs for `DistributeRefs`; `tokens` are more inputs with the query's spec."""
    inputs = {
        "ids": (ids, blocks.ids(ids)),
        "k_landmarks": (k_landmarks, blocks.landmarks()),
        "landmark_values": (landmark_values, blocks.landmarks()),
        "query": (query, blocks.tokens()),
        **{name: (x, blocks.tokens()) for name, x in tokens.items()},
    }
    if bias is not None:
        inputs["bias"] = (bias, blocks.of_group(blocks.packing.rows, LANES))
    return inputs


def _diagonals(packing: Packing) -> dict[str, Any]:
    """Returns the scratch shapes for `_fill_diagonals`."""
    diagonal = pltpu.VMEM((packing.rows, packing.width), packing.dtype)
    return {"k_diagonal": diagonal, "values_diagonal": diagonal}


def _fill_diagonals(packing: Packing, refs: DistributeRefs) -> None:
    """Writes k_landmarks and landmark_values as block-diagonal matrices to scratch memory."""
    refs.k_diagonal[...] = packing.to_diagonal(refs.k_landmarks[0] * packing.scale)
    refs.values_diagonal[...] = packing.to_diagonal(refs.landmark_values[0])


def _bias_column(refs: DistributeRefs) -> Float[Array, "G·M 1"] | None:
    """Returns the bias of each landmark's logits, or None without a mask."""
    return None if refs.bias is None else refs.bias[0, 0][:, :1]


def _weights(
    packing: Packing,
    k_diagonal: Float[Array, "G·M G·D"],
    query: Float[Array, "S G·D"],
    bias: Float[Array, "G·M 1"] | None,
) -> Float[Array, "G·M S"]:
    """Returns kernel_1 transposed: landmarks along rows, tokens along lanes."""
    logits = packing.dot(k_diagonal, query, (1, 1))
    if bias is not None:
        logits = logits + bias
    weights = jnp.exp(logits - _by_head(packing, logits, jnp.max))
    return weights / _by_head(packing, weights, jnp.sum)


def _by_head(packing: Packing, x: Float[Array, "G·M S"], reduce: Any) -> Float[Array, "G·M S"]:
    """Reduces over the landmarks of each head and broadcasts the result to all rows of the head."""
    return jnp.concatenate(
        [
            jnp.broadcast_to(reduce(head, axis=0, keepdims=True), head.shape)
            for head in packing.heads(x)
        ],
        axis=0,
    )
