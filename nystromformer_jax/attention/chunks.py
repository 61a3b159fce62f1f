"""The two products with the tokens of a long sequence, over chunks, so that no array of L × M is kept.

A chunk's weights are computed again in the backward pass. For long sequences on a CPU, this takes about as
long as writing them to memory and reading them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from nystromformer_jax.attention.checks import accum_dtype
from nystromformer_jax.attention.stages import collect_normalized, collect_parts, distribute_values
from nystromformer_jax.kernels.choice import BATCH_AXIS
from nystromformer_jax.support.target import on_gpu
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
) -> Float[Array, "B M H Dv"]:
    """Returns kernel_3 @ value, see `stages.collect`."""
    if not _is_large(key, q_landmarks):
        return collect_normalized(q_landmarks, key, value, mask=mask)

    # Gradients of the landmarks are summed over chunks, so not in half precision.
    landmarks = q_landmarks.astype(accum_dtype(q_landmarks.dtype))

    def part(tokens: Any) -> tuple[Array, Array, Array]:
        key, value, mask = tokens
        own = landmarks.astype(q_landmarks.dtype)
        return collect_parts(own, key, value, mask=mask)

    parts, rest = _map_chunks(part, (key, value, mask))
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
    finish = functools.partial(distribute_values, landmark_mask=landmark_mask)
    if not _is_large(query, k_landmarks):
        return finish(query, k_landmarks, landmark_values, assigned=assigned)
    landmarks = k_landmarks.astype(accum_dtype(k_landmarks.dtype))  # as in `collect`

    def part(tokens: Any) -> Array:
        query, assigned = tokens
        own = landmarks.astype(k_landmarks.dtype)
        return finish(query, own, landmark_values, assigned=assigned)

    outputs, rest = _map_chunks(part, (query, assigned))
    if query.shape[0] != 1:
        outputs = outputs.swapaxes(0, 1)
    outputs = outputs.reshape(query.shape[0], -1, *outputs.shape[3:])
    return outputs if rest is None else jnp.concatenate([outputs, rest], axis=1)


def _is_large(tokens: Float[Array, "B L H D"], landmarks: Float[Array, "B M H D"]) -> bool:
    """Returns True if the weights of one example have at least `LARGE_BYTES`; False if that is unknown."""
    length, num_heads = tokens.shape[1:3]
    if not is_integer(length):  # of a function that is exported for any length
        return False
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    if any(
        name != BATCH_AXIS and kind != AxisType.Manual and mesh.shape[name] > 1
        for name, kind in kinds
    ):
        return False  # the length may be split, and a loop over it would gather the tokens
    return length >= CHUNK and 4 * num_heads * length * landmarks.shape[1] >= LARGE_BYTES


def _map_chunks(part: Callable[[Any], Any], tokens: Any) -> tuple[Any, Any]:
    """Applies `part` to chunks of `tokens`, a tree of `[B L …]`.

    Returns:
      The results of all chunks, stacked along a new first axis, and the result for the tokens that are left
      over, or None. The tokens of one example are not copied if a chunk's size divides the length.
    """
    batch, length = jax.tree.leaves(tokens)[0].shape[:2]
    largest = 8 * CHUNK if on_gpu() else CHUNK  # a GPU needs larger products
    largest = min(largest, length)
    sizes = range(largest, largest // 2, -1)
    size = next((size for size in sizes if length % size == 0), largest)
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
