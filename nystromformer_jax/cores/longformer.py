"""Longformer attention: a sliding window and a few global tokens, computed in blocks."""

import functools

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    check_inputs,
    check_query_mask,
    check_self_attention,
    mask_or_ones,
    pad_length,
    zero_padding,
)
from nystromformer_jax.attention.functions import softmax_weights
from nystromformer_jax.attention.stages import MASKED_LOGIT, scaled_logits, weighted_values
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.support.values import check_size, is_integer
from nystromformer_jax.typing import Array, Bool, Float, Shaped


def longformer_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    window: int = 257,
    num_global: int = 1,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes softmax attention to nearby and global tokens, in O(L (W + G)).

    Token i attends to real tokens j with |i − j| ≤ W // 2 and to the global tokens, in one softmax that
    counts each key once. The first G real tokens of an example are global and attend to all real tokens.
    Padding at the start has no effect. Padding between tokens increases the distance of the tokens.

    Args:
      query: Queries. Padding of `query`, `key` and `value` has no effect at real tokens.
      key: Keys, of the same length as `query` (self-attention).
      value: Values, of the same length as `key`.
      window: W, odd: the token itself and W // 2 tokens on either side. W ≥ 2 L − 1 gives softmax
        attention.
      num_global: G; 0 for none. G ≥ L gives softmax attention.
      mask: True at real keys; None means all are real. It also determines the global tokens.
      query_mask: True at real queries; None means `mask`. Rows of masked queries are finite but otherwise
        unspecified.

    Raises:
      ValueError: The window is even, `num_global` is negative, or shapes do not agree.

    Source: Beltagy et al. 2020, arXiv:2004.05150, Section 3.1.
    Differs: global tokens use the same projections as other tokens, as in the Nyströmformer authors'
    LRA/code/attention_longformer.py at f02d511, but not in the paper. No dilation.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    check_self_attention("Longformer", query, key)
    query = zero_padding(query, check_query_mask(query, key, mask, query_mask))
    check_size("num_global", num_global, least=0)
    if not is_integer(window) or window < 1 or window % 2 == 0:
        raise ValueError(
            "window must be an odd integer (the token itself and equally many on either side), got"
            f" {window!r}."
        )
    mask, num_global = mask_or_ones(mask, query), min(num_global, query.shape[1])
    return _longformer_attention(query, key, value, mask, window=window, num_global=num_global)


# Jitted, so that a call outside of jit compiles once instead of once per operation.
@functools.partial(jax.jit, static_argnames=("window", "num_global"))
def _longformer_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    *,
    window: int,
    num_global: int,
) -> Float[Array, "B L H D"]:
    """Computes `longformer_attention` for validated arguments, and queries without padding."""
    key, value = zero_padding(key, mask), zero_padding(value, mask)
    # Global tokens are gathered and scattered by matmuls, because the gradient of a gather is a scatter.
    rank = mask.cumsum(axis=1) - 1
    selected = (rank[:, None, :] == jnp.arange(num_global)[None, :, None]) & mask[:, None, :]
    is_global = selected.any(axis=1)
    selection = selected.astype(query.dtype)  # [B G L]
    move = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    global_query, global_key, global_value = (
        move("BGL,BLHD->BGHD", selection, x) for x in (query, key, value)
    )
    # Every token attends to the global keys, so windows exclude them. Slots without a token are masked.
    global_keys = global_key, global_value, selected.any(axis=2)
    local = window_attention(query, key, value, mask & ~is_global, *global_keys, window)
    everywhere = weighted_values(softmax_weights(global_query, key, mask), value)
    everywhere = move("BGL,BGHD->BLHD", selection, everywhere.astype(query.dtype))
    return jnp.where(is_global[..., None, None], everywhere, local.astype(query.dtype))


def window_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    global_key: Float[Array, "B G H D"],
    global_value: Float[Array, "B G H D"],
    global_mask: Bool[Array, "B G"],
    window: int,
) -> Float[Array, "B L H D"]:
    """Computes attention to the keys in the window where `mask` is True, and to the global keys.

    Blocks of S = W // 2 queries attend to the keys of the same block and of both neighbors, with a
    band mask, in at least float32.
    """
    batch, length, num_heads, head_dim = query.shape
    halo = window // 2
    # Blocks need not be longer than half the sequence: two such blocks contain every key.
    rows = max(min(halo, -(-length // 2)), 1)
    num_blocks = -(-length // rows)

    def blocks(x: Shaped[Array, "B L *rest"]) -> Shaped[Array, "B K S *rest"]:
        return pad_length(x, rows).reshape(batch, num_blocks, rows, *x.shape[2:])

    def flat(x: Shaped[Array, "B K *rest"]) -> Shaped[Array, "BK *rest"]:
        return x.reshape(batch * num_blocks, *x.shape[2:])

    def reached(x: Array, of_globals: Array) -> Shaped[Array, "BK T *rest"]:
        """Returns the keys, values or mask that each block attends to, T = 3 S + G."""
        shape = (batch, num_blocks, *of_globals.shape[1:])
        of_globals = jnp.broadcast_to(of_globals[:, None], shape)
        return flat(jnp.concatenate([with_neighbors(blocks(x)), of_globals], axis=2))

    near = jnp.abs(jnp.arange(rows)[:, None] + rows - jnp.arange(3 * rows)[None, :]) <= halo
    band = jnp.pad(near, ((0, 0), (0, global_key.shape[1])), constant_values=True)
    logits = scaled_logits(
        flat(blocks(query)), reached(key, global_key), reached(mask, global_mask)
    )
    # Below the logit of padding: a query without a real key in reach averages zeroed values alone.
    logits = jnp.where(band[None, None], logits, 2 * MASKED_LOGIT)
    weights = jax.nn.softmax(logits, axis=-1)
    output = weighted_values(weights, reached(value, global_value))
    output = output.reshape(batch, num_blocks, rows, num_heads, head_dim)
    return output.reshape(batch, -1, num_heads, head_dim)[:, :length]


def with_neighbors(blocks: Shaped[Array, "B K S *rest"]) -> Shaped[Array, "B K T *rest"]:
    """Concatenates each block with the ones before and after it, T = 3 S; zeros at the ends."""
    padded = jnp.pad(blocks, [(0, 0), (1, 1), *[(0, 0)] * (blocks.ndim - 2)])
    return jnp.concatenate([padded[:, :-2], blocks, padded[:, 2:]], axis=2)


class LongformerAttention(AttentionCore):
    """Longformer attention to a window and a few global tokens, in O(L). Self-attention only.

    Attributes:
      window: W, odd; see `longformer_attention`.
      num_global: G, number of global tokens (the first real tokens).
    """

    window: int = 257
    num_global: int = 1

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        return longformer_attention(
            window=self.window, num_global=self.num_global, **inputs._asdict()
        )
