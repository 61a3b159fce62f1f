"""The mesh of devices, and where batches and parameters lie on it. One device is a mesh of one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = [
    "MeshConfig",
    "batch_sharding",
    "make_mesh",
    "place",
    "replicated",
    "require_whole_length",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices along each axis; -1 takes all that the other axis leaves."""

    data: int = -1
    sequence: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "sequence"):
            size = getattr(self, name)
            if size < 1 and size != -1:
                raise ValueError(f"mesh.{name}: needs a positive number or -1, got {size}.")
        if self.data == self.sequence == -1:
            raise ValueError("mesh.data and mesh.sequence are both -1: give one of them a number.")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lays the devices (default: all of them) out as `("data", "sequence")`.

    Raises:
        ValueError: the devices cannot be laid out so.
    """
    devices = jax.devices() if devices is None else devices
    given = max(config.data, 1) * max(config.sequence, 1)
    data, sequence = (
        len(devices) // given if size == -1 else size for size in (config.data, config.sequence)
    )
    if data * sequence != len(devices):
        raise ValueError(
            f"mesh.data={config.data}, mesh.sequence={config.sequence} cannot lay out"
            f" {len(devices)} device(s): their product must be {len(devices)}, or let one be -1"
            f" and the other divide {len(devices)}."
        )
    # Auto, not the default Explicit: flax.linen's Dropout and constraints break under Explicit.
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((data, sequence), ("data", "sequence"), axis_types, devices=devices)


def require_whole_length(mesh: Mesh) -> None:
    """Refuses a mesh that would split the length, which no trainer does yet.

    Raises:
        ValueError: "sequence" is longer than 1.
    """
    if mesh.shape["sequence"] > 1:
        raise ValueError(
            f"mesh.sequence={mesh.shape['sequence']}: splitting the length over devices is not there"
            " yet; leave it at 1, and mesh.data at -1 for all devices."
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The batch dimension over "data", the rest whole."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def place(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, Any]:
    """Puts this host's rows on its devices, as its part of the global batch."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
