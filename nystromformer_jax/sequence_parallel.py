"""Nyström attention with the length split over devices: what they exchange does not grow with it."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer_jax import kernels
from nystromformer_jax.attention import nystrom_attention, over_row_sums, with_ones
from nystromformer_jax.convolution import depthwise_convolution
from nystromformer_jax.inputs import (
    Implementation,
    Inputs,
    Options,
    check_arguments,
    where_real,
)
from nystromformer_jax.landmarks import Layout
from nystromformer_jax.pinv import Start, iterative_pinv
from nystromformer_jax.steps import collect, distribute, landmark_kernel
from nystromformer_jax.typing import Array, Bool, Float, Int

SEQUENCE_AXIS = "sequence"  # of the meshes of `nystromformer_jax.training`, which modules look for


def sharded_nystrom_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mesh: Mesh | AbstractMesh,
    axis: str = SEQUENCE_AXIS,
    num_landmarks: int = 64,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
    pinv_iters: int = 6,
    pinv_start: Start = "exact",
    landmark_layout: Layout = "real",
    conv_kernel: Float[Array, "H W"] | None = None,
    mask_conv: bool = True,
    normalize_rows: bool = False,
    implementation: Implementation = "auto",
) -> Float[Array, "B L H D"]:
    """`nystrom_attention` with L and T split over one axis of a mesh; the same result.

    Each device averages, collects and distributes for its own stretch of the sequence. Between them
    go the landmarks (2 M D numbers a head), what the landmarks collected (M (D + 2)) and the edges
    that the convolution reads (2 (W // 2) D), and about as much again backwards, whatever the length
    and however many devices; ring attention passes all keys and values around.

    Any length and any mask will do: segments may cross from one device to the next. Only a length that
    the devices divide stays split, though: another is padded here, and its output, cut back to that
    length, is gathered whole. A sequence that is not longer than M is not split. Other axes of the
    mesh are left to the compiler, so that the batch may be split over one.

    Arguments are those of `nystrom_attention`, and `mesh`, the devices, with `axis`, that of its axes over
    which L and T are split.

    Returns:
      The output in `query`'s dtype, its length split over `axis` if the devices divide it.

    Raises:
      ValueError: What `nystrom_attention` refuses; an axis that the mesh does not have; a convolution
        that reads farther than the next device.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–17; softmax over several devices as in
    flash-decoding (Dao et al. 2023).
    """
    inputs = Inputs.of(query, key, value, mask, query_mask, conv_kernel)
    options = Options(
        num_landmarks=num_landmarks,
        pinv_iters=pinv_iters,
        pinv_start=pinv_start,
        landmark_layout=landmark_layout,
        mask_conv=mask_conv,
        normalize_rows=normalize_rows,
    )
    check_arguments(inputs, options, implementation)
    if axis not in mesh.shape:
        raise ValueError(f"axis must be one of the mesh's, {tuple(mesh.shape)}; got {axis!r}.")
    devices = mesh.shape[axis]
    key_length = inputs.key.shape[1]
    if devices == 1 or options.exact(inputs):
        *arrays, conv_kernel = inputs
        query, key, value, mask, query_mask = (_laid(x, mesh, axis, split=False) for x in arrays)
        return nystrom_attention(
            query,
            key,
            value,
            mask=mask,
            query_mask=query_mask,
            conv_kernel=conv_kernel,
            implementation=implementation,
            **dataclasses.asdict(options),
        )
    own = -(-key_length // devices)
    if conv_kernel is not None and conv_kernel.shape[1] // 2 > own:
        raise ValueError(
            f"The convolution of width {conv_kernel.shape[1]} reads {conv_kernel.shape[1] // 2}"
            f" positions to each side, but {devices} devices hold {own} of {key_length} each; take"
            " fewer devices, a longer sequence or a narrower kernel."
        )
    if kernels.wanted(implementation):
        kernels.say_once("with the length split over devices they are not used")
    return _sharded(inputs, options, mesh=mesh, axis=axis)


@functools.partial(jax.jit, static_argnames=("options", "mesh", "axis"))
def _sharded(
    inputs: Inputs, options: Options, *, mesh: Mesh | AbstractMesh, axis: str
) -> Float[Array, "B L H D"]:
    """Pads to whole shards, and gives each device its own."""
    query, key, value, mask, query_mask, conv_kernel = inputs
    devices, length, key_length = mesh.shape[axis], query.shape[1], key.shape[1]
    carry = query_mask is None and length == key_length  # the queries carry the keys' mask
    query, own_query_mask = _padded(query, query_mask, devices)
    value, _ = _padded(value, None, devices)
    key, mask = _padded(key, mask, devices)
    if carry:
        own_query_mask = None
    elif own_query_mask is None and mask is not None:
        own_query_mask = jnp.ones(query.shape[:2], bool)
    arrays = [_laid(x, mesh, axis) for x in (query, key, value, mask, own_query_mask)]
    split, whole = PartitionSpec(None, axis), PartitionSpec()
    output = jax.shard_map(
        functools.partial(_shard, options=options, axis=axis, length=length, key_length=key_length),
        mesh=mesh,
        in_specs=(Inputs.specs(split, whole),),
        out_specs=split,
        axis_names={axis},
    )(Inputs._make([*arrays, conv_kernel]))
    if length % devices == 0:
        return output
    return _laid(output, mesh, axis, split=False)[:, :length]


def _laid(x: Any, mesh: Mesh | AbstractMesh, axis: str, *, split: bool = True) -> Any:
    """`x` with its length over `axis` or whole, where the mesh wants to be told (its axis is Explicit)."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    wanted = axis if split else None
    if x is None or types[axis] != AxisType.Explicit:
        return x
    spec = list(jax.typeof(x).sharding.spec)
    if spec[1] == wanted:
        return x
    spec[1] = wanted
    return jax.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))


def _padded(
    x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None, devices: int
) -> tuple[Float[Array, "B T H D"], Bool[Array, "B T"] | None]:
    """Zeros behind, up to a multiple of `devices`; where there are any, also a mask that says so."""
    missing = -x.shape[1] % devices
    if not missing:
        return x, mask
    mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
    x = jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0)))
    return x, jnp.pad(mask, ((0, 0), (0, missing)))


def _shard(
    inputs: Inputs, options: Options, *, axis: str, length: int, key_length: int
) -> Float[Array, "B L H D"]:
    """One device's part, after `nystrom_attention`'s own order of things; L and T are its own."""
    query, key, value, mask, own_query_mask, conv_kernel = inputs
    query_mask, num_landmarks = inputs.query_mask, options.num_landmarks
    real = options.landmark_layout == "real"
    query, key = options.seen(query, query_mask), options.seen(key, mask)
    conv_value = where_real(value, mask) if options.mask_conv else value
    value = where_real(value, mask)

    q_segments = _segments(query, query_mask if real else None, length, num_landmarks, axis)
    k_segments = _segments(key, mask if real else None, key_length, num_landmarks, axis)
    q_landmarks = _means(query, q_segments, axis)
    k_landmarks = _means(key, k_segments, axis)
    k_alive = k_segments.sizes > 0
    kernel_2 = landmark_kernel(q_landmarks, k_landmarks, q_segments.sizes > 0, k_alive)
    inverse = iterative_pinv(kernel_2, num_iters=options.pinv_iters, start=options.pinv_start)

    attended = with_ones(value, mask) if options.normalize_rows else value
    collected = _combined(*collect(q_landmarks, key, attended, mask=mask), axis)
    landmark_values = jnp.einsum(
        "BHNM,BMHD->BNHD", inverse, collected, precision=jax.lax.Precision.HIGHEST
    )
    if real and mask is not None:
        few = k_segments.counts <= num_landmarks
        landmark_values = jax.lax.cond(
            few.any(),
            lambda kept: _where(few, _means(attended, k_segments, axis), kept),
            lambda kept: kept,
            landmark_values,
        )
    output = distribute(query, k_landmarks, landmark_values, landmark_mask=k_alive)
    if real and own_query_mask is not None:
        few_queries = q_segments.counts <= num_landmarks
        nearest = jnp.minimum(q_segments.ids, num_landmarks - 1)
        exact = jnp.take_along_axis(collected, nearest[..., None, None], axis=1)
        output = _where(few_queries, exact, output)
    if options.normalize_rows:
        output = over_row_sums(output)
    if conv_kernel is None:
        return output
    # Each device sums its own part of the kernel's gradient; the sum over them is made once, in float32.
    dtype = conv_kernel.dtype
    wide = conv_kernel.astype(jnp.promote_types(dtype, jnp.float32))
    conv_kernel = jax.lax.pcast(wide, axis, to="varying").astype(dtype)
    halo = conv_kernel.shape[1] // 2
    convolved = depthwise_convolution(_with_halo(conv_value, halo, axis), conv_kernel)
    return output + convolved[:, halo : halo + query.shape[1]].astype(output.dtype)


class _Segments(NamedTuple):
    """The segments of a split sequence: of each own position (M: of none), their sizes, all tokens."""

    ids: Int[Array, "B L"]
    sizes: Int[Array, "B M"]
    counts: Int[Array, " B"]
    whole: bool  # no segment crosses from one device to the next, and all are of one size


def _segments(
    x: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    length: int,
    num_landmarks: int,
    axis: str,
) -> _Segments:
    """`segment_ids` of a device's own positions: of real tokens by rank, without a mask by position."""
    index, devices = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
    batch, own = x.shape[:2]
    if mask is None:
        rank = jnp.broadcast_to(index * own + jnp.arange(own)[None], (batch, own))
        real = rank < length
        counts = jnp.full(batch, length)
    else:
        others = jnp.arange(devices)[None]
        held = jax.lax.psum(jnp.where(others == index, mask.sum(axis=1)[:, None], 0), axis)
        before = jnp.where(others < index, held, 0).sum(axis=1, keepdims=True)
        rank = before + jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        real = mask
        counts = held.sum(axis=1)
    ids = jnp.where(real, rank * num_landmarks // jnp.maximum(counts, 1)[:, None], num_landmarks)
    # Segment s starts at rank ceil(s · count / M).
    starts = -(-jnp.arange(num_landmarks + 1)[None] * counts[:, None] // num_landmarks)
    whole = mask is None and own * devices == length
    whole = whole and length % num_landmarks == num_landmarks % devices == 0
    return _Segments(ids, jnp.diff(starts, axis=1), counts, whole)


def _means(x: Float[Array, "B L H D"], segments: _Segments, axis: str) -> Float[Array, "B M H D"]:
    """The mean of each segment, whichever devices hold its tokens."""
    accumulator = jnp.promote_types(x.dtype, jnp.float32)
    num_landmarks = segments.sizes.shape[1]
    if segments.whole:
        own = num_landmarks // jax.lax.axis_size(axis)
        parts = x.reshape(x.shape[0], own, x.shape[1] // own, *x.shape[2:])
        means = parts.mean(axis=2, dtype=accumulator).astype(x.dtype)
        return jax.lax.all_gather(means, axis, axis=1, tiled=True)
    member = segments.ids[:, None, :] == jnp.arange(num_landmarks)[None, :, None]
    sums = jnp.einsum("BML,BLHD->BMHD", member.astype(accumulator), x.astype(accumulator))
    sizes = jnp.maximum(segments.sizes, 1)[..., None, None]
    # Made each device's own before it is rounded, so that gradients are summed in float32, too.
    means = jax.lax.pcast(jax.lax.psum(sums, axis) / sizes, axis, to="varying")
    return means.astype(x.dtype)


def _combined(
    values: Float[Array, "B M H Dv"],
    maximum: Float[Array, "B M H"],
    total: Float[Array, "B M H"],
    axis: str,
) -> Float[Array, "B M H Dv"]:
    """What landmarks collected on all devices, normalised."""
    scale = jnp.exp(maximum - jax.lax.pmax(maximum, axis))
    values, total = jax.lax.psum((values * scale[..., None], total * scale), axis)
    return values / total[..., None]


def _with_halo(value: Float[Array, "B L H D"], halo: int, axis: str) -> Float[Array, "B T H D"]:
    """The neighbours' edges on both sides; zeros outside of the sequence."""
    devices = jax.lax.axis_size(axis)
    right = [(device, device + 1) for device in range(devices - 1)]
    left = [(device + 1, device) for device in range(devices - 1)]
    before = jax.lax.ppermute(value[:, value.shape[1] - halo :], axis, right)
    after = jax.lax.ppermute(value[:, :halo], axis, left)
    return jnp.concatenate([before, value, after], axis=1)


def _where(
    rows: Bool[Array, " B"], one: Float[Array, "B L H D"], other: Float[Array, "B L H D"]
) -> Float[Array, "B L H D"]:
    return jnp.where(rows[:, None, None, None], one.astype(other.dtype), other)
