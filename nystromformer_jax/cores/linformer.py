"""Linformer attention: keys and values projected along the sequence to a fixed number of rows."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.attention import softmax_weights
from nystromformer_jax.inputs import check_inputs, check_query_mask, where_real
from nystromformer_jax.sizes import check_size
from nystromformer_jax.steps import weighted_values
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
    """Attends to R weighted sums of all keys, in time and memory O((L + T) R).

        softmax(query (projection key)ᵀ / √D) @ (projection value)

    A row of the projection mixes all positions, so that no mask can hold over rows: padding is zero
    in every sum, and the softmax runs over all R rows. An example without a real key attends to
    zeros and gives zeros. Positions count: padding behind changes nothing, padding in front or
    between moves tokens to other columns.

    Args:
      query: What padding holds is never seen, here and in `key` and `value`.
      key: May have another length T (cross-attention).
      value: As long as `key`.
      projection: One matrix a head, for keys and values alike.
      mask: True at real keys; None means that all are.
      query_mask: True at real queries; None means that the queries carry `mask`. Rows of masked
        queries are finite and otherwise unspecified.

    Raises:
      ValueError: Shapes that do not fit, or a mask of another shape.

    Source: Wang et al. 2020, arXiv:2006.04768, Section 4; the Nyströmformer authors'
    LRA/code/attention_linformer.py at f02d511.
    Differs: the paper projects keys and values by two matrices, and names sharing as an option.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    projection = jnp.asarray(projection)
    check_inputs(query, key, value, mask)
    query_mask = check_query_mask(query, key, mask, query_mask)
    length, num_heads = key.shape[1:3]
    if projection.ndim != 3 or (projection.shape[0], projection.shape[2]) != (num_heads, length):
        raise ValueError(
            f"projection must be [H R T] with H = {num_heads} heads and T = {length} positions,"
            f" got shape {tuple(projection.shape)}."
        )
    query = where_real(query, query_mask)
    key = project(where_real(key, mask), projection)
    value = project(where_real(value, mask), projection)
    return weighted_values(softmax_weights(query, key, None), value).astype(query.dtype)


def project(
    x: Float[Array, "B T H D"], projection: Float[Array, "H R T"]
) -> Float[Array, "B R H D"]:
    """Sums tokens with the weights of each row, in at least float32; in the dtype of `x`."""
    return jnp.einsum(
        "HRT,BTHD->BRHD",
        projection,
        x,
        preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
    ).astype(x.dtype)


class LinformerAttention(nn.Module):
    """Attends through a learned projection of the length, in O(L + T). L ≠ T works.

    The parameter `projection` is `[H, R, max_len]`; shorter keys take its first columns.

    Attributes:
      projection_size: R.
      max_len: Of keys; None for the length of the keys that initialise it.

    Differs from the Nyströmformer authors' code: each layer has a projection of its own; there all
    layers share one.
    """

    projection_size: int = 256
    max_len: int | None = None

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "B L H D"],
        key: Float[Array, "B T H D"],
        value: Float[Array, "B T H D"],
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L H D"]:
        """Attends; see `linformer_attention`. There is nothing random in it."""
        del deterministic
        check_inputs(query, key, value, mask)
        projection = self._projection(key).astype(query.dtype)
        return linformer_attention(query, key, value, projection, mask=mask, query_mask=query_mask)

    def _projection(self, key: Float[Array, "B T H D"]) -> Float[Array, "H R T"]:
        """The parameter's columns for as many keys as there are."""
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
                f" T = {length}. Set max_len to the longest T before the parameters are made."
            )
        shape = (num_heads, self.projection_size, columns)
        # 0.02 as in the authors' code, whatever the length.
        projection: jax.Array = self.param("projection", nn.initializers.normal(0.02), shape)
        return projection[:, :, :length]
