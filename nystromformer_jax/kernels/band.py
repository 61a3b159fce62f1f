"""Convolution inside the kernels: multiplies tiles of positions and their halos by a band matrix."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from nystromformer_jax.attention.convolution import band_matrix
from nystromformer_jax.kernels.packing import LANES, Blocks, Part, Ref, Refs, as_rows
from nystromformer_jax.typing import Array, Float, Int

WIDEST_CONVOLUTION = 2 * LANES + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionRefs(Refs):
    """References of a kernel with an optional convolution; None without a convolution."""

    matrices: Ref = None  # [1 G S T], tile positions × window positions
    convolved: Ref = None  # [1 S G·D], the current block
    convolved_left: Ref = None  # [1 halo G·D], the end of the previous block
    convolved_right: Ref = None  # [1 halo G·D], the start of the next block
    convolved_left_ids: Ref = None  # [1 1 lanes], segment ids; None: padding is not masked
    convolved_right_ids: Ref = None  # [1 1 lanes]


class Convolution(NamedTuple):
    """Input and kernel of a convolution."""

    x: Float[Array, "B L E"]
    kernel: Float[Array, "H W"]


@dataclasses.dataclass(frozen=True)
class Band:
    """Tiling of a convolution: each tile of positions also reads `halo` positions on both sides."""

    blocks: Blocks
    width: int

    @property
    def halo(self) -> int:
        """Number of halo positions, a multiple of 32 so that blocks are aligned for every dtype."""
        return next(halo for halo in (32, 64, 128) if halo >= self.width // 2)

    @property
    def tile(self) -> int:
        """Output positions of one matrix product; 64 and two halos of 32 fill a matrix unit."""
        return 64 if self.halo == 32 else LANES

    @property
    def window(self) -> int:
        """Input positions of one matrix product."""
        return self.tile + 2 * self.halo

    def matrices(self, kernel: Float[Array, "H W"]) -> Float[Array, "groups G S T"]:
        """Returns band matrices that have the kernel in columns s + halo ± W // 2 of row s."""
        packing, offset = self.blocks.packing, self.halo - self.width // 2
        matrices = band_matrix(kernel, self.tile, self.window, offset)
        return matrices.reshape(packing.num_groups, packing.group, self.tile, self.window)

    def inputs(
        self,
        x: Float[Array, "B L E"],
        matrices: Float[Array, "groups G S T"],
        ids: Int[Array, "_ 1 L"] | None,
    ) -> dict[str, tuple[Array, pl.BlockSpec]]:
        """Returns arrays and specs for `ConvolutionRefs`; with `ids`, padding in the halos is masked."""
        size, width = self.blocks.size, self.blocks.packing.width

        def edge(rows: int, side: str) -> Any:
            last, ratio = pl.cdiv(x.shape[1], rows) - 1, size // rows
            if side == "left":
                return lambda i: jnp.maximum(i * ratio - 1, 0)
            return lambda i: jnp.minimum((i + 1) * ratio, last)

        of_group = pl.BlockSpec((1, *matrices.shape[1:]), lambda b, g, i, *_: (g, 0, 0, 0))
        inputs = {
            "matrices": (matrices.astype(x.dtype), of_group),
            "convolved": (x, self.blocks.tokens()),
        }
        for side in ("left", "right"):
            at = edge(self.halo, side)
            inputs[f"convolved_{side}"] = (
                x,
                pl.BlockSpec((1, self.halo, width), lambda b, g, i, *_, at=at: (b, at(i), g)),
            )
            if ids is not None:
                at = edge(LANES, side)
                inputs[f"convolved_{side}_ids"] = (
                    ids,
                    pl.BlockSpec((1, 1, LANES), lambda b, g, i, *_, at=at: (b, 0, at(i))),
                )
        return inputs

    def edges(self, refs: ConvolutionRefs) -> list[Float[Array, "T G·D"]]:
        """Returns the edges of the neighboring blocks; padding is zeroed."""
        left, right = slice(LANES - self.halo, None), slice(self.halo)  # lanes nearest to the block
        edges = []
        for start, edge_ref, ids_ref, nearest in (
            (refs.start - self.halo, refs.convolved_left, refs.convolved_left_ids, left),
            (refs.start + self.blocks.size, refs.convolved_right, refs.convolved_right_ids, right),
        ):
            edge = self.blocks.within(start, edge_ref[0])
            if ids_ref is not None:
                real = ids_ref[0] < self.blocks.packing.num_landmarks
                flags = as_rows(real.astype(edge.dtype), edge.shape[1])
                edge = jnp.where(flags[nearest] > 0, edge, 0)
            edges.append(edge)
        return edges

    def windows(
        self, refs: ConvolutionRefs, part: Part, edges: list[Float[Array, "T G·D"]], *, masked: bool
    ) -> Iterator[Float[Array, "S G·D"]]:
        """Yields the window of each tile of a part; with `masked`, padding is zeroed."""
        first = part.first - self.halo
        last = part.first + part.size + self.halo
        size = self.blocks.size
        around = Part(self.blocks, refs, max(first, 0), min(last, size) - max(first, 0))
        block = refs.convolved[0, around.positions]
        rows = [around.clean(block) if masked else around.inside(block)]
        if first < 0:
            rows.insert(0, edges[0])
        if last > size:
            rows.append(edges[1])
        whole = jnp.concatenate(rows, axis=0)
        for start in range(0, part.size, self.tile):
            yield whole[start : start + self.window]

    def convolve(
        self, matrices: Float[Array, "G S T"], window: Float[Array, "T G·D"]
    ) -> Float[Array, "S G·D"]:
        """Convolves one tile: one matrix product per head, selected on the lanes of the head."""
        packing = self.blocks.packing
        head = jax.lax.div(
            jax.lax.broadcasted_iota(jnp.int32, (self.tile, packing.width), 1),
            jnp.int32(packing.head_dim),
        )
        output = packing.dot(matrices[0], window, (1, 0))
        for index in range(1, packing.group):
            output = jnp.where(head == index, packing.dot(matrices[index], window, (1, 0)), output)
        return output

    def correlate(
        self, tile: Float[Array, "S G·D"], window: Float[Array, "T G·D"]
    ) -> list[Float[Array, "S T"]]:
        """Returns the gradient of each head's matrix, tile @ windowᵀ over the lanes of the head."""
        packing = self.blocks.packing
        head = jax.lax.div(
            jax.lax.broadcasted_iota(jnp.int32, tile.shape, 1), jnp.int32(packing.head_dim)
        )
        tile_f32 = tile.astype(jnp.float32)  # a v5e does not support select in bfloat16
        return [
            packing.dot(jnp.where(head == index, tile_f32, 0).astype(tile.dtype), window, (1, 1))
            for index in range(packing.group)
        ]
