"""Longformer attention: a window around each token, and few global tokens, computed in blocks."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.attention import softmax_weights
from nystromformer_jax.inputs import check_inputs, check_query_mask, where_real
from nystromformer_jax.sizes import check_size
from nystromformer_jax.steps import MASKED_LOGIT, scaled_logits, weighted_values
from nystromformer_jax.typing import Array, Bool, Float, Shaped


def longformer_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    window: int = 257,
    num_global: int = 1,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "B L H D"]:
    """Softmax attention to what is near and to what is global, in O(L (W + G)).

    Token i attends to real tokens j with |i − j| ≤ W // 2, by position, and to the global tokens,
    under one softmax that counts each key once. Global tokens attend to all real tokens. They are
    the first G real tokens of each example, so that padding in front changes nothing; padding
    between tokens moves them apart.

    Args:
      query: What padding holds is never seen, here and in `key` and `value`.
      key: As long as `query`: this is self-attention.
      value: As long as `key`.
      window: W, odd: the token itself and W // 2 on either side. With W ≥ 2 L − 1 this is softmax
        attention.
      num_global: G; 0 for none. With G ≥ L this is softmax attention.
      mask: True at real tokens; None means that all are. Rows of masked tokens are finite and
        unspecified.

    Raises:
      ValueError: An even window, fewer than no global tokens, shapes that do not fit.

    Source: Beltagy et al. 2020, arXiv:2004.05150, Section 3.1.
    Differs: global tokens share the projections of all others, as in the Nyströmformer authors'
    LRA/code/attention_longformer.py at f02d511, where the paper gives them their own; no dilation.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    check_self_attention(query, key)
    check_size("num_global", num_global, least=0)
    if type(window) is not int or window < 1 or window % 2 == 0:
        raise ValueError(
            f"window must be odd (the token itself and as many on either side), got {window}."
        )
    if mask is None:
        mask = jnp.ones(query.shape[:2], jnp.bool_)
    return _longformer_attention(
        query, key, value, mask, window=window, num_global=min(num_global, query.shape[1])
    )


def check_self_attention(query: Array, key: Array) -> None:
    """Refuses keys of another length, in words."""
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            "Longformer attention is self-attention: a window lies around the query's own position,"
            f" so query and key must have one length; got L = {query.shape[1]} and"
            f" T = {key.shape[1]}. Use softmax or nystrom attention there."
        )


# Compiled as a whole, so that a call outside of jit costs one compilation and not one an operation.
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
    """`longformer_attention` behind its checks."""
    query, key, value = (where_real(x, mask) for x in (query, key, value))
    # Tokens go to their global places and back by a matmul: the gradient of a gather is a scatter.
    rank = mask.cumsum(axis=1) - 1
    places = (rank[:, None, :] == jnp.arange(num_global)[None, :, None]) & mask[:, None, :]
    is_global = places.any(axis=1)
    spots = places.astype(query.dtype)
    move = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    global_query, global_key, global_value = (
        move("BGL,BLHD->BGHD", spots, x) for x in (query, key, value)
    )
    # A global key is seen from everywhere, and so not once more in windows. Empty places need no
    # mask: where one is left, every real token is global.
    local = window_attention(query, key, value, mask & ~is_global, global_key, global_value, window)
    everywhere = weighted_values(softmax_weights(global_query, key, mask), value)
    everywhere = move("BGL,BGHD->BLHD", spots, everywhere.astype(query.dtype))
    return jnp.where(is_global[..., None, None], everywhere, local.astype(query.dtype))


def window_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    global_key: Float[Array, "B G H D"],
    global_value: Float[Array, "B G H D"],
    window: int,
) -> Float[Array, "B L H D"]:
    """Attends to the window's keys that `mask` holds, and to all global ones.

    Blocks of S = W // 2 queries attend to the keys of their own block and of both beside it,
    through a band. In at least float32.
    """
    batch, length, num_heads, head_dim = query.shape
    halo = window // 2
    # Two blocks reach everything, so that they need not be longer than half the sequence.
    rows = max(min(halo, -(-length // 2)), 1)
    num_blocks = -(-length // rows)

    def blocks(x: Shaped[Array, "B L *rest"]) -> Shaped[Array, "B K S *rest"]:
        widths = [(0, 0), (0, num_blocks * rows - length), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, widths).reshape(batch, num_blocks, rows, *x.shape[2:])

    def flat(x: Shaped[Array, "B K *rest"]) -> Shaped[Array, "BK *rest"]:
        return x.reshape(batch * num_blocks, *x.shape[2:])

    def reached(x: Array, of_globals: Array) -> Shaped[Array, "BK T *rest"]:
        """What each block sees, T = 3 S + G."""
        return jnp.concatenate(
            [flat(with_neighbours(blocks(x))), jnp.repeat(of_globals, num_blocks, axis=0)], axis=1
        )

    near = jnp.abs(jnp.arange(rows)[:, None] + rows - jnp.arange(3 * rows)[None, :]) <= halo
    band = jnp.pad(near, ((0, 0), (0, global_key.shape[1])), constant_values=True)
    always = jnp.ones(global_key.shape[:2], jnp.bool_)
    logits = scaled_logits(flat(blocks(query)), reached(key, global_key), reached(mask, always))
    weights = jax.nn.softmax(jnp.where(band[None, None], logits, MASKED_LOGIT), axis=-1)
    output = weighted_values(weights, reached(value, global_value))
    return output.reshape(batch, num_blocks * rows, num_heads, head_dim)[:, :length]


def with_neighbours(blocks: Shaped[Array, "B K S *rest"]) -> Shaped[Array, "B K T *rest"]:
    """Puts each block between the ones before and after it, T = 3 S; zeros at the ends."""
    padded = jnp.pad(blocks, [(0, 0), (1, 1), *[(0, 0)] * (blocks.ndim - 2)])
    return jnp.concatenate([padded[:, :-2], blocks, padded[:, 2:]], axis=2)


class LongformerAttention(nn.Module):
    """Attends within windows and to few global tokens, in O(L). Self-attention only.

    Attributes:
      window: W, odd; see `longformer_attention`.
      num_global: G, the first real tokens.
    """

    window: int = 257
    num_global: int = 1

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
        """Attends; see `longformer_attention`. There is nothing random in it.

        `mask` alone says what is real and what is global. Queries and keys are the same tokens, so
        that a `query_mask` should hold what `mask` holds; rows outside of either are unspecified.
        """
        del deterministic
        check_inputs(query, key, value, mask)
        check_self_attention(query, key)
        return longformer_attention(
            where_real(query, check_query_mask(query, key, mask, query_mask)),
            key,
            value,
            window=self.window,
            num_global=self.num_global,
            mask=mask,
        )
