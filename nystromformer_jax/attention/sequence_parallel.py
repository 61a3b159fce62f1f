"""Sequence parallelism: Nyström attention with the length split over devices."""

import functools
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer_jax.attention.arguments import Inputs, check_arguments, is_exact
from nystromformer_jax.attention.checks import accum_dtype, mask_or_ones, pad_length
from nystromformer_jax.attention.convolution import convolve
from nystromformer_jax.attention.functions import Operations, attend_locally, nystrom
from nystromformer_jax.attention.landmarks import (
    LandmarkMeans,
    TokenRanks,
    segment_sizes,
    segment_sums,
)
from nystromformer_jax.attention.options import NystromOptions, OptionArguments, read_options
from nystromformer_jax.attention.stages import collect_parts, distribute_values
from nystromformer_jax.kernels.choice import warn_of_split_length
from nystromformer_jax.support.values import Implementation
from nystromformer_jax.typing import Array, Bool, Float

SEQUENCE_AXIS = "sequence"  # name of the mesh axis in `nystromformer_jax.training` and in modules


def sharded_nystrom_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mesh: Mesh | AbstractMesh,
    axis: str = SEQUENCE_AXIS,
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
    conv_kernel: Float[Array, "H W"] | Float[Array, "H D W"] | None = None,
    implementation: Implementation = "auto",
    **options: Unpack[OptionArguments],
) -> Float[Array, "B L H D"]:
    """Computes `nystrom_attention` with L and T split over one mesh axis; the result is the same.

    Each device processes one part of the sequence. The devices exchange landmarks (2 M D numbers per
    head), kernel_3 @ value (M (D + 2) numbers, with a mask M D more) and the edges that the convolution
    reads (2 (W // 2) D numbers), and about as much again in the backward pass. With k-means they also
    exchange about 18 M D numbers per head, for samples of the tokens and the sums of clusters. This does not
    depend on the length or the number of devices. Ring attention, in contrast, exchanges all keys and values.

    Any length and any mask are supported: segments may span several devices. The output stays split
    only if the length is divisible by the number of devices. Otherwise the inputs are padded, and the
    output is gathered and truncated. A sequence of at most M positions is not split, and neither is one whose
    parts are shorter than half the convolution. Other mesh axes are left to the compiler, so the batch may
    be split over one of them.

    `axis` is the name of the mesh axis over which L and T are split. Other arguments, `options` among them,
    are as in `nystrom_attention`, also their defaults, with one batch axis and equally many heads of queries
    and keys. TPU kernels and cuDNN are used only if the length is not split.

    Returns:
      The output in `query`'s dtype. The length is split over `axis` if the number of devices divides it.

    Raises:
      ValueError: An argument of `nystrom_attention` is invalid, or the mesh has no such axis.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 5–17; softmax over several devices as in
    flash-decoding (Dao et al. 2023).
    """
    inputs = Inputs.create(query, key, value, mask, query_mask, conv_kernel)
    chosen = read_options("sharded_nystrom_attention", options)
    check_arguments(inputs, chosen, implementation, split_length=True)
    return attend_sharded(inputs, chosen, implementation, mesh, axis)


def attend_sharded(
    inputs: Inputs,
    options: NystromOptions,
    implementation: Implementation,
    mesh: Mesh | AbstractMesh,
    axis: str = SEQUENCE_AXIS,
) -> Float[Array, "B L H D"]:
    """Computes `sharded_nystrom_attention` for validated arguments."""
    devices = devices_along(mesh, axis)
    key_length = inputs.key.shape[1]
    halo = 0 if inputs.conv_kernel is None else inputs.conv_kernel.shape[-1] // 2
    if devices == 1 or is_exact(inputs, options) or halo > -(-key_length // devices):
        *arrays, conv_kernel = inputs
        arrays = [reshard_length(x, mesh, axis, split=False) for x in arrays]
        return attend_locally(Inputs._make([*arrays, conv_kernel]), options, implementation)
    warn_of_split_length(implementation)
    return _sharded(inputs, options, mesh=mesh, axis=axis)


@functools.partial(jax.jit, static_argnames=("options", "mesh", "axis"))
def _sharded(
    inputs: Inputs, options: NystromOptions, *, mesh: Mesh | AbstractMesh, axis: str
) -> Float[Array, "B L H D"]:
    """Pads the length to a multiple of the device count and runs `shard_map` over `axis`."""
    query, key, value, mask, query_mask, conv_kernel = inputs
    devices, length, key_length = mesh.shape[axis], query.shape[1], key.shape[1]
    # Padding creates masks. Queries that use the keys' mask still use it. Other queries without a mask are
    # all real, and need a mask of their own as soon as the padded keys have one.
    use_key_mask = query_mask is None and length == key_length
    query, query_mask = _pad(query, query_mask, devices)
    value, _ = _pad(value, None, devices)
    key, mask = _pad(key, mask, devices)
    if use_key_mask:
        query_mask = None
    elif query_mask is None and mask is not None:
        query_mask = mask_or_ones(None, query)
    arrays = [reshard_length(x, mesh, axis) for x in (query, key, value, mask, query_mask)]
    split, replicated = PartitionSpec(None, axis), PartitionSpec()
    operations = Operations(
        functools.partial(_means, axis=axis, lengths=(length, key_length)),
        functools.partial(_collect, axis=axis),
        distribute_values,
        functools.partial(_convolve, axis=axis),
        functools.partial(_psum, axis=axis),
    )
    output = jax.shard_map(
        functools.partial(nystrom, options=options, operations=operations),
        mesh=mesh,
        in_specs=(Inputs.specs(split, replicated),),
        out_specs=split,
        axis_names={axis},
    )(Inputs._make([*arrays, conv_kernel]))
    if length % devices == 0:
        return output
    return reshard_length(output, mesh, axis, split=False)[:, :length]


def sequence_mesh(*, explicit_only: bool = False) -> AbstractMesh | None:
    """Returns the ambient mesh if its axis "sequence" splits the length, else None.

    Returns None inside a `shard_map` over that axis, because each device then has its own sequence. With
    `explicit_only`, also returns None unless the axis is Explicit.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get(SEQUENCE_AXIS, 1) == 1:
        return None
    kind = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[SEQUENCE_AXIS]
    if kind == AxisType.Manual or (explicit_only and kind != AxisType.Explicit):
        return None
    return mesh


def devices_along(mesh: Any, axis: str) -> int:
    """Returns the number of devices along a mesh axis.

    Raises:
      ValueError: `mesh` is not a mesh, or has no such axis.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ValueError(f"mesh must be a jax.sharding.Mesh or AbstractMesh, got {mesh!r}.")
    if axis not in mesh.shape:
        raise ValueError(f"axis must be one of the mesh's axes, {tuple(mesh.shape)}; got {axis!r}.")
    devices: int = mesh.shape[axis]
    return devices


def reshard_length(x: Any, mesh: Mesh | AbstractMesh, axis: str, *, split: bool = True) -> Any:
    """Splits the length of `x` over an Explicit axis, or gathers it; for other axes, returns `x`."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    wanted = axis if split else None
    if x is None or types[axis] != AxisType.Explicit:
        return x
    spec = list(jax.typeof(x).sharding.spec)
    if spec[1] == wanted:
        return x
    spec[1] = wanted
    return jax.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))


def _pad(
    x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None, devices: int
) -> tuple[Float[Array, "B T H D"], Bool[Array, "B T"] | None]:
    """Pads `x` and its mask at the end to a multiple of `devices`; padding needs a mask."""
    missing = -x.shape[1] % devices
    if not missing:
        return x, mask
    return pad_length(x, devices), pad_length(mask_or_ones(mask, x), devices)


def _means(
    x: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    options: NystromOptions,
    *,
    of_queries: bool,
    axis: str,
    lengths: tuple[int, int],
) -> LandmarkMeans:
    """Returns the segment means over the tokens of all devices."""
    mask = mask if options.landmark_layout == "real" else None
    length = lengths[0 if of_queries else 1]
    num_landmarks, num_own = options.num_landmarks, options.num_own_landmarks
    devices, (batch, own) = jax.lax.axis_size(axis), x.shape[:2]
    ranks = _ranks(mask, x, length, axis)
    sizes = segment_sizes(ranks.counts, num_landmarks, num_own)
    accumulator = accum_dtype(x.dtype)
    if (
        mask is None
        and own * devices == length
        and length % num_landmarks == num_landmarks % devices == num_own == 0
    ):  # All segments have equal size, and each lies on one device.
        parts = x.reshape(batch, num_landmarks // devices, -1, *x.shape[2:])
        means = parts.mean(axis=2, dtype=accumulator).astype(x.dtype)
        # JAX cannot differentiate all_gather to="varying" if another axis of the mesh is Explicit.
        means = jax.lax.all_gather(means, axis, axis=1, tiled=True, to="invarying")
        means = jax.lax.pcast(means, axis, to="varying")
        return LandmarkMeans(means, sizes > 0, ranks)
    sums = segment_sums(x, ranks.segment_bounds(num_landmarks, num_own))
    sums = jax.lax.psum(sums, axis)
    means = sums / jnp.maximum(sizes, 1)[..., None, None].astype(sums.dtype)
    # Cast to varying before rounding, so that gradients are also summed in float32.
    means = jax.lax.pcast(means, axis, to="varying").astype(x.dtype)
    return LandmarkMeans(means, sizes > 0, ranks)


def _ranks(
    mask: Bool[Array, "B S"] | None, x: Float[Array, "B S H D"], length: int, axis: str
) -> TokenRanks:
    """Returns the ranks of this device's tokens; without a mask, the first `length` are real."""
    index, devices = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
    if mask is None:
        # The batch is sharded like that of `x`.
        own = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        rank = (
            index * x.shape[1]
            + own
            + jnp.zeros_like(x, jnp.int32).sum(axis=(2, 3), dtype=jnp.int32)
        )
        return TokenRanks(rank, rank < length, jnp.full(len(x), length, jnp.int32))
    others = jnp.arange(devices, dtype=jnp.int32)[None]
    device_counts = jnp.where(others == index, mask.sum(axis=1, dtype=jnp.int32)[:, None], 0)
    device_counts = jax.lax.psum(device_counts, axis)
    before = jnp.where(others < index, device_counts, 0).sum(axis=1, keepdims=True, dtype=jnp.int32)
    rank = before + jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
    return TokenRanks(rank, mask, device_counts.sum(axis=1, dtype=jnp.int32))


def _psum(x: Array, *, axis: str) -> Array:
    """Returns the sum of `x` over the devices."""
    return jax.lax.pcast(jax.lax.psum(x, axis), axis, to="varying")


def _collect(*tokens: Array, mask: Array | None, axis: str) -> Array:
    """Returns kernel_3 @ value over the keys of all devices."""
    values, maximum, total = collect_parts(*tokens, mask=mask)
    scale = jnp.exp(maximum - jax.lax.pmax(maximum, axis))
    values, total = jax.lax.psum((values * scale[..., None], total * scale), axis)
    # Cast to varying once here, so that the gradients of all uses are summed over devices only once.
    return jax.lax.pcast(values / total[..., None], axis, to="varying")


def _convolve(value: Float[Array, "B L H D"], conv_kernel: Array, *, axis: str) -> Array:
    """Convolves this device's part of the value, extended by the edges of neighboring devices."""
    # Each device computes a partial kernel gradient; the partial gradients are summed once, in float32.
    dtype = conv_kernel.dtype
    conv_kernel = conv_kernel.astype(accum_dtype(dtype))
    conv_kernel = jax.lax.pcast(conv_kernel, axis, to="varying").astype(dtype)
    halo, length, devices = conv_kernel.shape[-1] // 2, value.shape[1], jax.lax.axis_size(axis)
    right = [(device, device + 1) for device in range(devices - 1)]
    left = [(device + 1, device) for device in range(devices - 1)]
    # At both ends of the sequence `ppermute` gives zeros.
    before = jax.lax.ppermute(value[:, length - halo :], axis, right)
    after = jax.lax.ppermute(value[:, :halo], axis, left)
    extended = jnp.concatenate([before, value, after], axis=1)
    return convolve(extended, conv_kernel)[:, halo : halo + length]
