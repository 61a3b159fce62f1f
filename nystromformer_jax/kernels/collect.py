"""Landmarks attend to tokens: kernel_3 @ value and its gradient, in one pass over key and value each."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from nystromformer_jax.kernels.band import Band, Convolution
from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, Part, call
from nystromformer_jax.steps import MASKED_LOGIT
from nystromformer_jax.typing import Array, Float, Int

MAXIMUM, SUM = 0, 1  # lanes of `columns`
FORWARD_BLOCK = 4096  # positions of bfloat16, half as many of float32
BACKWARD_BLOCK = 4096
PART = 4096  # positions
BACKWARD_PART = 1024


def forward(
    packing: Packing,
    q_landmarks: Float[Array, "B M E"],
    key: Float[Array, "B T E"],
    value: Float[Array, "B T E"],
    ids: Int[Array, "_ 1 T"],
    few: Int[Array, " B"],
) -> tuple[Float[Array, "B M E"], Float[Array, "B groups rows lanes"]]:
    """Collects values, not yet normalised, and `columns`: maximum and sum of each row.

    In examples with `few` tokens each is its own landmark, and collects its own value.
    """
    blocks = Blocks.of(packing, key.shape[1], FORWARD_BLOCK)
    rows, width = packing.rows, packing.width

    def attend(refs: Any) -> None:
        for part in blocks.parts(refs, PART):
            logits = packing.dot(refs.diagonal[...], refs.key[0, part.rows], (1, 1))
            logits = part.only_real(logits, MASKED_LOGIT)
            before = refs.maximum[...]
            maximum = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
            weights = jnp.exp(logits - maximum[:, :1])
            fade = jnp.exp(before - maximum)
            value = part.clean(refs.value[0, part.rows])
            product = packing.dot(weights.astype(packing.dtype), value, (1, 0))
            refs.sum[...] = fade * refs.sum[...] + jnp.sum(weights, axis=1, keepdims=True)
            refs.product[...] = fade[:, :1] * refs.product[...] + product
            refs.maximum[...] = maximum

    def take(refs: Any) -> None:
        for part in blocks.parts(refs, PART):
            value = part.clean(refs.value[0, part.rows])
            refs.product[...] += packing.dot(part.members(rows), value, (1, 0))
        refs.maximum[...] = jnp.zeros_like(refs.maximum)
        refs.sum[...] = jnp.ones_like(refs.sum)

    def kernel(refs: Any) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            scaled = refs.q_landmarks[0] * packing.scale
            refs.diagonal[...] = packing.to_diagonal(scaled).astype(packing.dtype)
            refs.maximum[...] = jnp.full_like(refs.maximum, MASKED_LOGIT)
            refs.sum[...] = jnp.zeros_like(refs.sum)
            refs.product[...] = jnp.zeros_like(refs.product)

        blocks.run(refs, attend, take)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.values[0] = packing.from_diagonal(refs.product[...])
            lane = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)
            refs.columns[0, 0] = jnp.where(lane == MAXIMUM, refs.maximum[...], refs.sum[...])

    column = pltpu.VMEM((rows, LANES), jnp.float32)
    shape = (packing.batch, packing.num_groups, rows, LANES)
    values, columns = call(
        kernel,
        "collect",
        blocks,
        {
            "ids": (ids, blocks.ids(ids)),
            "q_landmarks": (q_landmarks, blocks.landmarks()),
            "key": (key, blocks.tokens()),
            "value": (value, blocks.tokens()),
        },
        {
            "values": (
                jax.ShapeDtypeStruct(q_landmarks.shape, jnp.float32),
                blocks.landmarks(),
            ),
            "columns": (jax.ShapeDtypeStruct(shape, jnp.float32), blocks.of_group(rows, LANES)),
        },
        few=few,
        scratch={
            "diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "maximum": column,
            "sum": column,
            "product": pltpu.VMEM((rows, width), jnp.float32),
        },
    )
    return values, columns


def backward(
    packing: Packing,
    q_landmarks: Float[Array, "B M E"],
    key: Float[Array, "B T E"],
    value: Float[Array, "B T E"],
    ids: Int[Array, "_ 1 T"],
    few: Int[Array, " B"],
    columns: Float[Array, "B groups rows lanes"],
    values_gradient: Float[Array, "B M E"],
    member_gradient: Float[Array, "B M E"],
    convolution: Convolution | None,
) -> tuple[
    Float[Array, "B T E"],
    Float[Array, "B T E"],
    Float[Array, "B M E"],
    Float[Array, "H W"] | None,
]:
    """Gradients of key, value, q_landmarks and the convolution's kernel.

    Args:
      packing: Of the forward pass, as all to `few`.
      q_landmarks: As above.
      key: As above.
      value: As above.
      ids: As above.
      few: As above.
      columns: The maximum of each row, and the gradient of its sum.
      values_gradient: Of the collected values.
      member_gradient: What each key gets besides: the gradient of its segment's mean, over its size.
      convolution: The output's gradient and the kernel, if the value was convolved.
    """
    blocks = Blocks.of(packing, key.shape[1], BACKWARD_BLOCK)
    rows, width = packing.rows, packing.width
    band = None if convolution is None else Band(blocks, convolution.kernel.shape[1])

    def attend(refs: Any) -> None:
        columns = refs.columns[0, 0]
        maximum, sum_gradient = (columns[:, lane : lane + 1] for lane in (MAXIMUM, SUM))
        for part in blocks.parts(refs, BACKWARD_PART):
            key = part.clean(refs.key[0, part.rows])
            value = part.clean(refs.value[0, part.rows])
            logits = packing.dot(refs.diagonal[...], key, (1, 1))
            weights = part.only_real(jnp.exp(logits - maximum), 0.0)
            weights_gradient = packing.dot(refs.values_diagonal[...], value, (1, 1))
            logits_gradient = (weights * (weights_gradient + sum_gradient)).astype(packing.dtype)
            refs.sums[...] += packing.dot(logits_gradient, key, (1, 0))
            finish(
                refs,
                part,
                value,
                packing.dot(logits_gradient, refs.diagonal[...], (0, 0)),
                packing.dot(weights.astype(packing.dtype), refs.values_diagonal[...], (0, 0)),
            )

    def take(refs: Any) -> None:
        for part in blocks.parts(refs, BACKWARD_PART):
            own = packing.dot(part.members(rows), refs.values_diagonal[...], (0, 0))
            finish(refs, part, part.clean(refs.value[0, part.rows]), 0, own)

    def finish(
        refs: Any, part: Part, value: Array, key_gradient: Any, value_gradient: Array
    ) -> None:
        member = part.members(packing.num_landmarks)
        spread = packing.dot(member, refs.member_gradient[0].astype(packing.dtype), (0, 0))
        refs.key_out[0, part.rows] = (key_gradient + spread).astype(packing.dtype)
        if band is not None:
            tiles = []
            for index, window in enumerate(band.windows(part, band.edges(refs), masked=False)):
                tiles.append(band.convolve(refs.matrices[0], window))
                tile = value[index * band.tile : (index + 1) * band.tile]
                for head, product in enumerate(band.correlate(tile, window)):
                    refs.matrices_out[0, 0, head] += product
            convolved = jnp.concatenate(tiles, axis=0)
            if packing.masked:
                convolved = part.clean(convolved)
            value_gradient = value_gradient + convolved
        refs.value_out[0, part.rows] = value_gradient.astype(packing.dtype)

    def kernel(refs: Any) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            scaled = refs.q_landmarks[0] * packing.scale
            refs.diagonal[...] = packing.to_diagonal(scaled).astype(packing.dtype)
            diagonal = packing.to_diagonal(refs.values_gradient[0])
            refs.values_diagonal[...] = diagonal.astype(packing.dtype)
            refs.sums[...] = jnp.zeros_like(refs.sums)
            if band is not None:
                refs.matrices_out[...] = jnp.zeros_like(refs.matrices_out)

        blocks.run(refs, attend, take)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.q_landmarks_out[0] = packing.from_diagonal(refs.sums[...]) * packing.scale

    inputs = {
        "ids": (ids, blocks.ids(ids)),
        "q_landmarks": (q_landmarks, blocks.landmarks()),
        "values_gradient": (values_gradient, blocks.landmarks()),
        "member_gradient": (member_gradient, blocks.landmarks()),
        "columns": (columns, blocks.of_group(rows, LANES)),
        "key": (key, blocks.tokens()),
        "value": (value, blocks.tokens()),
    }
    like_key = jax.ShapeDtypeStruct(key.shape, key.dtype)
    outputs = {
        "key_out": (like_key, blocks.tokens()),
        "value_out": (like_key, blocks.tokens()),
        "q_landmarks_out": (
            jax.ShapeDtypeStruct(q_landmarks.shape, jnp.float32),
            blocks.landmarks(),
        ),
    }
    if band is not None and convolution is not None:
        matrices, to_kernel = jax.vjp(
            lambda kernel: band.matrices(kernel[:, ::-1].astype(jnp.float32)), convolution.kernel
        )
        inputs |= band.inputs(convolution.x, matrices, None)
        outputs["matrices_out"] = (
            jax.ShapeDtypeStruct((packing.batch, *matrices.shape), jnp.float32),
            blocks.of_group(*matrices.shape[1:]),
        )
    key_out, value_out, q_landmarks_out, *matrices_out = call(
        kernel,
        "collect_backward",
        blocks,
        inputs,
        outputs,
        few=few,
        scratch={
            "diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "values_diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "sums": pltpu.VMEM((rows, width), jnp.float32),
        },
    )
    kernel_gradient = None
    if matrices_out:
        (kernel_gradient,) = to_kernel(matrices_out[0].sum(axis=0))
    return key_out, value_out, q_landmarks_out, kernel_gradient
