"""Sums over segments of the sequence, and their gradient: each position gets its segment's."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from nystromformer_jax.kernels.packing import LANES, Blocks, Packing, call
from nystromformer_jax.typing import Array, Float, Int

BLOCK_LANES = 512  # lanes of a block; heads are of no concern here
BLOCK = 1024  # positions of bfloat16 and so many lanes
PART = 512  # positions


def segment_sums(
    packing: Packing,
    x: Float[Array, "B L E"],
    ids: Int[Array, "_ 1 L"],
) -> Float[Array, "B M E"]:
    """Sums of `x` by segment, in float32; a position whose id is M belongs to none, and is not seen."""
    blocks, grid, tokens, landmarks = _cut(packing, x)

    def kernel(refs: Any) -> None:
        @pl.when(refs.step == 0)
        def _() -> None:
            refs.sums[...] = jnp.zeros_like(refs.sums)

        for part in blocks.parts(refs, blocks.size):
            member = part.members(packing.num_landmarks)
            refs.sums[0] += packing.dot(member, part.clean(refs.x[0, part.rows]), (1, 0))

    shape = jax.ShapeDtypeStruct((x.shape[0], packing.num_landmarks, x.shape[2]), jnp.float32)
    (sums,) = call(
        kernel,
        "segment_sums",
        blocks,
        {"ids": (ids, blocks.ids(ids)), "x": (x, tokens)},
        {"sums": (shape, landmarks)},
        grid=grid,
    )
    return sums


def add_to_members(
    packing: Packing,
    x: Float[Array, "B L E"],
    own: Float[Array, "B M E"],
    ids: Int[Array, "_ 1 L"],
) -> Float[Array, "B L E"]:
    """Adds to each position of `x` what its segment has; takes the memory of `x`."""
    blocks, grid, tokens, landmarks = _cut(packing, x)

    def kernel(refs: Any) -> None:
        own = refs.own[0].astype(packing.dtype)
        for part in blocks.parts(refs, PART):
            spread = packing.dot(part.members(packing.num_landmarks), own, (0, 0))
            x = refs.x[0, part.rows].astype(jnp.float32)
            refs.out[0, part.rows] = (x + spread).astype(packing.dtype)

    (out,) = call(
        kernel,
        "add_to_members",
        blocks,
        {"ids": (ids, blocks.ids(ids)), "own": (own, landmarks), "x": (x, tokens)},
        {"out": (jax.ShapeDtypeStruct(x.shape, x.dtype), tokens)},
        grid=grid,
        aliases={"x": "out"},
    )
    return out


def _cut(
    packing: Packing, x: Float[Array, "B L E"]
) -> tuple[Blocks, tuple[int, int, int], pl.BlockSpec, pl.BlockSpec]:
    """Blocks as wide as they may be: whole registers that divide the width, or all of it."""
    width = x.shape[2]
    lanes = next((lanes for lanes in range(BLOCK_LANES, 0, -LANES) if width % lanes == 0), width)
    blocks = Blocks.of(packing, x.shape[1], BLOCK * BLOCK_LANES // max(lanes, LANES))
    tokens = pl.BlockSpec((1, blocks.size, lanes), lambda b, c, i, *_: (b, i, c))
    landmarks = pl.BlockSpec((1, packing.num_landmarks, lanes), lambda b, c, i, *_: (b, 0, c))
    return blocks, (packing.batch, width // lanes, blocks.count), tokens, landmarks
