"""Linear attention with features elu(x) + 1, and attention with any positive features."""

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import accum_dtype, masked_inputs
from nystromformer_jax.attention.stages import MASKED_LOGIT
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.typing import Array, Bool, Float


class LinearAttention(AttentionCore):
    """Linear attention with weights (elu(query) + 1) · (elu(key) + 1), in O(L + T). Supports L ≠ T."""

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        return linear_attention(**inputs._asdict())


def linear_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes attention with weights φ(query) · φ(key), in O((L + T) D²).

        φ(query) (φ(key)ᵀ value) / (φ(query) · Σ φ(key))
        φ(x) = elu(x) + 1, with D features; Σ over T

    Arguments and errors are as in `softmax_attention`, with one batch axis and equally many heads of queries
    and keys. If `query_mask` is None, the queries use `mask`, so L ≠ T with a mask needs a `query_mask`.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236, Eq. 5–7.
    Differs: no ε is added to the sum (see `feature_attention`). The Nyströmformer authors' code,
    LRA/code/attention_linear.py, does not divide by the sum.
    """
    query, key, value = masked_inputs(query, key, value, mask, query_mask)
    output = feature_attention(log_elu_features(query), log_elu_features(key), value, mask)
    return output.astype(query.dtype)


def log_elu_features(x: Float[Array, "B L H D"]) -> Float[Array, "B L H D"]:
    """Returns log(elu(x) + 1) in at least float32: log(1 + x) above zero, x below.

    Without the logarithm, elu(x) + 1 rounds to zero in float32 for x < −17.
    """
    x = x.astype(accum_dtype(x.dtype))
    return jnp.where(x > 0, jnp.log1p(jnp.maximum(x, 0)), x)


def feature_attention(
    log_query: Float[Array, "B L H R"],
    log_key: Float[Array, "B T H R"],
    value: Float[Array, "B T H Dv"],
    mask: Bool[Array, "B T"] | None,
) -> Float[Array, "B L H Dv"]:
    """Computes attention with normalized weights exp(log_query) · exp(log_key), without the L × T map.

    Args:
      log_query: Logarithms of R positive features per query; must be finite.
      log_key: Logarithms of R positive features per key; must be finite, also at padding.
      value: Values; must be finite, also at padding.
      mask: True at real keys; None means all are real. Without a real key the output is zero if
        `value` is zero at padding.

    Returns:
      The output in `log_query`'s dtype.
    """
    if mask is not None:
        log_key = jnp.where(mask[..., None, None], log_key, MASKED_LOGIT)
    # Subtract each feature's maximum over keys and add it to the queries, then subtract the maximum of
    # each query. The result does not change, so no gradient is needed. All exponents are then at most
    # zero. The feature that equals 1 in a query also equals 1 in some key, so every sum is at least one
    # and no ε is needed.
    peak = jax.lax.stop_gradient(log_key.max(axis=1, keepdims=True))
    log_query = log_query + peak
    log_query = log_query - jax.lax.stop_gradient(log_query.max(axis=-1, keepdims=True))
    query_features, key_features = jnp.exp(log_query), jnp.exp(log_key - peak)
    collected = jnp.einsum("BTHR,BTHD->BHRD", key_features, value.astype(key_features.dtype))
    output = jnp.einsum("BLHR,BHRD->BLHD", query_features, collected)
    total = jnp.einsum("BLHR,BHR->BLH", query_features, key_features.sum(axis=1))
    return output / total[..., None]
