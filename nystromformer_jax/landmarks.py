"""Landmarks: the means of queries or keys over M segments of the sequence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.typing import Array, Bool, Float, Int
from nystromformer_jax.validation import Layout, accum_dtype, check_dtype, check_landmarks


class TokenRanks(NamedTuple):
    """The order of the real tokens of each example."""

    rank: Int[Array, "B L"]  # number of real tokens before each real one
    mask: Bool[Array, "B L"]  # True at real tokens
    counts: Int[Array, " B"]  # number of real tokens

    @classmethod
    def create(cls, mask: Bool[Array, "B L"]) -> "TokenRanks":
        """Returns the ranks of the tokens where `mask` is True."""
        rank = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        return cls(rank, mask, rank[:, -1] + 1)

    def segment_ids(self, num_landmarks: int) -> Int[Array, "B L"]:
        """Returns the segment of each position, see `segment_ids`."""
        count = jnp.maximum(self.counts, 1)[:, None]
        return jnp.where(self.mask, (self.rank * num_landmarks) // count, num_landmarks)


class SegmentMeans(NamedTuple):
    """Landmarks and their mask, which is False for segments without tokens."""

    means: Float[Array, "B M H D"]
    mask: Bool[Array, "B M"]
    ranks: TokenRanks | None = None  # None without a mask or if the layout is not "real"


def segment_ids(mask: Bool[Array, "B L"], num_landmarks: int) -> Int[Array, "B L"]:
    """Returns the segment of each position with `layout="real"`, 0 … M − 1; M at padding.

    Real token r (from 0) of n belongs to segment (r · M) // n, in integer arithmetic. Segment sizes
    differ by at most one, and padding has no effect.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7 (n divisible by M, no padding).
    Differs: any n, any mask.
    """
    return TokenRanks.create(mask).segment_ids(num_landmarks)


def segment_sizes(counts: Int[Array, " B"], num_landmarks: int) -> Int[Array, "B M"]:
    """Returns the segment sizes with `layout="real"` for examples with `counts` real tokens."""
    # Segment s starts at rank ceil(s · count / M).
    starts = -(-jnp.arange(num_landmarks + 1)[None] * counts[:, None] // num_landmarks)
    return jnp.diff(starts, axis=1)


def segment_means(
    x: Float[Array, "B L H D"],
    num_landmarks: int,
    mask: Bool[Array, "B L"] | None = None,
    *,
    layout: Layout = "real",
) -> tuple[Float[Array, "B M H D"], Bool[Array, "B M"]]:
    """Returns the mean of `x` over each of M segments of the sequence, and the landmark mask.

    Args:
      x: Queries or keys, [batch, length, heads, head_dim]. Padding has no effect, except with
        `layout="hf"`.
      num_landmarks: M, at least 1.
      mask: True at real tokens; None means all are real.
      layout: `"real"` divides the real tokens into segments of nearly equal size. `"mlpen"` (the authors'
        code) divides all positions into segments, treats padding as zeros and divides by the full segment
        size. `"hf"` (Hugging Face) also includes the values at padding. Both require L divisible by M.

    Returns:
      The means in `x`'s dtype, summed in at least float32, and the landmark mask. The mask is False and
      the mean is zero for segments without tokens, which exist if there are fewer than M real tokens.

    Raises:
      ValueError: `num_landmarks`, the layout, a shape or a dtype is invalid.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7.
    """
    x = jnp.asarray(x)
    mask = None if mask is None else jnp.asarray(mask)
    if x.ndim != 4 or (mask is not None and (mask.shape != x.shape[:2] or mask.dtype != bool)):
        raise ValueError(
            "segment_means takes x [batch, length, heads, head_dim] and a boolean mask [batch, length];"
            f" got {x.shape} and {None if mask is None else (mask.shape, str(mask.dtype))}."
        )
    check_dtype("x", x)
    batch, length = x.shape[:2]
    check_landmarks(num_landmarks, length, layout)
    if layout != "hf" and mask is not None:
        x = jnp.where(mask[..., None, None], x, 0)
    if layout != "real" or (mask is None and length % num_landmarks == 0):
        sums = jax.lax.platform_dependent(
            x,
            tpu=lambda x: _sums_by_product(x, num_landmarks),
            default=lambda x: _sums(x, num_landmarks),
        )
        means = sums / (length // num_landmarks)
        landmark_mask = jnp.ones((batch, num_landmarks), bool)
        return means.astype(x.dtype), landmark_mask
    # One matmul with a 0/1 matrix; without a mask the matrix is the same for all examples.
    accumulator = accum_dtype(x.dtype)
    rows = jnp.ones((1, length), bool) if mask is None else mask
    ids = segment_ids(rows, num_landmarks)
    member = ids[:, None, :] == jnp.arange(num_landmarks)[None, :, None]
    size = segment_sizes(rows.sum(axis=1), num_landmarks)
    weights = member.astype(accumulator) / jnp.maximum(size, 1)[..., None].astype(accumulator)
    if mask is None:
        # D last: XLA's CPU backend cannot multiply transposed operands in bfloat16.
        means = jnp.einsum("ML,BLHD->MBHD", weights[0], x.astype(accumulator)).swapaxes(0, 1)
    else:
        means = jnp.einsum("BML,BLHD->BMHD", weights, x.astype(accumulator))
    return means.astype(x.dtype), jnp.broadcast_to(size > 0, (batch, num_landmarks))


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
