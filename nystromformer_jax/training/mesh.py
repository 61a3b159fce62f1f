"""The mesh of devices, and where batches and parameters lie on it. One device is a mesh of one."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer_jax.sequence_parallel import SEQUENCE_AXIS

__all__ = [
    "MeshConfig",
    "batch_sharding",
    "check_length",
    "host_share",
    "make_mesh",
    "on_mesh",
    "place",
    "replicated",
    "sequence_axis",
    "state_sharding",
]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices along each axis; -1 takes all that the other axis leaves.

    Args:
        data: Over so many the examples of a batch are split.
        sequence: Over so many each example's length is split.
        shard_params: Whether parameters and optimizer state are split over all devices, and gathered
            for each step; else every device holds them whole.
    """

    data: int = -1
    sequence: int = 1
    shard_params: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "sequence"):
            size = getattr(self, name)
            if size < 1 and size != -1:
                raise ValueError(f"mesh.{name}: needs a positive number or -1, got {size}.")
        if self.data == self.sequence == -1:
            raise ValueError("mesh.data and mesh.sequence are both -1: give one of them a number.")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lays the devices (default: all of them) out as `("data", "sequence")`.

    Along "data" each host's devices follow each other, so that it reads one stretch of a batch.

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
    mesh = jax.make_mesh((data, sequence), ("data", SEQUENCE_AXIS), axis_types, devices=devices)
    rows = sorted(mesh.devices, key=_hosts)
    return Mesh(np.array(rows), mesh.axis_names, axis_types=axis_types)


@functools.lru_cache  # it is asked for every batch
def host_share(mesh: Mesh, host: int | None = None) -> tuple[int, int]:
    """Which share of each batch a host (default: this one) reads, and how many shares there are.

    Hosts between which only the length is split read the same share.

    Raises:
        ValueError: shares of different sizes.
    """
    host = jax.process_index() if host is None else host
    rows = [_hosts(row) for row in mesh.devices]
    shares = sorted(set(rows))
    mine = [index for index, hosts in enumerate(shares) if host in hosts]
    sizes = {rows.count(share) for share in shares}
    if len(mine) != 1 or len(sizes) != 1:
        raise ValueError(
            f"mesh.data={mesh.shape['data']}, mesh.sequence={mesh.shape['sequence']} splits"
            f" {len(jax.devices())} devices so that hosts share their rows unevenly; let mesh.sequence"
            " divide a host's devices, or be a multiple of them."
        )
    return mine[0], len(shares)


def _hosts(row: np.ndarray) -> tuple[int, ...]:
    """The hosts whose devices stand in a row of the mesh."""
    return tuple(sorted({device.process_index for device in row}))


def sequence_axis(mesh: Mesh) -> str | None:
    """The axis over which the length is split; None where it is whole."""
    return SEQUENCE_AXIS if mesh.shape[SEQUENCE_AXIS] > 1 else None


def check_length(mesh: Mesh, length: int, name: str) -> None:
    """Refuses a length that the devices along "sequence" do not share evenly.

    Args:
        mesh: From `make_mesh`.
        length: Tokens of an example, padding included.
        name: The config's key for it.

    Raises:
        ValueError: it is no multiple of them.
    """
    devices = mesh.shape[SEQUENCE_AXIS]
    if length % devices:
        raise ValueError(
            f"{name}={length} cannot be divided by mesh.sequence={devices}: pass a multiple, for"
            f" example {-(-length // devices) * devices}."
        )


def batch_sharding(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
    """Rows `[B …]` over "data"; those of a length, `[B L …]`, over "sequence", too, if it divides L."""
    split = len(shape) > 1 and shape[1] % mesh.shape[SEQUENCE_AXIS] == 0
    return NamedSharding(mesh, PartitionSpec("data", *[SEQUENCE_AXIS] * split))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def state_sharding(mesh: Mesh, tree: Any, *, shard: bool) -> Any:
    """Where parameters and their optimizer state lie: whole, or split along their longest axis.

    An array is split over all devices along the longest axis that they divide; one without such an axis
    stays whole. The rule knows shapes alone, so that what an optimizer keeps of a parameter lies
    where the parameter does.

    Args:
        mesh: From `make_mesh`.
        tree: Arrays or their shapes.
        shard: Whether to split at all.
    """

    def sharding(leaf: Any) -> NamedSharding:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        if not shard or not axes or len(leaf.shape) < 2:
            return replicated(mesh)
        longest = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, mesh.axis_names))

    return jax.tree.map(sharding, tree)


def on_mesh(function: Function, mesh: Mesh) -> Function:
    """`function`, traced with `mesh` as the ambient one, which modules that split the length ask for."""

    @functools.wraps(function)
    def traced(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments)

    return cast(Function, traced)


def place(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, Any]:
    """Puts this host's rows on its devices, as its part of the global batch."""
    _, shares = host_share(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        shape = (len(rows) * shares, *rows.shape[1:])
        return jax.make_array_from_process_local_data(batch_sharding(mesh, shape), rows, shape)

    return {name: put(rows) for name, rows in batch.items()}
