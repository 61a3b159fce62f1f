"""Selects the TPU kernels, cuDNN or XLA, and runs the TPU kernels on the devices of a mesh."""

import functools
import math
import warnings
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.kernels import cudnn
from nystromformer_jax.kernels.attention import kernel_attention, unsupported
from nystromformer_jax.support.target import target_device
from nystromformer_jax.support.values import Implementation
from nystromformer_jax.typing import Array, Float

BATCH_AXIS = "data"
# TPUs with too little VMEM for the kernels, or without the matrix products that the kernels use.
TOO_OLD = ("TPU v2", "TPU v3", "TPU v4", "TPU v4 lite")


def choose(
    implementation: Implementation, inputs: Inputs, options: NystromOptions
) -> Implementation:
    """Returns "pallas_tpu", "cudnn" or "xla"; warns once if another is requested but unsupported."""
    if implementation == "auto" and interpret_mode() and inputs.query.dtype.itemsize > 2:
        return "xla"  # on a GPU, single precision is a choice, and needs no warning
    wanted = _wanted(implementation)
    if wanted == "pallas_tpu":
        reason = unsupported(inputs, options)
        _, kind = target_device()
        if not reason and implementation == "auto" and kind in TOO_OLD:
            reason = f"they need a TPU v5e or later, not a {kind}"
        reason = reason or _unsupported_mesh(inputs)
    elif wanted == "cudnn":
        reason = cudnn.unsupported(inputs, options)
    else:
        return "xla"
    if not reason:
        return wanted
    _warn_once(wanted, reason, stacklevel=5)
    return "xla"


def warn_of_split_length(implementation: Implementation) -> None:
    """Warns once if kernels are requested for a length that is split over devices."""
    wanted = _wanted(implementation)
    if wanted == "pallas_tpu":
        _warn_once(wanted, "they do not support a length split over devices", stacklevel=4)
    elif implementation == "cudnn":
        _warn_once(wanted, "it does not support a length split over devices", stacklevel=4)


def _wanted(implementation: Implementation) -> Implementation:
    """Returns the implementation for the target devices, before the arguments are considered."""
    if implementation != "auto":
        return implementation
    if not interpret_mode():
        return "pallas_tpu"
    return "xla" if cudnn.unavailable() else "cudnn"


@functools.cache
def _warn_once(implementation: Implementation, reason: str, stacklevel: int) -> None:
    """Warns once, for each reason, why the kernels are not used; `stacklevel` is that of the user's call."""
    kernels = {"pallas_tpu": "its TPU kernels", "cudnn": "cuDNN"}[implementation]
    warnings.warn(f"Nyström attention runs without {kernels}: {reason}.", stacklevel=stacklevel)


def run_kernels(
    inputs: Inputs, options: NystromOptions, interpret: bool
) -> Float[Array, "B L H D"]:
    """Runs the kernels on each device's shard of the batch, because XLA cannot partition a kernel."""

    def attend(shard: Inputs) -> Array:
        return kernel_attention(shard, options, interpret)

    axes, batch = _split_axes(inputs.query)
    if not axes:
        return attend(inputs)
    split, replicated = PartitionSpec(batch), PartitionSpec()
    specs = Inputs.specs(split, replicated)
    if any(kind == AxisType.Explicit for kind in jax.sharding.get_abstract_mesh().axis_types):
        pairs = zip(inputs, specs, strict=True)
        inputs = Inputs._make(x if x is None else jax.reshard(x, spec) for x, spec in pairs)
    # check_vma=False, because outputs of kernels have no information on varying mesh axes.
    return jax.shard_map(
        attend, in_specs=(specs,), out_specs=split, axis_names=set(axes), check_vma=False
    )(inputs)


def interpret_mode() -> bool:
    """Returns True if the device is not a TPU, so the kernels must run in interpret mode."""
    return target_device()[0] != "tpu"


def _split_axes(query: Array) -> tuple[tuple[str, ...], Any]:
    """Returns the non-Manual axes of the ambient mesh, and the axes over which the batch is sharded."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return (), None
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes = tuple(axis for axis, kind in types.items() if kind != AxisType.Manual)
    if all(mesh.shape[axis] == 1 for axis in axes):
        return (), None
    if any(types[axis] == AxisType.Explicit for axis in axes):
        return axes, jax.typeof(query).sharding.spec[0]
    return axes, BATCH_AXIS if BATCH_AXIS in axes else None


def _unsupported_mesh(inputs: Inputs) -> str:
    """Returns the reason why the kernels cannot run on the ambient mesh, or an empty string."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        if jax.device_count() > 1 and not interpret_mode():
            return (
                "several devices are present, and no mesh around the call splits the batch; use"
                f" jax.set_mesh(mesh) with an axis {BATCH_AXIS!r} for the batch"
            )
        return ""
    if any(x is not None and jax.typeof(x).manual_axis_type.varying for x in inputs):
        return "inside jax.shard_map they need check_vma=False"
    axes, batch = _split_axes(inputs.query)
    batch_axes = (batch,) if isinstance(batch, str) else tuple(batch or ())
    others = [axis for axis in axes if axis not in batch_axes and mesh.shape[axis] > 1]
    if others == [BATCH_AXIS]:
        return f"the batch is not split over the mesh's axis {BATCH_AXIS!r}"
    if others:
        return (
            f"the mesh has an axis {others[0]!r}, but they support only the axis {BATCH_AXIS!r} of the"
            " batch"
        )
    parts = math.prod(mesh.shape[axis] for axis in batch_axes)
    if inputs.query.shape[0] % parts:
        return f"{parts} devices do not divide a batch of {inputs.query.shape[0]}"
    return ""
