"""Exponential moving averages of the past and the future of each token, with many time scales."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from nystromformer_jax.attention.checks import (
    accum_dtype,
    check_array,
    check_dtype,
    check_mask,
    is_readable,
    pad_length,
    zero_padding,
)
from nystromformer_jax.attention.sequence_parallel import (
    SEQUENCE_AXIS,
    devices_along,
    reshard_length,
)
from nystromformer_jax.typing import Array, Bool, Float

# S, tokens per chunk. 32 takes up to 2.2 times as long on one core of an AMD EPYC (batch 16, 1,024 tokens
# of 64 channels, 16 states, with the gradient); 128 takes up to 2 times as long (batch 2, 2,048 tokens).
CHUNK = 64


def multi_scale_ema(
    x: Float[Array, "B L C"],
    time_scales: Float[Array, "2 C N"],
    weights: Float[Array, "2 C N"],
    *,
    mask: Bool[Array, "B L"] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    axis: str = SEQUENCE_AXIS,
) -> Float[Array, "B L C"]:
    """Adds N moving averages of the past and N of the future of each token, per channel.

        output[l, c] = Σ_n Σ_{s ≤ l} weights[0, c, n] exp(−(l − s) / time_scales[0, c, n]) x[s, c]
                     + Σ_n Σ_{s ≥ l} weights[1, c, n] exp(−(s − l) / time_scales[1, c, n]) x[s, c]

    Takes O(L C (S + N)) operations, with chunks of S = 64 tokens. Inside a chunk, each channel is multiplied
    by a Toeplitz matrix. Between chunks, 2 N states per channel are combined in log₂(L / S) steps. Supports
    reverse-mode and forward-mode differentiation.

    Args:
      x: Input, [batch, length, channels]. Padding has no effect on the output at real tokens, even if it
        contains NaN.
      time_scales: Number of tokens after which a weight has decayed to 1/e, for each direction (past,
        future), channel and state; positive. Traced values are not checked.
      weights: Weights of the states.
      mask: True at real tokens. Padding counts as zeros, so padding between tokens increases their
        distance.
      mesh: If given, the length is split over its axis `axis`. Each device sends 2 C N numbers per example,
        for any length. A device divides its P tokens into ⌈P / 64⌉ chunks of equal length. If that is not
        possible on all devices, the input is padded, and the output is gathered and truncated.
      axis: Name of the mesh axis.

    Returns:
      The output in `x`'s dtype. Its length is split over `axis` if it was not padded.

    Raises:
      ValueError: Shapes do not agree, a dtype is unsupported, a time scale is not positive, the length is
        symbolic, or `mesh` is not a mesh with such an axis.

    Source: Ma et al. 2022 (MEGA), arXiv:2209.10655, Eq. 2–5.
    Differs: the parameters are time scales and weights, not a decay, a damping factor and two projections;
    the future includes the token itself.
    The parallel form is that of state-space models with chunks (Dao and Gu 2024, arXiv:2405.21060).
    """
    x, time_scales, weights = jnp.asarray(x), jnp.asarray(time_scales), jnp.asarray(weights)
    check_array("x", x, "batch, length, channels")
    if not isinstance(x.shape[1], int):  # the number of combining steps depends on it
        raise ValueError(
            f"multi_scale_ema needs a known length, got the symbolic {x.shape[1]}: export one program per"
            " length."
        )
    check_mask("mask", mask, x.shape[:2], "real tokens, [B L]")
    check_dtype("time_scales", time_scales)
    check_dtype("weights", weights)
    shape = (2, x.shape[2], *weights.shape[2:])
    if weights.ndim != 3 or not weights.size or not weights.shape == time_scales.shape == shape:
        raise ValueError(
            f"time_scales and weights must have the same shape [2, {x.shape[2]}, states] for"
            f" {x.shape[2]} channels and at least one state, got {time_scales.shape} and"
            f" {weights.shape}."
        )
    # NumPy, because an operation of JAX on a constant inside `jax.jit` is traced.
    if is_readable(time_scales) and not (np.asarray(time_scales) > 0).all():
        raise ValueError(f"time_scales must be positive, got {np.asarray(time_scales).min()}.")
    x = zero_padding(x, mask)
    if mesh is None or devices_along(mesh, axis) == 1:
        rows = min(CHUNK, x.shape[1])
        return _moving_averages(x, time_scales, weights, rows=rows, axis=None)
    return _sharded(x, time_scales, weights, mesh=mesh, axis=axis)


@functools.partial(jax.jit, static_argnames=("mesh", "axis"))
def _sharded(
    x: Float[Array, "B L C"],
    time_scales: Float[Array, "2 C N"],
    weights: Float[Array, "2 C N"],
    *,
    mesh: Mesh | AbstractMesh,
    axis: str,
) -> Float[Array, "B L C"]:
    """Pads the length to whole chunks on each device and runs `shard_map` over `axis`."""
    length, devices = x.shape[1], mesh.shape[axis]
    own = -(-length // devices)
    chunks = -(-own // CHUNK)
    rows = -(-own // chunks)
    x = reshard_length(pad_length(x, devices * chunks * rows), mesh, axis)
    split, replicated = PartitionSpec(None, axis), PartitionSpec()
    output = jax.shard_map(
        functools.partial(_moving_averages, rows=rows, axis=axis),
        mesh=mesh,
        in_specs=(split, replicated, replicated),
        out_specs=split,
        axis_names={axis},
    )(x, time_scales, weights)
    if x.shape[1] == length:
        return output
    return reshard_length(output, mesh, axis, split=False)[:, :length]


@functools.partial(jax.jit, static_argnames=("rows", "axis"))
def _moving_averages(
    x: Float[Array, "B L C"],
    time_scales: Float[Array, "2 C N"],
    weights: Float[Array, "2 C N"],
    *,
    rows: int,
    axis: str | None,
) -> Float[Array, "B L C"]:
    """Returns the moving averages, in chunks of `rows` tokens (S).

    If `axis` is not None, `x` has the chunks of one device.
    """
    batch, length, channels = x.shape
    dtype = accum_dtype(x.dtype)
    rates, weights = 1 / time_scales.astype(dtype)[..., None], weights.astype(dtype)[..., None]
    num_chunks = -(-length // rows)
    # The chunks are the columns of one matrix per channel, [C S B·K]. With the examples outermost, a batch
    # that is split over devices stays split.
    columns = pad_length(x.astype(dtype), rows).reshape(batch, num_chunks, rows, channels)
    columns = columns.transpose(3, 2, 0, 1).reshape(channels, rows, batch * num_chunks)

    since_first = jnp.exp(-rates * jnp.arange(rows, dtype=dtype)[None, None, None])  # [2 C N S]
    until_last = since_first[..., ::-1]
    # A chunk has states of the past, at its last token, and of the future, at its first token.
    same_chunk = _toeplitz((weights * since_first).sum(axis=2))
    projection = jnp.concatenate([same_chunk, until_last[0], since_first[1]], axis=1)
    projected = jnp.matmul(projection, columns)
    states = jnp.stack(jnp.split(projected[:, rows:], 2, axis=1))  # [2 C N B·K]
    states = _states_outside(states, rates * rows, batch, axis)
    # One more step of decay: a chunk's last token is one token before the first token of the next chunk.
    decayed = weights * jnp.exp(-rates) * jnp.stack([since_first[0], until_last[1]])
    output = projected[:, :rows]
    for direction in range(2):
        output += jnp.matmul(decayed[direction].mT, states[direction])
    output = output.reshape(channels, rows, batch, num_chunks).transpose(2, 3, 1, 0)
    return output.reshape(batch, -1, channels)[:, :length].astype(x.dtype)


def _toeplitz(kernels: Float[Array, "2 C S"]) -> Float[Array, "C S S"]:
    """Returns matrices with kernels[0, :, t − s] in row t ≥ s plus kernels[1, :, s − t] in row t ≤ s.

    They are built by repeating one row with a period of 2 S, because the gradient of this operation is a
    sum instead of a scatter.
    """
    past, future = kernels
    channels, rows = past.shape
    zero = jnp.zeros((channels, 1), past.dtype)
    # Row 0 of the matrix, then the values left of it: the first column from bottom to top.
    center = past[:, :1] + future[:, :1]
    period = jnp.concatenate([center, future[:, 1:], zero, past[:, :0:-1]], axis=1)
    width = 2 * rows - 1
    return jnp.tile(period, (1, rows))[:, : rows * width].reshape(channels, rows, width)[..., :rows]


def _states_outside(
    states: Float[Array, "2 C N BK"], rates: Float[Array, "2 C N 1"], batch: int, axis: str | None
) -> Float[Array, "2 C N BK"]:
    """Returns, for each chunk, the states of the past before it and those of the future after it.

    The past is summed up to the last token of the previous chunk, and the future from the first token of
    the next chunk. `rates` are the decay rates per chunk. The last axis of `states` contains the chunks of
    the first example, then those of the second, and so on.
    """
    chunks = states.reshape(*states.shape[:3], batch, -1)
    outside = _states_beside(chunks, rates[..., None])
    if axis is not None:
        outside += _states_of_other_devices(chunks, outside, rates, axis)
    return outside.reshape(states.shape)


def _states_of_other_devices(
    chunks: Float[Array, "2 C N B K"],
    outside: Float[Array, "2 C N B K"],
    rates: Float[Array, "2 C N 1"],
    axis: str,
) -> Float[Array, "2 C N B K"]:
    """Returns the part of `_states_outside` from other devices; `outside` is the part from this one."""
    num_chunks = chunks.shape[-1]
    inclusive = chunks + jnp.exp(-rates[..., None]) * outside  # with the chunk itself
    total = jnp.stack([inclusive[0, ..., -1], inclusive[1, ..., 0]])
    # [P 2 C N B]. `tiled` and "invarying", because otherwise JAX supports no other Explicit axis here.
    totals = jax.lax.all_gather(total[None], axis, tiled=True, to="invarying")
    devices = jax.lax.axis_index(axis) - jnp.arange(len(totals), dtype=jnp.int32)
    devices = devices.astype(rates.dtype)
    devices = jnp.stack([devices, -devices], axis=1)[..., None, None, None]  # [P 2 1 1 1]
    decay = jnp.exp(-rates[None] * num_chunks * jnp.maximum(devices - 1, 0))
    at_edge = jnp.where(devices > 0, decay * totals, 0).sum(axis=0)  # [2 C N B]
    chunk = jnp.arange(num_chunks, dtype=rates.dtype)
    from_edge = jnp.stack([chunk, chunk[::-1]])[:, None, None, :]
    return jnp.exp(-rates * from_edge)[..., None, :] * at_edge[..., None]


def _states_beside(
    states: Float[Array, "2 C N B K"], rates: Float[Array, "2 C N 1 1"]
) -> Float[Array, "2 C N B K"]:
    """Returns `_states_outside` on one device, recursively from pairs of chunks, in O(K) operations."""
    chunks = states.shape[4]
    if chunks == 1:
        return jnp.zeros_like(states)
    ends = ((0, 0), (0, 0), (0, 0), (0, 0), (0, chunks % 2))
    (past_1, past_2), (future_1, future_2) = (
        (x[..., ::2], x[..., 1::2]) for x in jnp.pad(states, ends)
    )
    decay = jnp.exp(-rates)
    pairs = jnp.stack([decay[0] * past_1 + past_2, future_1 + decay[1] * future_2])
    past, future = _states_beside(pairs, 2 * rates)
    of_chunks = [
        jnp.stack([past, decay[0] * past + past_1], axis=4),
        jnp.stack([decay[1] * future + future_2, future], axis=4),
    ]
    return jnp.stack(of_chunks).reshape(*states.shape[:4], -1)[..., :chunks]
