"""Array layout in the kernels: groups of heads share 128 lanes; the sequence is split into blocks."""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from nystromformer_jax.typing import Array, Bool, Float, Int

LANES = 128
PART_ROWS = 128  # landmark rows for which the part sizes are tuned
VMEM_BYTES = 64 * 2**20  # limit; a v5e and a v6e have 128 MiB

Ref = Any  # a reference to memory, as Pallas passes it to a kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refs:
    """References of every kernel. G·D: lanes of a group of heads; S: positions of a block."""

    copies: Ref  # [B] int32 in scalar memory; 1: values are copied instead of attention
    example: Array  # index of the example on the grid
    step: Array  # index of the block; blocks run in order, so sums can be accumulated
    start: Array  # first position of the block
    ids: Ref  # [1 1 S] int32, segment of each position


@dataclasses.dataclass(frozen=True)
class Packing:
    """Sizes of queries or keys, and the layout of their heads.

    The heads of a group are adjacent on the lanes of a block. The landmarks of the group form a
    block-diagonal matrix, which a 128 × 128 matrix unit multiplies at no extra cost. In the kernels tokens
    are along lanes and landmarks along rows. Masks over tokens are therefore rows, and a softmax over
    landmarks needs no cross-lane operations.
    """

    batch: int
    num_heads: int
    head_dim: int
    num_landmarks: int
    dtype: Any
    masked: bool  # True if `ids` may mark positions as padding
    interpret: bool

    @property
    def group(self) -> int:
        """Heads per group, G."""
        return min(max(1, LANES // self.head_dim), self.num_heads)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return self.num_heads // self.group

    @property
    def width(self) -> int:
        """Lanes of a group, G·D."""
        return self.group * self.head_dim

    @property
    def rows(self) -> int:
        """Landmarks of all heads of a group, G·M."""
        return self.group * self.num_landmarks

    @property
    def scale(self) -> float:
        """Factor of the logits, 1 / √D."""
        return float(self.head_dim**-0.5)

    def dot(self, left: Array, right: Array, over: tuple[int, int]) -> Array:
        """Contracts axis `over[0]` of `left` with axis `over[1]` of `right`, in float32."""
        exact = self.dtype == jnp.float32  # the TPU's default rounds to bfloat16
        return jax.lax.dot_general(
            left,
            right,
            (((over[0],), (over[1],)), ((), ())),
            preferred_element_type=jnp.float32,
            # Explicit: a user's default precision would be invalid for bfloat16 in a kernel.
            precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        )

    def to_diagonal(self, x: Float[Array, "M G·D"]) -> Float[Array, "G·M G·D"]:
        """Moves adjacent heads to diagonal blocks; the result has `dtype`."""
        diagonal = jnp.where(self._on_diagonal(), jnp.concatenate([x] * self.group, axis=0), 0)
        return diagonal.astype(self.dtype)

    def from_diagonal(self, x: Float[Array, "G·M G·D"]) -> Float[Array, "M G·D"]:
        """Inverse of `to_diagonal`: makes the diagonal blocks adjacent and drops all other entries."""
        own, *others = self.heads(jnp.where(self._on_diagonal(), x, 0))
        return sum(others, own)

    def heads(self, x: Float[Array, "G·M S"]) -> list[Float[Array, "M S"]]:
        """Returns the rows of each head."""
        size = self.num_landmarks
        return [x[head * size : (head + 1) * size] for head in range(self.group)]

    def _on_diagonal(self) -> Bool[Array, "G·M G·D"]:
        shape = (self.rows, self.width)
        row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        # Not `//`: its lowering depends on the tracing platform, which need not be a TPU.
        return jax.lax.div(row, jnp.int32(self.num_landmarks)) == jax.lax.div(
            column, jnp.int32(self.head_dim)
        )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence divided into blocks of `size` positions."""

    packing: Packing
    length: int
    size: int

    @classmethod
    def create(cls, packing: Packing, length: int, longest: int) -> "Blocks":
        """Splits `length` evenly into aligned blocks of at most `longest` positions (half in float32)."""
        count = pl.cdiv(length, max(LANES, longest * 2 // jnp.dtype(packing.dtype).itemsize))
        return cls(packing, length, pl.cdiv(pl.cdiv(length, count), LANES) * LANES)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return pl.cdiv(self.length, self.size)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Grid shape: examples, groups of heads, blocks."""
        return self.packing.batch, self.packing.num_groups, self.count

    @property
    def ragged(self) -> bool:
        """True if the last block extends beyond the sequence, where memory is undefined."""
        return self.count * self.size > self.length

    def tokens(self) -> pl.BlockSpec:
        """Spec of a block of one group, `[1 S G·D]`, for an array `[B L H·D]`."""
        return pl.BlockSpec((1, self.size, self.packing.width), lambda b, g, i, *_: (b, i, g))

    def ids(self, ids: Int[Array, "_ 1 L"]) -> pl.BlockSpec:
        """Spec of a block of segment ids, `[1 1 S]`; a single row is shared by all examples."""
        shared = ids.shape[0] == 1
        return pl.BlockSpec((1, 1, self.size), lambda b, g, i, *_: (0 if shared else b, 0, i))

    def landmarks(self) -> pl.BlockSpec:
        """Spec of the landmarks of one group, `[1 M G·D]`, for an array `[B M H·D]`."""
        shape = (1, self.packing.num_landmarks, self.packing.width)
        return pl.BlockSpec(shape, lambda b, g, i, *_: (b, 0, g))

    def token_output(self) -> tuple[jax.ShapeDtypeStruct, pl.BlockSpec]:
        """Shape and spec of an output `[B L H·D]`."""
        shape = (self.packing.batch, self.length, self.packing.num_groups * self.packing.width)
        return jax.ShapeDtypeStruct(shape, self.packing.dtype), self.tokens()

    def landmark_output(self) -> tuple[jax.ShapeDtypeStruct, pl.BlockSpec]:
        """Shape and spec of a float32 output `[B M H·D]`."""
        packing = self.packing
        shape = (packing.batch, packing.num_landmarks, packing.num_groups * packing.width)
        return jax.ShapeDtypeStruct(shape, jnp.float32), self.landmarks()

    def of_group(self, *shape: int) -> pl.BlockSpec:
        """Spec of the slice of one group, for an array `[B groups …]`."""
        zeros = (0,) * len(shape)
        return pl.BlockSpec((1, 1, *shape), lambda b, g, i, *_: (b, g, *zeros))

    def parts(self, refs: Refs, size: int) -> Iterator["Part"]:
        """Yields parts of `size` positions; parts are smaller if there are over `PART_ROWS` landmark rows."""
        size = max(LANES, size * PART_ROWS // max(PART_ROWS, self.packing.rows) // LANES * LANES)
        for first in range(0, self.size, size):
            yield Part(self, refs, first, min(size, self.size - first))

    def run(
        self, refs: Any, attend: Callable[[Any], None], copy_exact: Callable[[Any], None]
    ) -> None:
        """Runs `copy_exact` if values are copied, else `attend`; without a mask always `attend`."""
        if not self.packing.masked:
            attend(refs)
            return
        copies = refs.copies[refs.example] != 0
        pl.when(copies)(lambda: copy_exact(refs))
        pl.when(jnp.logical_not(copies))(lambda: attend(refs))

    def within(self, start: Any, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros rows outside the sequence; the first row is position `start`."""
        position = start + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jnp.where((position >= 0) & (position < self.length), x, 0)


@dataclasses.dataclass(frozen=True)
class Part:
    """Positions `first` … `first + size − 1` of a block."""

    blocks: Blocks
    refs: Refs
    first: int
    size: int

    @property
    def positions(self) -> slice:
        """Slice of the positions in the block."""
        return slice(self.first, self.first + self.size)

    @property
    def ids(self) -> Int[Array, "1 S"]:
        """Segment ids of the positions."""
        return self.refs.ids[0, :, self.positions]

    @property
    def start(self) -> Any:
        """First position in the sequence."""
        return self.refs.start + self.first

    def real(self) -> Bool[Array, "1 S"]:
        """True at real tokens."""
        ids = self.ids
        inside = self.start + jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1) < self.blocks.length
        packing = self.blocks.packing
        return inside & (ids < packing.num_landmarks) if packing.masked else inside

    def only_real(self, x: Float[Array, "R S"], other: float) -> Float[Array, "R S"]:
        """Replaces columns at padding with `other`."""
        if self.blocks.packing.masked or self.blocks.ragged:
            return jnp.where(self.real(), x, other)
        return x

    def members(self, rows: int) -> Float[Array, "R S"]:
        """Returns 1 where the position belongs to the row's segment, else 0."""
        packing = self.blocks.packing
        row = jax.lax.broadcasted_iota(jnp.int32, (rows, self.size), 0)
        if rows > packing.num_landmarks:
            row = jax.lax.rem(row, jnp.int32(packing.num_landmarks))
        member = self.ids == row
        if self.blocks.ragged:
            member &= self.real()
        return member.astype(packing.dtype)

    def clean(self, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros rows at padding, including NaN."""
        if self.blocks.packing.masked:
            return jnp.where(as_rows(self.real().astype(x.dtype), x.shape[1]) > 0, x, 0)
        return self.inside(x)

    def inside(self, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros rows beyond the end of the sequence."""
        return self.blocks.within(self.start, x) if self.blocks.ragged else x


def as_rows(flags: Float[Array, "1 S"], width: int) -> Float[Array, "S W"]:
    """Transposes flags from lanes to rows by a matrix product, repeated over `width` lanes."""
    left = jnp.broadcast_to(flags, (8, flags.shape[1]))
    right = jnp.ones((8, width), flags.dtype)
    contract, default = (((0,), (0,)), ((), ())), jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(
        left, right, contract, preferred_element_type=jnp.float32, precision=default
    )


def call(
    kernel: Callable[[Any], None],
    refs_type: type[Refs],
    name: str,
    blocks: Blocks,
    inputs: Mapping[str, tuple[Array, pl.BlockSpec]],
    outputs: Mapping[str, tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
    *,
    copies: Int[Array, " B"] | None = None,
    scratch: Mapping[str, Any] = types.MappingProxyType({}),
    grid: tuple[int, ...] = (),
    aliases: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Array, ...]:
    """Runs `kernel(refs)` over the grid; `refs` has all inputs, outputs and scratch by name."""
    names = ["copies", *inputs, *outputs, *scratch]

    def body(*refs: Ref) -> None:
        example, step = pl.program_id(0), pl.program_id(2)
        by_name = dict(zip(names, refs, strict=True))
        kernel(refs_type(**by_name, example=example, step=step, start=step * blocks.size))

    input_names, output_names = list(inputs), list(outputs)
    arrays = [array for array, _ in inputs.values()]
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid or blocks.grid,
            in_specs=[spec for _, spec in inputs.values()],
            out_specs=[spec for _, spec in outputs.values()],
            scratch_shapes=list(scratch.values()),
        ),
        out_shape=[shape for shape, _ in outputs.values()],
        input_output_aliases={
            1 + input_names.index(x): output_names.index(out) for x, out in aliases.items()
        },
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        name=f"nystrom_{name}",
        cost_estimate=_cost(blocks, arrays, [shape for shape, _ in outputs.values()]),
        interpret=blocks.packing.interpret,
    )(jnp.zeros(blocks.packing.batch, jnp.int32) if copies is None else copies, *arrays)


def _cost(blocks: Blocks, inputs: Sequence[Array], outputs: Sequence[Any]) -> pl.CostEstimate:
    """Estimates the cost: each array is read or written once and multiplied once by a group's width."""
    packing = blocks.packing
    distinct = {id(array): array for array in inputs}.values()
    tokens = [x for x in (*distinct, *outputs) if x.shape[1:2] == (blocks.length,)]
    products = len(tokens) * packing.batch * packing.num_groups * blocks.length
    return pl.CostEstimate(
        flops=2 * products * packing.rows * packing.width,
        transcendentals=packing.batch * packing.num_groups * blocks.length * packing.rows,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*distinct, *outputs)),
    )
