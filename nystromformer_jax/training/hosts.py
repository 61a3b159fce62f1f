"""Several processes as one run: how they find each other, wait for each other, and stop together.

With one process nothing here does anything.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

__all__ = [
    "HostsConfig",
    "ProcessLost",
    "RefusedElsewhere",
    "agree",
    "agreed",
    "is_first",
    "join",
    "leave",
    "naming_the_lost",
]

# So long processes wait for each other at the start; jax's own default.
JOIN_SECONDS = 300
# A process that says nothing for so long is taken for dead, and all end.
HEARTBEAT_SECONDS = 30
# So long the first to finish waits for the others,
SHUTDOWN_SECONDS = 60
# and one that failed: most often they fail by the same reason at the same time.
LEAVE_SECONDS = 10
# Bytes of a refusal that others are told of.
WORDS = 2000
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
_has_tried = threading.Event()  # to join others; threads of that may be there
_has_joined = threading.Event()


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
    num_processes: int | None = None
    process_id: int | None = None

    def __post_init__(self) -> None:
        count, number = self.num_processes, self.process_id
        named = (bool(self.coordinator), count is not None, number is not None)
        if any(named) and not all(named):
            raise ValueError(
                "--coordinator=HOST:PORT, --num_processes and --process_id go together: pass all"
                " three to each process, or --distributed where the cluster knows them."
            )
        if self.coordinator and self.distributed:
            raise ValueError(
                "--distributed asks the cluster, --coordinator does not: pass one of them."
            )
        host, _, port = self.coordinator.rpartition(":")
        if self.coordinator and not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(
                "--coordinator needs a host and a port from 1 to 65535, such as 10.0.0.2:8476; got"
                f" {self.coordinator!r}."
            )
        if count is not None and count < 1:
            raise ValueError(f"--num_processes needs a positive number, got {count}.")
        if count is not None and number is not None and not 0 <= number < count:
            raise ValueError(
                f"--process_id counts from 0 to {count - 1}, the last of --num_processes={count};"
                f" got {number}."
            )


class ProcessLost(RuntimeError):
    """Another process of the run is gone, and nothing can be computed without it."""


class RefusedElsewhere(ValueError):
    """What another process of the run raised, in its words; `exit_code` is that one's, too."""

    def __init__(self, words: str, exit_code: int) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def join(config: HostsConfig, seconds: float = JOIN_SECONDS) -> None:
    """Makes this process one of the run's; to be called before anything asks jax for its devices.

    Args:
        config: Which processes.
        seconds: How long they wait for each other.

    Raises:
        ValueError: no cluster answers, or not all of the processes have come.
    """
    if not (config.coordinator or config.distributed):
        return
    named = (config.coordinator, config.num_processes, config.process_id)
    waits: dict[str, Any] = {
        # Beyond ours, because jax does not raise when its time is up: it aborts.
        "initialization_timeout": int(seconds) + 60,
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": SHUTDOWN_SECONDS,
    }
    failed: list[Exception] = []

    def initialize() -> None:
        try:
            if config.coordinator:
                jax.distributed.initialize(*named, cluster_detection_method="deactivate", **waits)
            else:
                jax.distributed.initialize(**waits)
        except Exception as error:
            failed.append(error)

    _has_tried.set()
    joining = threading.Thread(target=initialize, daemon=True)
    joining.start()
    joining.join(seconds)
    if not joining.is_alive() and not failed:
        _has_joined.set()
        return
    error = failed[0] if failed else TimeoutError(f"they waited {seconds:g} s for each other")
    if not isinstance(error, (ValueError, RuntimeError, TimeoutError)):
        raise error
    where = config.coordinator or "a cluster"
    raise ValueError(
        f"The processes of the run did not find each other by {where}"
        f" ({str(error).splitlines()[0].rstrip('.')}): start them all, and pass --coordinator,"
        " --num_processes and --process_id where there is no cluster that knows them."
    ) from error


def leave(exit_code: int) -> None:
    """Ends this process, which failed, without waiting long for those that did not.

    Left alone, Python's end would wait for them in jax, and then abort instead of giving the exit code.
    Returns where no others were looked for.
    """
    if not _has_tried.is_set():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if _has_joined.is_set():
        leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        leaving.start()
        leaving.join(LEAVE_SECONDS)
    os._exit(exit_code)


def is_first() -> bool:
    """Whether this is the process that writes and reports."""
    return jax.process_index() == 0


def agree(refusal: Exception | None) -> None:
    """A barrier at which a process may say why it does not go on; then none of them does.

    Raises:
        Exception: `refusal`.
        RefusedElsewhere: another process's, the same sentence.
    """
    if jax.process_count() > 1:
        from nystromformer_jax.training.exit_codes import exit_code_of  # which knows this module's

        words = "" if refusal is None else str(refusal) or repr(refusal)
        code = 0 if refusal is None else exit_code_of(refusal) or 1
        own = bytes([code]) + words.encode()[:WORDS].ljust(WORDS, b"\0")
        every = multihost_utils.process_allgather(np.frombuffer(own, np.uint8))
        for theirs, *said in every if refusal is None else ():
            if theirs:
                text = bytes(said).rstrip(b"\0").decode(errors="ignore")
                raise RefusedElsewhere(text, int(theirs))
    if refusal is not None:
        raise refusal


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """What only some processes do in here has gone well for all of them, or none goes on: see `agree`."""
    refusal: Exception | None = None
    try:
        yield
    except Exception as error:
        refusal = error
    agree(refusal)


@contextlib.contextmanager
def naming_the_lost() -> Iterator[None]:
    """Turns what a collective raises when another process dies into `ProcessLost`."""
    try:
        yield
    except (JaxRuntimeError, TimeoutError) as error:  # the latter is Orbax's
        text = " ".join(str(error).lower().split())
        if jax.process_count() == 1 or not any(sign in text for sign in _SIGNS_OF_LOSS):
            raise
        raise ProcessLost(
            f"Process {jax.process_index()} of {jax.process_count()} lost another one"
            f" ({str(error).splitlines()[0][:200]}). Start all of them again by the same command: the"
            " run goes on from its latest checkpoint."
        ) from error
