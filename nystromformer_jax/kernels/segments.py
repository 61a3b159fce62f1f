"""Segment sums over the sequence, and their gradient."""

import dataclasses

import jax.numpy as jnp
from jax.experimental import pallas as pl

from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, Ref, Refs, call
from nystromformer_jax.typing import Array, Float, Int

BLOCK_LANES = 512  # lanes of a block; these kernels are independent of heads
BLOCK = 1024  # positions of a block with BLOCK_LANES lanes of bfloat16
PART = 512  # positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumRefs(Refs):
    """References of `segment_sums`; C is the number of lanes."""

    x: Ref  # [1 S C]
    sums: Ref  # [1 M C] float32, output


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddRefs(Refs):
    """References of `add_to_members`; C is the number of lanes."""

    per_segment: Ref  # [1 M C] float32
    x: Ref  # [1 S C]
    out: Ref  # [1 S C], output, aliased to x


def segment_sums(
    packing: Packing, x: Float[Array, "B L E"], ids: Int[Array, "_ 1 L"]
) -> Float[Array, "B M E"]:
    """Returns the sum of `x` over each segment in float32; positions with id M are ignored."""
    blocks, grid, tokens, landmarks = _layout(packing, x)

    def kernel(refs: SumRefs) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            refs.sums[...] = jnp.zeros_like(refs.sums)

        for part in blocks.parts(refs, blocks.size):
            member = part.members(packing.num_landmarks)  # [M S]
            refs.sums[0] += packing.dot(member, part.clean(refs.x[0, part.positions]), (1, 0))

    (sums,) = call(
        kernel,
        SumRefs,
        "segment_sums",
        blocks,
        {"ids": (ids, blocks.ids(ids)), "x": (x, tokens)},
        {"sums": (blocks.landmark_output()[0], landmarks)},
        grid=grid,
    )
    return sums


def add_to_members(
    packing: Packing,
    x: Float[Array, "B L E"],
    per_segment: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
) -> Float[Array, "B L E"]:
    """Adds to each position of `x` the row of `per_segment` for its segment, in place."""
    blocks, grid, tokens, landmarks = _layout(packing, x)

    def kernel(refs: AddRefs) -> None:
        per_segment = refs.per_segment[0].astype(packing.dtype)
        for part in blocks.parts(refs, PART):
            spread = packing.dot(part.members(packing.num_landmarks), per_segment, (0, 0))  # [S C]
            x = refs.x[0, part.positions].astype(jnp.float32)  # [S C]
            refs.out[0, part.positions] = (x + spread).astype(packing.dtype)

    (out,) = call(
        kernel,
        AddRefs,
        "add_to_members",
        blocks,
        {"ids": (ids, blocks.ids(ids)), "per_segment": (per_segment, landmarks), "x": (x, tokens)},
        {"out": (blocks.token_output()[0], tokens)},
        grid=grid,
        aliases={"x": "out"},
    )
    return out


def _layout(
    packing: Packing, x: Float[Array, "B L E"]
) -> tuple[Blocks, tuple[int, int, int], pl.BlockSpec, pl.BlockSpec]:
    """Returns blocks, grid and specs; a block has the widest aligned divisor of the width, or all."""
    width = x.shape[2]
    lanes = next((lanes for lanes in range(BLOCK_LANES, 0, -LANES) if width % lanes == 0), width)
    blocks = Blocks.create(packing, x.shape[1], BLOCK * BLOCK_LANES // max(lanes, LANES))
    tokens = pl.BlockSpec((1, blocks.size, lanes), lambda b, c, i, *_: (b, i, c))
    landmarks = pl.BlockSpec((1, packing.num_landmarks, lanes), lambda b, c, i, *_: (b, 0, c))
    return blocks, (packing.batch, width // lanes, blocks.count), tokens, landmarks
