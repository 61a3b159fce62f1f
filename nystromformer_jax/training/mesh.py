"""Creation of the device mesh, and sharding of batches and parameters."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer_jax.attention.sequence_parallel import SEQUENCE_AXIS
from nystromformer_jax.training.config import MeshConfig

Function = TypeVar("Function", bound=Callable[..., Any])


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh of the devices (default: all) with the axes `("data", "sequence")`.

    The devices of a host are contiguous along "data", so each host reads a contiguous part of a batch.

    Raises:
      ValueError: The number of devices does not match the config.
    """
    devices = jax.devices() if devices is None else devices
    given = max(config.data, 1) * max(config.sequence, 1)
    data, sequence = (
        len(devices) // given if size == -1 else size for size in (config.data, config.sequence)
    )
    if data * sequence != len(devices):
        raise ValueError(
            f"mesh.data={config.data}, mesh.sequence={config.sequence} does not match"
            f" {len(devices)} device(s): their product must be {len(devices)}, or one must be -1 and"
            f" the other a divisor of {len(devices)}."
        )
    # Auto, because Dropout and sharding constraints of flax.linen fail with the default, Explicit.
    axis_types = (AxisType.Auto, AxisType.Auto)
    mesh = jax.make_mesh((data, sequence), ("data", SEQUENCE_AXIS), axis_types, devices=devices)
    rows = sorted(mesh.devices, key=_hosts)
    return Mesh(np.array(rows), mesh.axis_names, axis_types=axis_types)


@functools.lru_cache  # called for every batch
def data_shard(mesh: Mesh, host: int | None = None) -> tuple[int, int]:
    """Returns the index of the batch shard that a host (default: this one) reads, and the shard count.

    Hosts that are split only along the length read the same shard.

    Raises:
      ValueError: The shards differ in size.
    """
    host = jax.process_index() if host is None else host
    rows = [_hosts(row) for row in mesh.devices]
    shares = sorted(set(rows))
    mine = [index for index, hosts in enumerate(shares) if host in hosts]
    sizes = {rows.count(share) for share in shares}
    if len(mine) != 1 or len(sizes) != 1:
        raise ValueError(
            f"mesh.data={mesh.shape['data']}, mesh.sequence={mesh.shape['sequence']} splits"
            f" {len(jax.devices())} devices unevenly over the hosts: mesh.sequence must be a divisor or"
            " a multiple of the number of devices per host."
        )
    return mine[0], len(shares)


def _hosts(row: np.ndarray) -> tuple[int, ...]:
    """Returns the hosts of the devices in a row of the mesh."""
    return tuple(sorted({device.process_index for device in row}))


def check_length(mesh: Mesh, length: int, name: str) -> None:
    """Raises ValueError unless the "sequence" axis divides `length`; `name` is the config key."""
    devices = mesh.shape[SEQUENCE_AXIS]
    if length % devices:
        raise ValueError(
            f"{name}={length} is not divisible by mesh.sequence={devices}: pass a multiple, for"
            f" example {-(-length // devices) * devices}."
        )


def batch_sharding(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
    """Returns the sharding of `[B …]` over "data", and of L over "sequence" if that axis divides it."""
    split = len(shape) > 1 and shape[1] % mesh.shape[SEQUENCE_AXIS] == 0
    return NamedSharding(mesh, PartitionSpec("data", *[SEQUENCE_AXIS] * split))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that keeps a full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def state_sharding(mesh: Mesh, tree: Any, *, shard: bool) -> Any:
    """Returns the shardings of parameters and optimizer state, given as arrays or shapes.

    With `shard`, an array of two or more axes is split over all devices along the longest axis that the
    device count divides. All other arrays are replicated. The rule depends only on shapes, so AdamW's
    moments are sharded like the parameters. Muon's are stacked by size, and may be sharded differently.
    """

    def sharding(leaf: Any) -> NamedSharding:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        if not shard or not axes or len(leaf.shape) < 2:
            return replicated(mesh)
        longest = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, mesh.axis_names))

    return jax.tree.map(sharding, tree)


def on_mesh(function: Function, mesh: Mesh) -> Function:
    """Wraps `function` to set the ambient mesh while tracing, as sequence parallelism requires."""

    @functools.wraps(function)
    def traced(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments)

    return cast(Function, traced)


def shard_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, Any]:
    """Converts this host's rows to global arrays that are sharded over `mesh`."""
    _, shards = data_shard(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        shape = (len(rows) * shards, *rows.shape[1:])
        return jax.make_array_from_process_local_data(batch_sharding(mesh, shape), rows, shape)

    return {name: put(rows) for name, rows in batch.items()}
