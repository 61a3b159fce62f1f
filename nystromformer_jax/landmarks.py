"""Landmarks: the sequence cut into M segments, and the mean of each."""

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from nystromformer_jax.sizes import check_size
from nystromformer_jax.typing import Array, Bool, Float, Int

Layout = Literal["real", "mlpen", "hf"]


def segment_ids(
    mask: Bool[Array, "B L"], num_landmarks: int, *, layout: Layout = "real"
) -> Int[Array, "B L"]:
    """Gives each position its segment, 0 … M − 1; a position in no segment gets M.

    With `layout="real"` the token of rank r among n real ones belongs to segment (r · M) // n, in
    integers: segments differ in size by one at most, and padding moves nothing.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7 (n divisible by M, no padding).
    Differs: any n, any mask. `"mlpen"` and `"hf"` cut by position, as those codes do.
    """
    batch, length = mask.shape
    if layout == "real":
        rank = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        count = jnp.maximum(rank[:, -1:] + 1, 1)
        return jnp.where(mask, (rank * num_landmarks) // count, num_landmarks)
    by_position = jnp.arange(length, dtype=jnp.int32) // (length // num_landmarks)
    return jnp.broadcast_to(by_position, (batch, length))


def segment_means(
    x: Float[Array, "B L H D"],
    num_landmarks: int,
    mask: Bool[Array, "B L"] | None = None,
    *,
    layout: Layout = "real",
) -> tuple[Float[Array, "B M H D"], Bool[Array, "B M"]]:
    """Averages `x` over each of M segments of the sequence.

    Args:
      x: What padding holds is never seen, except with `layout="hf"`.
      num_landmarks: M, at least 1.
      mask: True at real tokens; None means that all are.
      layout: `"real"` cuts the real tokens into equal segments. `"mlpen"` (the authors' code) cuts
        positions, counts padding as zeros and divides by the full segment; `"hf"` (Hugging Face)
        also averages in what padding holds. Both want L to be a multiple of M.

    Returns:
      The means, in `x`'s dtype (sums run in at least float32), and the landmark mask: False where a
      segment holds no token, which happens when fewer than M tokens are real. Such a mean is zero.

    Raises:
      ValueError: A size of zero, an unknown layout, or one that L does not fit; arrays of other shapes
        or types than these.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–7.
    """
    x = jnp.asarray(x)
    mask = None if mask is None else jnp.asarray(mask)
    if x.ndim != 4 or (mask is not None and (mask.shape != x.shape[:2] or mask.dtype != bool)):
        raise ValueError(
            "segment_means takes x [batch, length, heads, head_dim] and a boolean mask [batch, length];"
            f" got {x.shape} and {None if mask is None else (mask.shape, str(mask.dtype))}."
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"segment_means takes x of a floating-point type, got {x.dtype}.")
    batch, length = x.shape[:2]
    check_landmarks(num_landmarks, length, layout)
    accumulator = jnp.promote_types(x.dtype, jnp.float32)
    if layout != "hf" and mask is not None:
        x = jnp.where(mask[..., None, None], x, 0)
    by_position = layout != "real" or mask is None
    if by_position and length % num_landmarks == 0:
        by_product, plainly = (
            functools.partial(form, num_landmarks=num_landmarks)
            for form in (_sums_by_product, _sums)
        )
        sums = jax.lax.platform_dependent(x, tpu=by_product, default=plainly)
        means = sums / (length // num_landmarks)
        alive = jnp.ones((batch, num_landmarks), bool)
    else:
        # One matmul with a 0/1 matrix; without a mask that matrix is the same for the whole batch.
        rows = jnp.ones((1, length), bool) if mask is None else mask
        ids = segment_ids(rows, num_landmarks, layout=layout)
        member = ids[:, None, :] == jnp.arange(num_landmarks)[None, :, None]
        size = member.sum(axis=2)
        weights = member / jnp.maximum(size, 1)[..., None].astype(accumulator)
        if mask is None:
            # In this order, D last: XLA's CPU cannot multiply what is transposed in bfloat16.
            means = jnp.einsum("ML,BLHD->MBHD", weights[0], x.astype(accumulator)).swapaxes(0, 1)
        else:
            means = jnp.einsum("BML,BLHD->BMHD", weights, x.astype(accumulator))
        alive = jnp.broadcast_to(size > 0, (batch, num_landmarks))
    return means.astype(x.dtype), alive


def _sums(x: Float[Array, "B L H D"], *, num_landmarks: int) -> Float[Array, "B M H D"]:
    """Sums over M segments of one length, in at least float32."""
    segments = x.reshape(x.shape[0], num_landmarks, -1, *x.shape[2:])
    return segments.sum(axis=2, dtype=jnp.promote_types(x.dtype, jnp.float32))


def _sums_by_product(x: Float[Array, "B L H D"], *, num_landmarks: int) -> Float[Array, "B M H D"]:
    """The same, where sums over neighbours cost more than products, as on a TPU: a third of the time."""
    ones = jnp.repeat(jnp.eye(num_landmarks, dtype=x.dtype), x.shape[1] // num_landmarks, axis=1)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    exact = jax.lax.Precision.HIGHEST if x.dtype == wide else None
    return jnp.einsum("ML,BLHD->BMHD", ones, x, precision=exact, preferred_element_type=wide)


def check_landmarks(num_landmarks: int, length: int, layout: str) -> None:
    """Refuses sizes of zero, unknown layouts, and a length that the layout cannot cut, in words."""
    check_size("num_landmarks (M)", num_landmarks)
    if length < 1:
        raise ValueError("The sequence axis (L) is empty; attention needs at least one position.")
    if layout not in get_args(Layout):
        raise ValueError(
            f"landmark_layout must be one of {', '.join(map(repr, get_args(Layout)))}, got {layout!r}."
        )
    if layout != "real" and length % num_landmarks:
        raise ValueError(
            f"landmark_layout={layout!r} cuts L positions into M equal segments; L = {length} is not"
            f" a multiple of M = {num_landmarks}. Pad the input, or use landmark_layout='real'."
        )
