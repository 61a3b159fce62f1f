"""The two products with the tokens of a long sequence, over chunks, so that no array of L × M is kept.

A chunk's weights are computed again in the backward pass. For long sequences this takes about as long as
writing them to memory and reading them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.stages import collect_normalized, collect_parts, distribute_values
from nystromformer_jax.support.values import is_integer
from nystromformer_jax.typing import Array, Bool, Float, Int

# Bytes of the weights of one example, from which on chunks are used: those of 32,768 tokens, 8 heads and 128
# landmarks in float32.
LARGE_BYTES = 2**27
CHUNK = 1024  # tokens


def collect(
    q_landmarks: Float[Array, "B M H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H Dv"],
    *,
    mask: Bool[Array, "B T"] | None,
    assigned: Int[Array, "B T"] | None,
) -> Float[Array, "B M H Dv"]:
    """Returns kernel_3 @ value, see `stages.collect`."""
    if not _is_large(key, q_landmarks):
        return collect_normalized(q_landmarks, key, value, mask=mask, assigned=assigned)

    def part(tokens: Any) -> tuple[Array, Array, Array]:
        key, value, mask, assigned = tokens
        return collect_parts(q_landmarks, key, value, mask=mask, assigned=assigned)

    parts, rest = _map_chunks(part, (key, value, mask, assigned))
    if rest is not None:
        parts = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), parts, rest)
    values, maximum, total = parts
    scale = jnp.exp(maximum - maximum.max(axis=0, keepdims=True))
    return (values * scale[..., None]).sum(axis=0) / (total * scale).sum(axis=0)[..., None]


def distribute(
    query: Float[Array, "B L H D"],
    k_landmarks: Float[Array, "B M H D"],
    landmark_values: Float[Array, "B M H Dv"],
    *,
    landmark_mask: Bool[Array, "B M"] | None,
    assigned: Int[Array, "B L"] | None,
) -> Float[Array, "B L H Dv"]:
    """Returns kernel_1 @ landmark_values, see `stages.distribute`."""

    def part(tokens: Any) -> Array:
        query, assigned = tokens
        return distribute_values(
            query, k_landmarks, landmark_values, landmark_mask=landmark_mask, assigned=assigned
        )

    if not _is_large(query, k_landmarks):
        return part((query, assigned))
    outputs, rest = _map_chunks(part, (query, assigned))
    if len(query) > 1:
        outputs = outputs.swapaxes(0, 1)
    outputs = outputs.reshape(len(query), -1, *outputs.shape[3:])
    return outputs if rest is None else jnp.concatenate([outputs, rest], axis=1)


def _is_large(tokens: Float[Array, "B L H D"], landmarks: Float[Array, "B M H D"]) -> bool:
    """Returns True if the weights of one example have at least `LARGE_BYTES`; False for an unknown length."""
    length, num_heads = tokens.shape[1:3]
    if not is_integer(length):  # of a function that is exported for any length
        return False
    return length >= CHUNK and 4 * num_heads * length * landmarks.shape[1] >= LARGE_BYTES


def _map_chunks(part: Callable[[Any], Any], tokens: Any) -> tuple[Any, Any]:
    """Applies `part` to chunks of `tokens`, a tree of `[B L …]`.

    Returns:
      The results of all chunks, stacked along a new first axis, and the result for the tokens that are left
      over, or None. A length that is divisible by a chunk's size is not copied.
    """
    batch, length = jax.tree.leaves(tokens)[0].shape[:2]
    sizes = range(CHUNK, CHUNK // 2, -1)
    size = next((size for size in sizes if length % size == 0), CHUNK)
    whole = length // size * size
    # One example is mapped without its batch axis, because XLA would copy arrays to move an axis of size 1.
    is_single = batch == 1

    def chunks(x: Array) -> Array:
        if is_single:
            return x[0, :whole].reshape(-1, size, *x.shape[2:])
        return x[:, :whole].reshape(batch, -1, size, *x.shape[2:]).swapaxes(0, 1)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_chunk(chunk: Any) -> Any:
        if is_single:
            return jax.tree.map(lambda x: x[0], part(jax.tree.map(lambda x: x[None], chunk)))
        return part(chunk)

    results = jax.lax.map(of_chunk, jax.tree.map(chunks, tokens))
    if is_single:
        results = jax.tree.map(lambda x: x[:, None], results)
    if whole == length:
        return results, None
    return results, jax.checkpoint(part)(jax.tree.map(lambda x: x[:, whole:], tokens))
