"""Measures the approximation error of Nyström attention relative to softmax attention."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from nystromformer_jax.attention.arguments import fold_axes
from nystromformer_jax.attention.checks import accum_dtype, check_query_mask, zero_padding
from nystromformer_jax.attention.functions import nystrom_attention, softmax_attention
from nystromformer_jax.attention.pinv import safe_denominator, safe_sqrt
from nystromformer_jax.typing import Array, Bool, Float


class ApproximationErrors(NamedTuple):
    """Relative errors of Nyström attention and of a baseline, per example and head; 0 is exact."""

    nystrom: Float[Array, "*batch H"]
    mean_value: Float[Array, "*batch H"]  # error of the baseline: the mean value for every query


def approximation_error(
    query: Float[Array, "*batch L H D"],
    key: Float[Array, "*batch T Hkv D"],
    value: Float[Array, "*batch T Hkv D"],
    *,
    mask: Bool[Array, "*batch T"] | None = None,
    query_mask: Bool[Array, "*batch L"] | None = None,
    **options: Any,
) -> ApproximationErrors:
    """Returns the errors of Nyström attention and of the mean value, in O(L T) memory.

    The error is ‖output − exact‖ / ‖exact‖, where exact is softmax attention, with Frobenius norms over
    real queries and features. The baseline, the mean value, is the output of uniform attention. Nyström
    attention is useful if its error is much smaller. Nearly uniform attention makes both errors small.

    Args:
      query: See `nystrom_attention`, also for `key`, `value` and the masks.
      key: See `query`.
      value: See `query`.
      mask: See `query`.
      query_mask: See `query`.
      **options: Other arguments of `nystrom_attention`, such as `num_landmarks`.

    Raises:
      ValueError: An argument is invalid, or `conv_kernel` is among the options.
    """
    if options.get("conv_kernel") is not None:
        raise ValueError(
            "approximation_error compares attention alone, so conv_kernel must be None."
        )
    (query, key, value, mask, query_mask), batch = fold_axes(query, key, value, mask, query_mask)
    masks: dict[str, Any] = {"mask": mask, "query_mask": query_mask}
    output = nystrom_attention(query, key, value, **masks, **options)
    exact = softmax_attention(query, key, value, **masks)
    real = check_query_mask(query, key, mask, query_mask)
    count = (
        value.shape[1] if mask is None else jnp.maximum(mask.sum(axis=1), 1)[:, None, None, None]
    )
    values = zero_padding(value.astype(accum_dtype(value.dtype)), mask)
    mean = values.sum(axis=1, keepdims=True) / jnp.asarray(count, values.dtype)
    errors = (relative_error(x, exact, real) for x in (output, mean))
    return ApproximationErrors(*(error.reshape(*batch, query.shape[2]) for error in errors))


def relative_error(
    output: Float[Array, "B #L H D"],
    exact: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B H"]:
    """Returns ‖output − exact‖ / ‖exact‖ per head, with norms over real tokens and features."""
    exact = exact.astype(accum_dtype(exact.dtype))
    error, size = (
        (zero_padding(x, mask) ** 2).sum(axis=(1, 3))
        for x in (output.astype(exact.dtype) - exact, exact)
    )
    return safe_sqrt(error / safe_denominator(size))
