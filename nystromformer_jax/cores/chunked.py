"""Softmax attention inside chunks of the sequence."""

import functools

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    check_inputs,
    check_query_mask,
    check_self_attention,
    mask_or_ones,
    pad_length,
)
from nystromformer_jax.attention.functions import softmax_attention
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import ConvGroups, add_value_convolution
from nystromformer_jax.support.values import check_size
from nystromformer_jax.typing import Array, Bool, Float, Shaped


def chunked_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    chunk_len: int = 128,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes softmax attention inside each chunk of `chunk_len` tokens, in O(L S).

    Arguments are as in `linear_attention`; query and key have the same length. Padding at the start
    moves tokens to other chunks.

    Raises:
      ValueError: `chunk_len` is below 1, the lengths differ, or an input is invalid.

    Source: Ma et al. 2022 (MEGA-chunk), arXiv:2209.10655, Section 3.5.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    check_size("chunk_len", chunk_len)
    check_self_attention("Chunked", query, key)
    query_mask = check_query_mask(query, key, mask, query_mask)
    mask = mask_or_ones(mask, key)
    return _chunked_attention(query, key, value, mask, query_mask, chunk_len=chunk_len)


# Jitted, so that a call outside of jit compiles once instead of once per operation.
@functools.partial(jax.jit, static_argnames="chunk_len")
def _chunked_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    query_mask: Bool[Array, "B L"] | None,
    *,
    chunk_len: int,
) -> Float[Array, "B L H D"]:
    """Computes `chunked_attention` for validated arguments."""
    batch, length = query.shape[:2]
    rows = min(chunk_len, length)
    num_chunks = -(-length // rows)

    def chunks(x: Shaped[Array, "B L *rest"]) -> Shaped[Array, "BK S *rest"]:
        # Split, then merge: JAX supports no single reshape that does both to an Explicit batch axis.
        x = pad_length(x, rows).reshape(batch, num_chunks, rows, *x.shape[2:])
        return x.reshape(batch * num_chunks, *x.shape[2:])

    output = softmax_attention(
        *(chunks(x) for x in (query, key, value)),
        mask=chunks(mask),
        query_mask=None if query_mask is None else chunks(query_mask),
    )
    output = output.reshape(batch, num_chunks, *output.shape[1:])
    return output.reshape(batch, num_chunks * rows, *query.shape[2:])[:, :length]


class ChunkedAttention(AttentionCore):
    """Softmax attention inside chunks, in O(L). Self-attention only.

    Attributes:
      chunk_len: S, tokens per chunk.
      conv_kernel_size: Width of the convolution of the value, odd; 0 for none.
      conv_groups: One kernel per `"head"` or per `"channel"`.
    """

    chunk_len: int = 128
    conv_kernel_size: int = 0
    conv_groups: ConvGroups = "head"

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        output = chunked_attention(chunk_len=self.chunk_len, **inputs._asdict())
        return add_value_convolution(self, output, inputs)
