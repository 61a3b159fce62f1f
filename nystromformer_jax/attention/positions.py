"""Rotary embeddings: positions as rotations of queries and keys."""

import jax.numpy as jnp

from nystromformer_jax.attention.checks import accum_dtype, check_dtype
from nystromformer_jax.typing import Array, Float, Int


def rotary_embedding(
    x: Float[Array, "*batch L H D"],
    positions: Int[Array, "*#batch L"] | None = None,
    *,
    base: float = 10_000.0,
) -> Float[Array, "*batch L H D"]:
    """Rotates pairs of features of queries or keys by angles proportional to the position.

    Features j and j + D / 2 are rotated by position · base^(−2 j / D), j < D / 2. If queries and keys are
    both rotated, the scores of softmax attention depend on differences of positions only.

    Use it with care in Nyström attention: tokens of a segment are rotated by different angles, so their
    mean represents them less well, and the approximation error grows.

    Args:
      x: Queries or keys, [..., length, heads, head_dim], with an even head_dim.
      positions: Positions, [..., length]; None for 0 … L − 1.
      base: Ratio of the largest and the smallest angle, approximately.

    Returns:
      The rotated array in `x`'s dtype. Angles and products are in at least float32.

    Raises:
      ValueError: head_dim is odd, or a shape or a dtype is invalid.

    Source: Su et al. 2021, arXiv:2104.09864, Eq. 15 and 34.
    Differs: pairs are halves of the features, as in GPT-NeoX and Llama, instead of neighbors.
    """
    x = jnp.asarray(x)
    if x.ndim < 3 or x.shape[-1] % 2:
        raise ValueError(
            "rotary_embedding takes x [..., length, heads, head_dim] with an even head_dim,"
            f" got {x.shape}."
        )
    check_dtype("x", x)
    length, _, dim = x.shape[-3:]
    positions = jnp.arange(length) if positions is None else jnp.asarray(positions)
    leading = zip(positions.shape[-2::-1], x.shape[-4::-1], strict=False)
    if (
        positions.shape[-1:] != (length,)
        or positions.ndim > x.ndim - 2
        or any(given not in (1, size) for given, size in leading)
    ):
        raise ValueError(
            f"positions must be [..., {length}], got {positions.shape}; leading axes must be 1 or those of"
            f" x, {x.shape[:-3]}."
        )
    accumulator = accum_dtype(x.dtype)
    rates = base ** (-jnp.arange(0, dim, 2, dtype=accumulator) / dim)
    positions = positions.reshape(*[1] * (x.ndim - 2 - positions.ndim), *positions.shape, 1, 1)
    angles = positions.astype(accumulator) * rates.reshape(*[1] * (x.ndim - 1), -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(accumulator), 2, axis=-1)
    rotated = [first * cos - second * sin, first * sin + second * cos]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
