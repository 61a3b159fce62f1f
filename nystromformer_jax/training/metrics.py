"""Metrics travel as sums and denominators, so that batches of any size add up exactly."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer_jax.typing import Array, Bool, Float

__all__ = ["Sums", "add", "means", "total_means", "weighted", "zeros_like"]

# {"loss": (sum, count), …}: two float32 scalars a metric.
Sums = dict[str, tuple[Any, Any]]


def weighted(
    values: Float[Array, " B"] | Bool[Array, " B"], weights: Float[Array, " B"]
) -> tuple[Any, Any]:
    """One metric of a batch: the sum of `values` over rows of weight 1, and how many there are."""
    values = jnp.where(weights > 0, values.astype(jnp.float32), 0)  # where: 0 * NaN is NaN
    return (values * weights).sum(), weights.sum()


def add(a: Sums, b: Sums) -> Sums:
    """The sums of two batches, or of two parts of one."""
    return jax.tree.map(jnp.add, a, b)


def zeros_like(sums: Any) -> Any:
    """Sums of nothing, shaped like `sums` (arrays or their `eval_shape`)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)


def means(sums: Mapping[str, tuple[Any, Any]], prefix: str = "") -> dict[str, float]:
    """Fetches the sums and divides; a metric of nothing is NaN."""
    fetched = jax.device_get(dict(sums))
    return {
        prefix + name: float(total) / float(count) if count else math.nan
        for name, (total, count) in fetched.items()
    }


def total_means(batches: Sequence[Sums]) -> dict[str, float]:
    """`means` over several batches, added in Python's floats."""
    return means(jax.tree.map(lambda *leaves: sum(map(float, leaves)), *batches))
