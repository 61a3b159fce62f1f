"""Linformer attention: keys and values are projected along the sequence to a fixed number of rows."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import accum_dtype, check_inputs, masked_inputs
from nystromformer_jax.attention.functions import softmax_weights
from nystromformer_jax.attention.stages import weighted_values
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.support.values import check_size
from nystromformer_jax.typing import Array, Bool, Float


def linformer_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    projection: Float[Array, "H R T"],
    *,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes attention to R weighted sums of keys and values, in O((L + T) R) time and memory.

        softmax(query (projection key)ᵀ / √D) @ (projection value)

    Each row of the projection mixes all positions, so the softmax is over all R rows without a mask;
    padding is zeroed before the projection. Without a real key the output is zero. Columns of the
    projection correspond to positions: padding at the end has no effect, but padding elsewhere moves
    tokens to other columns.

    `projection` has one matrix per head, shared by keys and values. Other arguments and errors are as in
    `linear_attention`.

    Source: Wang et al. 2020, arXiv:2006.04768, Section 4; the Nyströmformer authors'
    LRA/code/attention_linformer.py at f02d511.
    Differs: in the paper keys and values have separate projections; sharing is an option.
    """
    query, key, value = masked_inputs(query, key, value, mask, query_mask)
    projection = jnp.asarray(projection)
    length, num_heads = key.shape[1:3]
    if projection.ndim != 3 or (projection.shape[0], projection.shape[2]) != (num_heads, length):
        raise ValueError(
            f"projection must be [H R T] with H = {num_heads} heads and T = {length} positions,"
            f" got shape {tuple(projection.shape)}."
        )
    key, value = project(key, projection), project(value, projection)
    return weighted_values(softmax_weights(query, key, None), value).astype(query.dtype)


def project(
    x: Float[Array, "B T H D"], projection: Float[Array, "H R T"]
) -> Float[Array, "B R H D"]:
    """Returns projection @ x per head, accumulated in at least float32, in the dtype of `x`."""
    dtype = accum_dtype(x.dtype)
    return jnp.einsum("HRT,BTHD->BRHD", projection, x, preferred_element_type=dtype).astype(x.dtype)


class LinformerAttention(AttentionCore):
    """Linformer attention with a learned projection of the length, in O(L + T). Supports L ≠ T.

    The parameter `projection` is `[H, R, max_len]`; shorter keys use its first columns.

    Attributes:
      projection_size: R, number of rows.
      max_len: Maximum length of keys; None for the length at initialization.

    Differs from the Nyströmformer authors' code: layers have separate projections instead of sharing
    one.
    """

    projection_size: int = 256
    max_len: int | None = None

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        check_inputs(*inputs[:4])
        projection = self._projection(inputs.key).astype(inputs.query.dtype)
        return linformer_attention(projection=projection, **inputs._asdict())

    def _projection(self, key: Float[Array, "B T H D"]) -> Float[Array, "H R T"]:
        """Returns the first T columns of the projection parameter."""
        check_size("projection_size", self.projection_size)
        if self.max_len is not None:
            check_size("max_len", self.max_len)
        length, num_heads = key.shape[1:3]
        columns = self.max_len
        if columns is None and self.has_variable("params", "projection"):
            columns = self.get_variable("params", "projection").shape[2]
        columns = length if columns is None else columns
        if length > columns:
            raise ValueError(
                f"Linformer attention projects at most {columns} keys, one column each; got"
                f" T = {length}. Set max_len to the longest T before the parameters are initialized."
            )
        shape = (num_heads, self.projection_size, columns)
        # 0.02 as in the authors' code, for any length.
        init = nn.initializers.normal(0.02)
        projection: jax.Array = self.param("projection", init, shape, jnp.float32)
        return projection[:, :, :length]
