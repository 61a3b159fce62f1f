"""Landmarks: the means of queries or keys over M segments of the sequence."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    accum_dtype,
    check_array,
    check_landmarks,
    check_mask,
    check_own_landmarks,
    mask_or_ones,
    pad_length,
    zero_padding,
)
from nystromformer_jax.support.values import Layout
from nystromformer_jax.typing import Array, Bool, Float, Int

BLOCK_TOKENS = 8  # tokens per block in `segment_sums`


class TokenRanks(NamedTuple):
    """The order of the real tokens of each example."""

    rank: Int[Array, "B L"]  # index of each real token among the real tokens
    mask: Bool[Array, "B L"]  # True at real tokens
    counts: Int[Array, " B"]  # number of real tokens

    @classmethod
    def create(cls, mask: Bool[Array, "B L"]) -> "TokenRanks":
        """Returns the ranks of the tokens where `mask` is True."""
        rank = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        return cls(rank, mask, rank[:, -1] + 1)

    def without_first(self, number: int) -> "TokenRanks":
        """Returns the ranks of the real tokens after the first `number`; those become padding."""
        rank = self.rank - number
        return TokenRanks(rank, self.mask & (rank >= 0), jnp.maximum(self.counts - number, 0))

    def segment_ids(self, num_landmarks: int, num_own: int = 0) -> Int[Array, "B L"]:
        """Returns the segment of each position, 0 … M − 1; M at padding.

        Real token r (from 0) of n belongs to segment (r · M) // n, in integer arithmetic. Segment sizes
        differ by at most one, and padding has no effect. Each of the first `num_own` real tokens is a
        segment of its own, and the others are divided into the remaining segments.

        Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7 (n divisible by M, no padding).
        Differs: any n, any mask, own segments.
        """
        if num_own:
            others = self.without_first(num_own)
            ids = num_own + others.segment_ids(num_landmarks - num_own)
            return jnp.where(self.mask & ~others.mask, self.rank, ids)
        count = jnp.maximum(self.counts, 1)[:, None]
        # rank · M // count, where rank · M may overflow int32. A float quotient is off by at most one, and
        # the remainder, which is correct modulo 2³², says by how much.
        ratio = num_landmarks / count.astype(jnp.float32)
        segment = (self.rank.astype(jnp.float32) * ratio).astype(jnp.int32)
        rest = self.rank * num_landmarks - segment * count
        segment = segment + (rest >= count).astype(jnp.int32) - (rest < 0).astype(jnp.int32)
        return jnp.where(self.mask, segment, num_landmarks)

    def segment_bounds(self, num_landmarks: int, num_own: int = 0) -> Int[Array, "B N"]:
        """Returns the first position of each segment, followed by the end of the last segment."""
        first = first_ranks(self.counts, num_landmarks, num_own)
        return (self.rank[:, None] < first[..., None]).sum(axis=-1, dtype=jnp.int32)


class LandmarkMeans(NamedTuple):
    """Means of segments or clusters: the landmarks. The mask is False for those without tokens."""

    means: Float[Array, "B M H D"]
    mask: Bool[Array, "B M"]
    # None if the layout is not "real", and without a mask unless there are own landmarks.
    ranks: TokenRanks | None = None

    def without_first(self, number: int) -> "LandmarkMeans":
        """Returns landmarks and ranks of tokens after the first `number`, which are one token each."""
        ranks = None if self.ranks is None else self.ranks.without_first(number)
        return LandmarkMeans(self.means[:, number:], self.mask[:, number:], ranks)


def first_ranks(
    counts: Int[Array, " B"], num_landmarks: int, num_own: int = 0
) -> Int[Array, "B N"]:
    """Returns the rank of each segment's first token, followed by the count.

    Without own segments, this is ceil(s · count / M) for s = 0 … M.
    """
    if num_own:
        own = jnp.minimum(counts[:, None], jnp.arange(num_own + 1, dtype=counts.dtype)[None])
        others = first_ranks(counts - own[:, -1], num_landmarks - num_own)
        return jnp.concatenate([own[:, :-1], own[:, -1:] + others], axis=1)
    segment = jnp.arange(num_landmarks + 1, dtype=counts.dtype)[None]
    # The quotient is multiplied separately, because s · count may overflow int32.
    quotient, rest = counts[:, None] // num_landmarks, counts[:, None] % num_landmarks
    return segment * quotient - (-segment * rest // num_landmarks)


def segment_sizes(
    counts: Int[Array, " B"], num_landmarks: int, num_own: int = 0
) -> Int[Array, "B M"]:
    """Returns the segment sizes with `layout="real"` for examples with `counts` real tokens."""
    return jnp.diff(first_ranks(counts, num_landmarks, num_own), axis=1)


def segment_means(
    x: Float[Array, "B L H D"],
    num_landmarks: int,
    mask: Bool[Array, "B L"] | None = None,
    *,
    layout: Layout = "real",
    num_own_landmarks: int = 0,
) -> tuple[Float[Array, "B M H D"], Bool[Array, "B M"]]:
    """Returns the mean of `x` over each of M segments of the sequence, and the landmark mask.

    Args:
      x: Queries or keys, [batch, length, heads, head_dim]. Values at padding have no effect, except
        with `layout="hf"`.
      num_landmarks: M, at least 1.
      mask: True at real tokens; None means all are real.
      layout: `"real"` divides the real tokens into segments of nearly equal size. `"mlpen"` (the authors'
        code) divides all positions into segments, treats padding as zeros and divides by the full segment
        size. `"hf"` (Hugging Face) also includes the values at padding. Both require L divisible by M.
      num_own_landmarks: See `nystrom_attention`.

    Returns:
      The means in `x`'s dtype, summed in at least float32, and the landmark mask. With `layout="real"` the
      mask is False and the mean is zero for segments without tokens, which exist if there are fewer than M
      real tokens. With other layouts the mask is always True.

    Raises:
      ValueError: A number of landmarks, the layout, a shape or a dtype is invalid.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7.
    """
    x = jnp.asarray(x)
    mask = None if mask is None else jnp.asarray(mask)
    check_array("x", x, "batch, length, heads, head_dim")
    check_mask("mask", mask, x.shape[:2], "real tokens, [B L]")
    check_landmarks(num_landmarks, x.shape[1], layout, "layout")
    check_own_landmarks(num_own_landmarks, num_landmarks, layout, "layout")
    return means_of_segments(x, mask, num_landmarks, layout, num_own_landmarks)


# Compiled as one program outside of jit. Inside, it becomes part of the caller's program.
@functools.partial(jax.jit, static_argnames=("num_landmarks", "layout", "num_own"), inline=True)
def means_of_segments(
    x: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    num_landmarks: int,
    layout: Layout,
    num_own: int = 0,
) -> tuple[Float[Array, "B M H D"], Bool[Array, "B M"]]:
    """Computes `segment_means` for validated arguments."""
    batch, length = x.shape[:2]
    if layout != "hf":
        x = zero_padding(x, mask)
    if layout != "real" or (mask is None and length % num_landmarks == num_own == 0):
        sums = jax.lax.platform_dependent(
            x,
            tpu=lambda x: _sums_by_product(x, num_landmarks),
            default=lambda x: _sums(x, num_landmarks),
        )
        means = sums / (length // num_landmarks)
        landmark_mask = jnp.ones((batch, num_landmarks), bool)
        return means.astype(x.dtype), landmark_mask
    ranks = TokenRanks.create(mask_or_ones(mask, x))
    sums = segment_sums(x, ranks.segment_bounds(num_landmarks, num_own))
    size = segment_sizes(ranks.counts, num_landmarks, num_own)
    means = sums / jnp.maximum(size, 1)[..., None, None].astype(sums.dtype)
    return means.astype(x.dtype), size > 0


def first_tokens(x: Float[Array, "B L H D"], bounds: Int[Array, "B N"]) -> Float[Array, "B M H D"]:
    """Returns the token at position bounds[s] for each segment s; zeros for empty segments.

    A part of a split sequence may begin with padding of a segment of the part before: padding must be zero.
    """
    positions = jnp.minimum(bounds[:, :-1], x.shape[1] - 1)
    tokens = jax.vmap(lambda x, positions: x[positions])(x, positions)
    return jnp.where((bounds[:, :-1] < bounds[:, 1:])[..., None, None], tokens, 0)


@jax.custom_jvp
def segment_sums(x: Float[Array, "B L H D"], bounds: Int[Array, "B N"]) -> Float[Array, "B M H D"]:
    """Returns sums over the positions bounds[s] … bounds[s + 1] − 1, in at least float32.

    Blocks of tokens are summed first. Products with 0/1 matrices then add the blocks inside a segment and
    the single tokens of the blocks at its bounds. This reads `x` once, unlike a 0/1 matrix for all tokens.
    """
    count = -(-x.shape[1] // BLOCK_TOKENS)
    blocks = pad_length(x, BLOCK_TOKENS).reshape(x.shape[0], count, BLOCK_TOKENS, *x.shape[2:])
    # Features in one axis: with two, XLA's CPU backend transposes the gradient slowly.
    blocks = blocks.reshape(*blocks.shape[:3], -1)
    totals = jax.lax.platform_dependent(
        blocks,
        tpu=functools.partial(jnp.sum, axis=2, dtype=accum_dtype(x.dtype)),
        default=_added_slots,
    )
    block = bounds // BLOCK_TOKENS  # the block of each bound
    first, last = block[:, :-1, None], block[:, 1:, None]
    index = jnp.arange(count, dtype=jnp.int32)[None, None]
    inside = (first < index) & (index < last)  # [B M K]: the whole block is in the segment
    # A bound after all tokens has no block, and needs none.
    at_bounds = jax.vmap(lambda x, index: x[index])(blocks, jnp.minimum(block, count - 1))
    tokens = at_bounds.astype(totals.dtype)  # [B N S F]
    offset = jnp.arange(BLOCK_TOKENS, dtype=jnp.int32)[None, None]
    position = block[..., None] * BLOCK_TOKENS + offset
    end = bounds[:, 1:, None]
    in_first = (bounds[:, :-1, None] <= position[:, :-1]) & (position[:, :-1] < end)
    # If both bounds are in one block, its tokens are counted in `in_first`.
    in_last = (first < last) & (position[:, 1:] < end)
    add = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    sums = (
        add("BMK,BKF->BMF", inside.astype(totals.dtype), totals)
        + add("BMS,BMSF->BMF", in_first.astype(totals.dtype), tokens[:, :-1])
        + add("BMS,BMSF->BMF", in_last.astype(totals.dtype), tokens[:, 1:])
    )
    return sums.reshape(*sums.shape[:2], *x.shape[2:])


@segment_sums.defjvp
def _segment_sums_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, object]
) -> tuple[Array, Array]:
    """Sums the tangent by a scatter-add. Its transpose is a gather, which XLA fuses into what reads it.

    On a TPU, products are faster than both.
    """
    x, bounds = primals
    tangent = jax.lax.platform_dependent(
        tangents[0], bounds, tpu=segment_sums.fun, default=_sums_by_scatter
    )
    return segment_sums(x, bounds), tangent


def _sums_by_scatter(
    x: Float[Array, "B L H D"], bounds: Int[Array, "B N"]
) -> Float[Array, "B M H D"]:
    """Returns `segment_sums`, by adding each position to its segment."""
    num_segments = bounds.shape[1] - 1

    def of_example(x: Float[Array, "L H D"], bounds: Int[Array, " N"]) -> Float[Array, "M H D"]:
        starts = jnp.zeros(x.shape[0] + 1, jnp.int32).at[bounds].add(1)
        ids = jnp.cumsum(starts)[:-1] - 1
        ids = jnp.where(ids < 0, num_segments, ids)  # positions outside of all segments are dropped
        empty = jnp.zeros((num_segments, 1, 1), x.dtype) + jnp.zeros_like(x[:1])  # sharded like x
        return empty.at[ids].add(x, mode="drop")

    return jax.vmap(of_example)(x.astype(accum_dtype(x.dtype)), bounds)


def _added_slots(blocks: Float[Array, "B K S F"]) -> Float[Array, "B K F"]:
    """Returns the sums of blocks, in at least float32.

    With a reduction, XLA's CPU backend would first write the tokens with padding zeroed.
    """
    dtype = accum_dtype(blocks.dtype)
    slots = [blocks[:, :, slot].astype(dtype) for slot in range(blocks.shape[2])]
    return functools.reduce(jnp.add, slots)


def _sums(x: Float[Array, "B L H D"], num_landmarks: int) -> Float[Array, "B M H D"]:
    """Returns sums over M segments of equal length, in at least float32."""
    segments = x.reshape(x.shape[0], num_landmarks, -1, *x.shape[2:])
    return segments.sum(axis=2, dtype=accum_dtype(x.dtype))


def _sums_by_product(x: Float[Array, "B L H D"], num_landmarks: int) -> Float[Array, "B M H D"]:
    """Returns `_sums` computed by a matrix product, which takes a third of the time on a TPU."""
    ones = jnp.repeat(jnp.eye(num_landmarks, dtype=x.dtype), x.shape[1] // num_landmarks, axis=1)
    accumulator = accum_dtype(x.dtype)
    exact = jax.lax.Precision.HIGHEST if x.dtype == accumulator else None
    return jnp.einsum("ML,BLHD->BMHD", ones, x, precision=exact, preferred_element_type=accumulator)
