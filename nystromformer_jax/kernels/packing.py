"""How arrays are cut for the kernels: heads side by side on 128 lanes, the sequence in blocks."""

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
PART_ROWS = 128  # of landmarks, for which the lengths of blocks' parts are chosen
VMEM_BYTES = 64 * 2**20  # of 128 MiB on a v5e and a v6e


@dataclasses.dataclass(frozen=True)
class Packing:
    """Sizes of one attention, and how its heads share lanes.

    A group of heads lies side by side on the lanes of a block; its landmarks stand below each other
    as a block-diagonal matrix, which a matrix unit of 128 × 128 multiplies at no extra cost. Inside of the
    kernels tokens lie along lanes and landmarks along rows, so that masks and sums over tokens are rows
    and softmax over landmarks needs no exchange between lanes.
    """

    batch: int
    num_heads: int
    head_dim: int
    num_landmarks: int
    dtype: Any
    masked: bool  # whether `ids` says that some positions are padding
    interpret: bool

    @property
    def group(self) -> int:
        """Heads side by side."""
        return min(max(1, LANES // self.head_dim), self.num_heads)

    @property
    def num_groups(self) -> int:
        """Groups of heads."""
        return self.num_heads // self.group

    @property
    def width(self) -> int:
        """Lanes of a group."""
        return self.group * self.head_dim

    @property
    def rows(self) -> int:
        """Landmarks of all heads of a group, below each other."""
        return self.group * self.num_landmarks

    @property
    def scale(self) -> float:
        """Of logits."""
        return float(self.head_dim**-0.5)

    def dot(self, left: Array, right: Array, over: tuple[int, int]) -> Array:
        """The product over axis `over[0]` of `left` and `over[1]` of `right`, in float32."""
        exact = self.dtype == jnp.float32  # a TPU would round to bfloat16
        return jax.lax.dot_general(
            left,
            right,
            (((over[0],), (over[1],)), ((), ())),
            preferred_element_type=jnp.float32,
            # Said in any case: the user's default, which may be one, is not for bfloat16 in a kernel.
            precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        )

    def to_diagonal(self, x: Float[Array, "M G·D"]) -> Float[Array, "G·M G·D"]:
        """Heads side by side → on the diagonal."""
        return jnp.where(self._on_diagonal(), jnp.concatenate([x] * self.group, axis=0), 0)

    def from_diagonal(self, x: Float[Array, "G·M G·D"]) -> Float[Array, "M G·D"]:
        """On the diagonal → heads side by side; what stands beside the diagonal is dropped."""
        own, *others = self.heads(jnp.where(self._on_diagonal(), x, 0))
        return sum(others, own)

    def heads(self, x: Float[Array, "G·M S"]) -> list[Float[Array, "M S"]]:
        """The rows of each head."""
        size = self.num_landmarks
        return [x[head * size : (head + 1) * size] for head in range(self.group)]

    def _on_diagonal(self) -> Bool[Array, "G·M G·D"]:
        shape = (self.rows, self.width)
        row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        # `//` asks for the kind of the machine that traces, which need not be a TPU.
        return jax.lax.div(row, self.num_landmarks) == jax.lax.div(column, self.head_dim)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence in blocks of positions; `grid` runs over examples, groups of heads, and them."""

    packing: Packing
    length: int
    size: int

    @classmethod
    def of(cls, packing: Packing, length: int, longest: int) -> "Blocks":
        """As even as they can be, in whole registers; `longest` is of bfloat16."""
        count = pl.cdiv(length, max(LANES, longest * 2 // jnp.dtype(packing.dtype).itemsize))
        return cls(packing, length, pl.cdiv(pl.cdiv(length, count), LANES) * LANES)

    @property
    def count(self) -> int:
        """How many."""
        return pl.cdiv(self.length, self.size)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Steps."""
        return self.packing.batch, self.packing.num_groups, self.count

    @property
    def ragged(self) -> bool:
        """Whether the last block reaches over the end, where anything may stand."""
        return self.count * self.size > self.length

    def tokens(self) -> pl.BlockSpec:
        """A block of one group, of an array `[B L H·D]`."""
        return pl.BlockSpec((1, self.size, self.packing.width), lambda b, g, i, *_: (b, i, g))

    def ids(self, ids: Int[Array, "_ 1 L"]) -> pl.BlockSpec:
        """The segments of a block; the same for all examples where there is one row."""
        shared = ids.shape[0] == 1
        return pl.BlockSpec((1, 1, self.size), lambda b, g, i, *_: (0 if shared else b, 0, i))

    def landmarks(self) -> pl.BlockSpec:
        """The landmarks of one group, of an array `[B M H·D]`."""
        shape = (1, self.packing.num_landmarks, self.packing.width)
        return pl.BlockSpec(shape, lambda b, g, i, *_: (b, 0, g))

    def of_group(self, *shape: int) -> pl.BlockSpec:
        """All that belongs to one group, of an array `[B groups …]`."""
        zeros = (0,) * len(shape)
        return pl.BlockSpec((1, 1, *shape), lambda b, g, i, *_: (b, g, *zeros))

    def parts(self, refs: Any, size: int) -> Iterator["Part"]:
        """The block in parts short enough that what is made of them stays near the registers.

        With more rows of landmarks than `PART_ROWS` they are shorter than `size`.
        """
        size = max(LANES, size * PART_ROWS // max(PART_ROWS, self.packing.rows) // LANES * LANES)
        for first in range(0, self.size, size):
            yield Part(self, refs, first, min(size, self.size - first))

    def run(self, refs: Any, attend: Callable[[Any], None], take: Callable[[Any], None]) -> None:
        """`attend(refs)`, or `take(refs)` for an example of few tokens, which only a mask can make."""
        if not self.packing.masked:
            attend(refs)
            return
        few = refs.few[refs.example] != 0
        pl.when(few)(lambda: take(refs))
        pl.when(jnp.logical_not(few))(lambda: attend(refs))

    def within(self, start: Any, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros outside of the sequence, where the first row is position `start`."""
        position = start + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jnp.where((position >= 0) & (position < self.length), x, 0)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some positions of a block: `first` … `first + size − 1`."""

    blocks: Blocks
    refs: Any
    first: int
    size: int

    @property
    def rows(self) -> slice:
        """In the block."""
        return slice(self.first, self.first + self.size)

    @property
    def ids(self) -> Int[Array, "1 S"]:
        """Segments."""
        return self.refs.ids[0, :, self.rows]

    @property
    def start(self) -> Any:
        """The first position."""
        return self.refs.start + self.first

    def real(self) -> Bool[Array, "1 S"]:
        """Which positions are tokens."""
        ids = self.ids
        inside = self.start + jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1) < self.blocks.length
        packing = self.blocks.packing
        return inside & (ids < packing.num_landmarks) if packing.masked else inside

    def only_real(self, x: Float[Array, "R S"], other: float) -> Float[Array, "R S"]:
        """`other` where no token is."""
        if self.blocks.packing.masked or self.blocks.ragged:
            return jnp.where(self.real(), x, other)
        return x

    def members(self, rows: int) -> Float[Array, "R S"]:
        """One where the position belongs to the segment of the row."""
        packing = self.blocks.packing
        row = jax.lax.broadcasted_iota(jnp.int32, (rows, self.size), 0)
        if rows > packing.num_landmarks:
            row = jax.lax.rem(row, packing.num_landmarks)
        member = self.ids == row
        if self.blocks.ragged:
            member &= self.real()
        return member.astype(packing.dtype)

    def clean(self, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros where no token is, whatever stands there."""
        if self.blocks.packing.masked:
            return jnp.where(as_rows(self.real().astype(x.dtype), x.shape[1]) > 0, x, 0)
        return self.inside(x)

    def inside(self, x: Float[Array, "S G·D"]) -> Float[Array, "S G·D"]:
        """Zeros behind the end of the sequence."""
        return self.blocks.within(self.start, x) if self.blocks.ragged else x


def as_rows(flags: Float[Array, "1 S"], width: int) -> Float[Array, "S W"]:
    """Flags along lanes → along rows, by a product."""
    contract = (((0,), (0,)), ((), ()))
    left = jnp.broadcast_to(flags, (8, flags.shape[1]))
    right = jnp.ones((8, width), flags.dtype)
    return jax.lax.dot_general(
        left,
        right,
        contract,
        preferred_element_type=jnp.float32,
        precision=jax.lax.Precision.DEFAULT,
    )


def call(
    kernel: Callable[[Any], None],
    name: str,
    blocks: Blocks,
    inputs: Mapping[str, tuple[Array, pl.BlockSpec]],
    outputs: Mapping[str, tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
    *,
    few: Int[Array, " B"] | None = None,
    scratch: Mapping[str, Any] = types.MappingProxyType({}),
    grid: tuple[int, ...] = (),
    aliases: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Array, ...]:
    """Runs `kernel(refs)` over the grid, where `refs` has every input, output and scratch by its name.

    `refs.few` is for scalars: whether an example has so few tokens that each is its own landmark. None
    for a kernel that does not ask.
    `refs.step` is the block, and `refs.start` its first position; an example's blocks run in order, so
    that sums may be kept over them.
    """
    names = ["few", *inputs, *outputs, *scratch]

    def body(*refs: Any) -> None:
        example, step = pl.program_id(0), pl.program_id(2)
        places = {"example": example, "step": step, "start": step * blocks.size}
        kernel(types.SimpleNamespace(**dict(zip(names, refs, strict=True)), **places))

    places, results = list(inputs), list(outputs)
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
            1 + places.index(taken): results.index(given) for taken, given in aliases.items()
        },
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=VMEM_BYTES,
        ),
        name=f"nystrom_{name}",
        cost_estimate=_cost(blocks, arrays, [shape for shape, _ in outputs.values()]),
        interpret=blocks.packing.interpret,
    )(jnp.zeros(blocks.packing.batch, jnp.int32) if few is None else few, *arrays)


def _cost(blocks: Blocks, inputs: Sequence[Array], outputs: Sequence[Any]) -> pl.CostEstimate:
    """What the compiler cannot see: each array is read or written once, by one product of a group's width."""
    packing = blocks.packing
    distinct = {id(array): array for array in inputs}.values()
    tokens = [x for x in (*distinct, *outputs) if x.shape[1:2] == (blocks.length,)]
    products = len(tokens) * packing.batch * packing.num_groups * blocks.length
    return pl.CostEstimate(
        flops=2 * products * packing.rows * packing.width,
        transcendentals=packing.batch * packing.num_groups * blocks.length * packing.rows,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*distinct, *outputs)),
    )
