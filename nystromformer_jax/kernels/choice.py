"""Selects the TPU kernels or XLA, and runs the kernels on the devices of a mesh."""

import functools
import math
import warnings
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.kernels.attention import kernel_attention, unsupported
from nystromformer_jax.support.target import target_device
from nystromformer_jax.support.values import Implementation
from nystromformer_jax.typing import Array, Float

BATCH_AXIS = "data"
# TPUs with too little VMEM for the kernels, or without the matrix products that the kernels use.
TOO_OLD = ("TPU v2", "TPU v3", "TPU v4", "TPU v4 lite")


def use_kernels(implementation: Implementation, inputs: Inputs, options: NystromOptions) -> bool:
    """Returns True if this call uses the kernels; warns once if they are requested but unsupported."""
    if not kernels_wanted(implementation):
        return False
    reason = unsupported(inputs, options)
    _, kind = target_device()
    if not reason and implementation == "auto" and kind in TOO_OLD:
        reason = f"they need a TPU v5e or later, not a {kind}"
    if not reason:
        reason = _unsupported_mesh(inputs)
    if reason:
        warn_once(reason, stacklevel=5)
    return not reason


def kernels_wanted(implementation: Implementation) -> bool:
    """Returns True if `implementation` requests the kernels on the current devices."""
    return implementation == "pallas_tpu" or (implementation == "auto" and not interpret_mode())


@functools.cache
def warn_once(reason: str, stacklevel: int) -> None:
    """Warns once, for each reason, why the kernels are not used; `stacklevel` is that of the user's call."""
    warnings.warn(
        f"Nyström attention runs without its TPU kernels: {reason}.", stacklevel=stacklevel
    )


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
