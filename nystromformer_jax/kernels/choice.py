"""Which implementation serves a call, and on which devices of a mesh."""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.sharding import AxisType, PartitionSpec

from nystromformer_jax.inputs import Implementation, Inputs, Options
from nystromformer_jax.kernels.attention import unsupported
from nystromformer_jax.typing import Array

BATCH_AXIS = "data"
# Their kernels need more memory near the core than these have, or products that they cannot make.
TOO_OLD = ("TPU v2", "TPU v3", "TPU v4", "TPU v4 lite")

_log = logging.getLogger(__name__)


def chosen(implementation: Implementation, inputs: Inputs, options: Options) -> bool:
    """Whether the kernels serve this call; where they were wanted and cannot, the log says once why."""
    if not wanted(implementation):
        return False
    reason = unsupported(inputs, options)
    _, kind = _target()
    if not reason and implementation == "auto" and kind in TOO_OLD:
        reason = f"they are for a v5e or later, not for a {kind}"
    if not reason:
        reason = _unplaceable(inputs)
    if reason:
        say_once(reason)
    return not reason


def wanted(implementation: Implementation) -> bool:
    """Whether the kernels are to serve, if they can."""
    return implementation == "pallas_tpu" or (implementation == "auto" and _target()[0] == "tpu")


@functools.cache
def say_once(reason: str) -> None:
    """Tells the log why kernels that were wanted do not serve."""
    _log.warning("Nyström attention runs without its TPU kernels: %s.", reason)


def on_each_device(function: Callable[[Inputs], Array], inputs: Inputs) -> Array:
    """Calls `function` with each device's own part of the batch: compilers cannot split a kernel."""
    axes, batch = _split_axes(inputs.query)
    if not axes:
        return function(inputs)
    own, whole = PartitionSpec(batch), PartitionSpec()
    specs = Inputs.specs(own, whole)
    if any(kind == AxisType.Explicit for kind in jax.sharding.get_abstract_mesh().axis_types):
        pairs = zip(inputs, specs, strict=True)
        inputs = Inputs._make(x if x is None else jax.reshard(x, spec) for x, spec in pairs)
    # The outputs of kernels do not say over which axes they vary, so nobody can check it.
    split = jax.shard_map(
        function, in_specs=(specs,), out_specs=own, axis_names=set(axes), check_vma=False
    )
    return split(inputs)


def interpreted() -> bool:
    """Whether kernels are to be interpreted, since there is no TPU to run them."""
    return _target()[0] != "tpu"


def _target() -> tuple[str, str]:
    """Platform and kind of the devices that a trace is for: the ambient mesh's, or the default ones."""
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    if device is not None:
        return device.platform, device.device_kind
    default = cast(Any, jax.config).jax_default_device  # made at run time
    if isinstance(default, str):
        default = jax.devices(default)[0]
    default = default or jax.devices()[0]
    return default.platform, default.device_kind


def _split_axes(query: Array) -> tuple[tuple[str, ...], Any]:
    """Axes of the ambient mesh that the compiler still has to split by, and those over the batch."""
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


def _unplaceable(inputs: Inputs) -> str:
    """Why the kernels cannot run on the devices of the ambient mesh; empty if they can."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        if jax.device_count() > 1 and not interpreted():
            return (
                "there are several devices and no mesh around the call to split the batch by:"
                f" with jax.set_mesh(mesh), whose axis {BATCH_AXIS!r} is the batch's"
            )
        return ""
    if any(x is not None and jax.typeof(x).manual_axis_type.varying for x in inputs):
        return "inside jax.shard_map they need check_vma=False"
    axes, batch = _split_axes(inputs.query)
    over = (batch,) if isinstance(batch, str) else tuple(batch or ())
    others = [axis for axis in axes if axis not in over and mesh.shape[axis] > 1]
    if others == [BATCH_AXIS]:
        return f"the batch is not split over the mesh's axis {BATCH_AXIS!r}"
    if others:
        return f"the mesh has an axis {others[0]!r}, and they split by {BATCH_AXIS!r}, the batch, alone"
    parts = math.prod(mesh.shape[axis] for axis in over)
    if inputs.query.shape[0] % parts:
        return f"{parts} devices do not divide a batch of {inputs.query.shape[0]}"
    return ""
