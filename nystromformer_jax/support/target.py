"""The devices for which a function is traced."""

from typing import Any, cast

import jax


def target_device() -> tuple[str, str]:
    """Returns platform and kind of the devices of the ambient mesh, or else of the default devices."""
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    if device is not None:
        return device.platform, device.device_kind
    default = cast(Any, jax.config).jax_default_device  # missing in the type stubs
    if isinstance(default, str):
        default = jax.devices(default)[0]
    default = default or jax.devices()[0]
    return default.platform, default.device_kind


def on_gpu() -> bool:
    """Returns True if the target devices are GPUs."""
    return target_device()[0] in ("gpu", "cuda", "rocm")
