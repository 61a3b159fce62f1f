"""Several processes as one run: how they find each other, wait for each other, and stop together.

With one process nothing here does anything.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

__all__ = ["HostsConfig", "ProcessLost", "barrier", "is_first", "join", "naming_the_lost"]

# A process that says nothing for so long is taken for dead, and all end.
HEARTBEAT_SECONDS = 30
# So long the first to finish waits for the others.
SHUTDOWN_SECONDS = 60
# What a collective says when the process at its other end is gone: gloo, GPUs' NCCL, the coordinator.
_SIGNS_OF_LOSS = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "heartbeat",
    "coordination service",
    "barrier",
    "unavailable",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostsConfig:
    """Which processes make up the run.

    Args:
        distributed: Whether to ask the cluster (a TPU pod, SLURM, Open MPI, Kubernetes).
        coordinator: `host:port` of the first process; empty: no processes are named by hand.
        num_processes: How many there are, with `coordinator`.
        process_id: Which of them this is, from 0.
    """

    distributed: bool = False
    coordinator: str = ""
    num_processes: int = 0
    process_id: int = -1

    def __post_init__(self) -> None:
        named = (bool(self.coordinator), self.num_processes > 0, self.process_id >= 0)
        if any(named) and not all(named):
            raise ValueError(
                "--coordinator=HOST:PORT, --num_processes and --process_id go together: pass all"
                " three to each process, or --distributed where the cluster knows them."
            )
        if self.coordinator and self.distributed:
            raise ValueError(
                "--distributed asks the cluster, --coordinator does not: pass one of them."
            )
        if self.coordinator and not self.coordinator.rpartition(":")[2].isdigit():
            raise ValueError(
                f"--coordinator needs a host and a port, such as 10.0.0.2:8476; got {self.coordinator!r}."
            )
        if all(named) and self.process_id >= self.num_processes:
            raise ValueError(
                f"--process_id counts from 0 to {self.num_processes - 1}, the last of"
                f" --num_processes={self.num_processes}; got {self.process_id}."
            )


class ProcessLost(RuntimeError):
    """Another process of the run is gone, and nothing can be computed without it."""


def join(config: HostsConfig) -> None:
    """Makes this process one of the run's; to be called before anything asks jax for its devices.

    Raises:
        ValueError: no cluster answers, or the other processes do not.
    """
    waits: dict[str, Any] = {
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": SHUTDOWN_SECONDS,
    }
    try:
        if config.coordinator:
            jax.distributed.initialize(
                config.coordinator,
                config.num_processes,
                config.process_id,
                cluster_detection_method="deactivate",
                **waits,
            )
        elif config.distributed:
            jax.distributed.initialize(**waits)
    except (ValueError, RuntimeError) as error:
        where = config.coordinator or "a cluster"
        raise ValueError(
            f"The processes of the run did not find each other by {where}"
            f" ({str(error).splitlines()[0].rstrip('.')}): start them all, and pass --coordinator,"
            " --num_processes and --process_id where there is no cluster that knows them."
        ) from error


def is_first() -> bool:
    """Whether this is the process that writes and reports."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Returns when every process has come here; `name` is the same in all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def naming_the_lost() -> Iterator[None]:
    """Turns what a collective raises when another process dies into `ProcessLost`."""
    try:
        yield
    except (
        RuntimeError,
        ValueError,
        OSError,
    ) as error:  # jax's; and Orbax's, a timeout is an OSError
        text = " ".join(str(error).lower().split())
        if jax.process_count() == 1 or not any(sign in text for sign in _SIGNS_OF_LOSS):
            raise
        raise ProcessLost(
            f"Process {jax.process_index()} of {jax.process_count()} lost another one"
            f" ({str(error).splitlines()[0][:200]}). Start all of them again by the same command: the"
            " run goes on from its latest checkpoint."
        ) from error
