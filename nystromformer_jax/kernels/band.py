"""The convolution inside of kernels: tiles of positions with their halos, times a band matrix."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from nystromformer_jax.kernels.packing import LANES, Blocks, Part, as_rows
from nystromformer_jax.typing import Array, Float, Int

WIDEST_CONVOLUTION = 2 * LANES + 1


class Convolution(NamedTuple):
    """What a kernel convolves besides, and by what."""

    x: Float[Array, "B L E"]
    kernel: Float[Array, "H W"]


@dataclasses.dataclass(frozen=True)
class Band:
    """How a convolution of some width is cut: `tile` positions read `halo` more on both sides."""

    blocks: Blocks
    width: int

    @property
    def halo(self) -> int:
        """Whole tiles of memory, for any type; 32 and a tile of 64 fill a matrix unit."""
        return next(halo for halo in (32, 64, 128) if halo >= self.width // 2)

    @property
    def tile(self) -> int:
        """Positions that one product makes."""
        return 64 if self.halo == 32 else LANES

    @property
    def window(self) -> int:
        """Positions that one product reads."""
        return self.tile + 2 * self.halo

    def matrices(self, kernel: Float[Array, "H W"]) -> Float[Array, "groups G S T"]:
        """Row s holds the kernel in columns s + halo − W // 2 … s + halo + W // 2."""
        packing = self.blocks.packing
        offset = self.halo - self.width // 2
        period = jnp.pad(kernel, ((0, 0), (offset, self.window + 1 - offset - self.width)))
        rows = jnp.tile(period, (1, self.tile))[:, : self.tile * self.window]
        shape = (packing.num_groups, packing.group, self.tile, self.window)
        return rows.reshape(shape)

    def inputs(
        self,
        x: Float[Array, "B L E"],
        matrices: Float[Array, "groups G S T"],
        ids: Int[Array, "_ 1 L"] | None,
    ) -> dict[str, tuple[Array, pl.BlockSpec]]:
        """The matrices, `x` and its neighbours on both sides, and with `ids` whether those are real."""
        size, width = self.blocks.size, self.blocks.packing.width

        def edge(rows: int, step: int) -> Any:
            last, ratio = pl.cdiv(x.shape[1], rows) - 1, size // rows
            if step < 0:
                return lambda i: jnp.maximum(i * ratio - 1, 0)
            return lambda i: jnp.minimum((i + 1) * ratio, last)

        of_group = pl.BlockSpec((1, *matrices.shape[1:]), lambda b, g, i, *_: (g, 0, 0, 0))
        taken = {
            "matrices": (matrices.astype(x.dtype), of_group),
            "convolved": (x, self.blocks.tokens()),
        }
        for side, step in (("left", -1), ("right", 1)):
            at = edge(self.halo, step)
            taken[f"convolved_{side}"] = (
                x,
                pl.BlockSpec((1, self.halo, width), lambda b, g, i, *_, at=at: (b, at(i), g)),
            )
            if ids is not None:
                at = edge(LANES, step)
                taken[f"convolved_{side}_ids"] = (
                    ids,
                    pl.BlockSpec((1, 1, LANES), lambda b, g, i, *_, at=at: (b, 0, at(i))),
                )
        return taken

    def edges(self, refs: Any) -> list[Float[Array, "T G·D"]]:
        """The neighbours of the block on both sides, zeros where there is no token."""
        edges = []
        starts = {"left": refs.start - self.halo, "right": refs.start + self.blocks.size}
        for side, start in starts.items():
            edge = self.blocks.within(start, getattr(refs, f"convolved_{side}")[0])
            ids_ref = getattr(refs, f"convolved_{side}_ids", None)
            if ids_ref is not None:
                ids = ids_ref[0]
                nearest = slice(LANES - self.halo, None) if side == "left" else slice(self.halo)
                real = ids < self.blocks.packing.num_landmarks
                flags = as_rows(real.astype(edge.dtype), edge.shape[1])
                edge = jnp.where(flags[nearest] > 0, edge, 0)
            edges.append(edge)
        return edges

    def windows(
        self, part: Part, edges: list[Float[Array, "T G·D"]], *, masked: bool
    ) -> Iterator[Float[Array, "S G·D"]]:
        """What each tile of a part reads; with `masked` padding is zeros."""
        first = part.first - self.halo
        last = part.first + part.size + self.halo
        size = self.blocks.size
        around = Part(self.blocks, part.refs, max(first, 0), min(last, size) - max(first, 0))
        block = part.refs.convolved[0, around.rows]
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
        """The convolution at one tile: each head's lanes from its own product."""
        packing = self.blocks.packing
        head = jax.lax.div(
            jax.lax.broadcasted_iota(jnp.int32, (self.tile, packing.width), 1), packing.head_dim
        )
        output = packing.dot(matrices[0], window, (1, 0))
        for index in range(1, packing.group):
            output = jnp.where(head == index, packing.dot(matrices[index], window, (1, 0)), output)
        return output

    def correlate(
        self, tile: Float[Array, "S G·D"], window: Float[Array, "T G·D"]
    ) -> list[Float[Array, "S T"]]:
        """The gradient of each head's matrix: tile windowᵀ over its own lanes."""
        packing = self.blocks.packing
        head = jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, tile.shape, 1), packing.head_dim)
        wide = tile.astype(jnp.float32)  # a v5e selects no bfloat16
        return [
            packing.dot(jnp.where(head == index, wide, 0).astype(tile.dtype), window, (1, 1))
            for index in range(packing.group)
        ]
