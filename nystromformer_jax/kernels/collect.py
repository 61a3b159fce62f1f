"""Attention from landmarks to tokens: kernel_3 @ value and its gradient.

Shape comments: G heads of a group, M landmarks, S positions of a part, D head dimension.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from nystromformer_jax.attention.stages import MASKED_LOGIT
from nystromformer_jax.kernels.band import Band, Convolution, ConvolutionRefs
from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, Part, Ref, Refs, call
from nystromformer_jax.typing import Array, Float, Int

MAXIMUM, SUM = 0, 1  # lanes of `columns`
FORWARD_BLOCK = 4096  # positions in bfloat16; half as many in float32
BACKWARD_BLOCK = 4096
PART = 4096  # positions
BACKWARD_PART = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectRefs(Refs):
    """References of `forward`; m, l and acc are named as in flash attention."""

    q_landmarks: Ref  # [1 M G·D] float32
    key: Ref  # [1 S G·D]
    value: Ref  # [1 S G·D]
    values: Ref  # [1 M G·D] float32, output
    columns: Ref  # [1 1 G·M lanes] float32, output: m and l
    q_diagonal: Ref  # [G·M G·D], block-diagonal landmarks, scaled
    m: Ref  # [G·M lanes] float32, maximum of the logits so far
    l: Ref  # noqa: E741 (flash attention's letter)  # [G·M lanes] float32, sum of the weights so far
    acc: Ref  # [G·M G·D] float32, weights @ value so far


def forward(
    packing: Packing,
    q_landmarks: Float[Array, "B M E"],
    key: Float[Array, "B T E"],
    value: Float[Array, "B T E"],
    ids: Int[Array, "_ 1 T"],
    copies: Int[Array, " B"],
) -> tuple[Float[Array, "B M E"], Float[Array, "B groups rows lanes"]]:
    """Returns kernel_3 @ value before normalization, and `columns`: maximum and sum of each row.

    In examples with `copies` = 1, each token is a landmark and its value is copied.
    """
    blocks = Blocks.create(packing, key.shape[1], FORWARD_BLOCK)
    rows, width = packing.rows, packing.width

    def kernel(refs: CollectRefs) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            scaled = refs.q_landmarks[0] * packing.scale  # [M G·D]
            refs.q_diagonal[...] = packing.to_diagonal(scaled)
            refs.m[...] = jnp.full_like(refs.m, MASKED_LOGIT)
            refs.l[...] = jnp.zeros_like(refs.l)
            refs.acc[...] = jnp.zeros_like(refs.acc)

        blocks.run(refs, attend, copy_exact)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.values[0] = packing.from_diagonal(refs.acc[...])
            lane = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)
            refs.columns[0, 0] = jnp.where(lane == MAXIMUM, refs.m[...], refs.l[...])

    def attend(refs: CollectRefs) -> None:
        for part in blocks.parts(refs, PART):
            logits = packing.dot(
                refs.q_diagonal[...], refs.key[0, part.positions], (1, 1)
            )  # [G·M S]
            logits = part.only_real(logits, MASKED_LOGIT)
            m_before = refs.m[...]  # [G·M lanes]
            m = jnp.maximum(m_before, jnp.max(logits, axis=1, keepdims=True))
            weights = jnp.exp(logits - m[:, :1])  # [G·M S]
            alpha = jnp.exp(m_before - m)  # [G·M lanes]
            value = part.clean(refs.value[0, part.positions])  # [S G·D]
            product = packing.dot(weights.astype(packing.dtype), value, (1, 0))  # [G·M G·D]
            refs.l[...] = alpha * refs.l[...] + jnp.sum(weights, axis=1, keepdims=True)
            refs.acc[...] = alpha[:, :1] * refs.acc[...] + product
            refs.m[...] = m

    def copy_exact(refs: CollectRefs) -> None:
        for part in blocks.parts(refs, PART):
            value = part.clean(refs.value[0, part.positions])  # [S G·D]
            refs.acc[...] += packing.dot(part.members(rows), value, (1, 0))  # [G·M G·D]
        refs.m[...] = jnp.zeros_like(refs.m)
        refs.l[...] = jnp.ones_like(refs.l)

    column = pltpu.VMEM((rows, LANES), jnp.float32)
    shape = (packing.batch, packing.num_groups, rows, LANES)
    values, columns = call(
        kernel,
        CollectRefs,
        "collect",
        blocks,
        {
            "ids": (ids, blocks.ids(ids)),
            "q_landmarks": (q_landmarks, blocks.landmarks()),
            "key": (key, blocks.tokens()),
            "value": (value, blocks.tokens()),
        },
        {
            "values": blocks.landmark_output(),
            "columns": (jax.ShapeDtypeStruct(shape, jnp.float32), blocks.of_group(rows, LANES)),
        },
        copies=copies,
        scratch={
            "q_diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "m": column,
            "l": column,
            "acc": pltpu.VMEM((rows, width), jnp.float32),
        },
    )
    return values, columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectBackwardRefs(ConvolutionRefs):
    """References of `backward`; `d_x` is the gradient with respect to x."""

    q_landmarks: Ref  # [1 M G·D] float32
    d_values: Ref  # [1 M G·D] float32
    d_members: Ref  # [1 M G·D] float32
    columns: Ref  # [1 1 G·M lanes] float32: m, and the gradient with respect to l
    key: Ref  # [1 S G·D]
    value: Ref  # [1 S G·D]
    d_key: Ref  # [1 S G·D], output
    d_value: Ref  # [1 S G·D], output
    d_q_landmarks: Ref  # [1 M G·D] float32, output
    d_matrices: Ref = None  # [1 1 G S T] float32, output; None without a convolution
    q_diagonal: Ref  # [G·M G·D], block-diagonal landmarks, scaled
    d_values_diagonal: Ref  # [G·M G·D], block-diagonal gradients of the values
    acc: Ref  # [G·M G·D] float32, d_logits @ key so far


def backward(
    packing: Packing,
    q_landmarks: Float[Array, "B M E"],
    key: Float[Array, "B T E"],
    value: Float[Array, "B T E"],
    ids: Int[Array, "_ 1 T"],
    copies: Int[Array, " B"],
    columns: Float[Array, "B groups rows lanes"],
    d_values: Float[Array, "B M E"],
    d_members: Float[Array, "B M E"],
    convolution: Convolution | None,
) -> tuple[
    Float[Array, "B T E"], Float[Array, "B T E"], Float[Array, "B M E"], Float[Array, "H W"] | None
]:
    """Returns the gradients with respect to key, value, q_landmarks and the convolution kernel.

    `columns` has the maximum of each row and the gradient with respect to the row sum. `d_members`, the
    gradient with respect to each segment mean divided by the segment size, is added to the gradient with
    respect to each key in the segment. `convolution` has the gradient with respect to the output as its
    input; None without a convolution.
    """
    blocks = Blocks.create(packing, key.shape[1], BACKWARD_BLOCK)
    rows, width = packing.rows, packing.width
    band = None if convolution is None else Band(blocks, convolution.kernel.shape[1])

    def kernel(refs: CollectBackwardRefs) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            scaled = refs.q_landmarks[0] * packing.scale  # [M G·D]
            refs.q_diagonal[...] = packing.to_diagonal(scaled)
            refs.d_values_diagonal[...] = packing.to_diagonal(refs.d_values[0])
            refs.acc[...] = jnp.zeros_like(refs.acc)
            if band is not None:
                refs.d_matrices[...] = jnp.zeros_like(refs.d_matrices)

        blocks.run(refs, attend, copy_exact)

        @pl.when(refs.step == blocks.count - 1)
        def _() -> None:
            refs.d_q_landmarks[0] = packing.from_diagonal(refs.acc[...]) * packing.scale

    def attend(refs: CollectBackwardRefs) -> None:
        columns = refs.columns[0, 0]
        m, d_l = (columns[:, lane : lane + 1] for lane in (MAXIMUM, SUM))  # [G·M 1]
        for part in blocks.parts(refs, BACKWARD_PART):
            key = part.clean(refs.key[0, part.positions])  # [S G·D]
            value = part.clean(refs.value[0, part.positions])  # [S G·D]
            logits = packing.dot(refs.q_diagonal[...], key, (1, 1))  # [G·M S]
            weights = part.only_real(jnp.exp(logits - m), 0.0)  # [G·M S]
            d_weights = packing.dot(refs.d_values_diagonal[...], value, (1, 1))  # [G·M S]
            d_logits = (weights * (d_weights + d_l)).astype(packing.dtype)  # [G·M S]
            refs.acc[...] += packing.dot(d_logits, key, (1, 0))  # [G·M G·D]
            write_output(
                refs,
                part,
                value,
                packing.dot(d_logits, refs.q_diagonal[...], (0, 0)),
                packing.dot(weights.astype(packing.dtype), refs.d_values_diagonal[...], (0, 0)),
            )

    def copy_exact(refs: CollectBackwardRefs) -> None:
        for part in blocks.parts(refs, BACKWARD_PART):
            d_value = packing.dot(part.members(rows), refs.d_values_diagonal[...], (0, 0))
            write_output(refs, part, part.clean(refs.value[0, part.positions]), 0, d_value)

    def write_output(
        refs: CollectBackwardRefs,
        part: Part,
        value: Array,  # [S G·D]
        d_key: Any,  # [S G·D], or 0
        d_value: Array,  # [S G·D]
    ) -> None:
        member = part.members(packing.num_landmarks)  # [M S]
        spread = packing.dot(member, refs.d_members[0].astype(packing.dtype), (0, 0))  # [S G·D]
        refs.d_key[0, part.positions] = (d_key + spread).astype(packing.dtype)
        if band is not None:
            tiles = []
            windows = band.windows(refs, part, band.edges(refs), masked=False)
            for index, window in enumerate(windows):
                tiles.append(band.convolve(refs.matrices[0], window))
                tile = value[index * band.tile : (index + 1) * band.tile]
                for head, product in enumerate(band.correlate(tile, window)):
                    refs.d_matrices[0, 0, head] += product
            convolved = jnp.concatenate(tiles, axis=0)  # [S G·D]
            if packing.masked:
                convolved = part.clean(convolved)
            d_value = d_value + convolved
        refs.d_value[0, part.positions] = d_value.astype(packing.dtype)

    inputs = {
        "ids": (ids, blocks.ids(ids)),
        "q_landmarks": (q_landmarks, blocks.landmarks()),
        "d_values": (d_values, blocks.landmarks()),
        "d_members": (d_members, blocks.landmarks()),
        "columns": (columns, blocks.of_group(rows, LANES)),
        "key": (key, blocks.tokens()),
        "value": (value, blocks.tokens()),
    }
    outputs = {
        "d_key": blocks.token_output(),
        "d_value": blocks.token_output(),
        "d_q_landmarks": blocks.landmark_output(),
    }
    if band is not None and convolution is not None:
        matrices, to_kernel = jax.vjp(
            lambda kernel: band.matrices(kernel[:, ::-1].astype(jnp.float32)), convolution.kernel
        )
        inputs |= band.inputs(convolution.x, matrices, None)
        outputs["d_matrices"] = (
            jax.ShapeDtypeStruct((packing.batch, *matrices.shape), jnp.float32),
            blocks.of_group(*matrices.shape[1:]),
        )
    d_key, d_value, d_q_landmarks, *d_matrices = call(
        kernel,
        CollectBackwardRefs,
        "collect_backward",
        blocks,
        inputs,
        outputs,
        copies=copies,
        scratch={
            "q_diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "d_values_diagonal": pltpu.VMEM((rows, width), packing.dtype),
            "acc": pltpu.VMEM((rows, width), jnp.float32),
        },
    )
    d_kernel = to_kernel(d_matrices[0].sum(axis=0))[0] if d_matrices else None
    return d_key, d_value, d_q_landmarks, d_kernel
