"""Multi-process training: startup, error propagation, graceful stop on signals, shutdown.

In a single-process run only the signal handlers have an effect.
"""

import contextlib
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from nystromformer_jax.training.config import HostsConfig
from nystromformer_jax.training.errors import ProcessLost, RemoteError, exit_code_of

Item = TypeVar("Item")

INITIALIZE_SECONDS = 300  # jax's own default
HEARTBEAT_SECONDS = 30  # heartbeat timeout, after which a process is considered dead
SHUTDOWN_SECONDS = 60  # the first process to finish waits this long for the others
FAILED_SHUTDOWN_SECONDS = 10  # shorter after an error: usually all processes fail together
MESSAGE_BYTES = 2000  # maximum size of an error message sent to the other processes
# Messages of errors that gloo, NCCL and the coordinator raise when another process terminated.
_LOST_PROCESS = re.compile(
    "gloo|nccl|connection (closed|reset) by peer|heartbeat|coordination service|barrier|unavailable"
)
_STATUS = re.compile("[A-Z_]+: ")
_calls = itertools.count(1)  # of `StopSignals.sync`, as jax counts them
_initialize_called = threading.Event()  # after a timeout its threads may still run
_initialized = threading.Event()


def initialize(config: HostsConfig, seconds: float = INITIALIZE_SECONDS) -> None:
    """Initializes multi-process JAX; waits up to `seconds` for the other processes.

    Call this function before any JAX function that initializes the devices.

    Raises:
      ValueError: No cluster was detected, or some processes did not start in time.
    """
    if not (config.coordinator or config.distributed):
        return
    named = (config.coordinator, config.num_processes, config.process_id)
    waits: dict[str, Any] = {
        # Longer than `seconds`, because jax aborts the process on a timeout.
        "initialization_timeout": int(seconds) + 60,
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": SHUTDOWN_SECONDS,
    }
    failed: list[Exception] = []

    def connect() -> None:
        try:
            if config.coordinator:
                jax.distributed.initialize(*named, cluster_detection_method="deactivate", **waits)
            else:
                jax.distributed.initialize(**waits)
        except Exception as error:
            failed.append(error)

    _initialize_called.set()
    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(seconds)
    if not connecting.is_alive() and not failed:
        _initialized.set()
        return
    error = failed[0] if failed else TimeoutError(f"they waited {seconds:g} s for each other")
    if not isinstance(error, (ValueError, RuntimeError, TimeoutError)):
        raise error
    via = f"the coordinator {config.coordinator}" if config.coordinator else "a cluster"
    raise ValueError(
        f"The processes of the run did not connect through {via}"
        f" ({str(error).splitlines()[0].rstrip('.')}): start all of them. Pass --coordinator,"
        " --num_processes and --process_id to each, unless jax detects them from a cluster."
    ) from error


def shutdown(exit_code: int) -> None:
    """Exits a failed process after a short wait for the others; returns in a single-process run.

    A normal exit of Python would wait longer inside jax, then abort and lose the exit code.
    """
    if not _initialize_called.is_set():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if _initialized.is_set():
        disconnecting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        disconnecting.start()
        disconnecting.join(FAILED_SHUTDOWN_SECONDS)
    os._exit(exit_code)


def is_primary() -> bool:
    """Returns True in the process that writes files and prints results."""
    return jax.process_index() == 0


@contextlib.contextmanager
def detect_lost_process() -> Iterator[None]:
    """Raises `ProcessLost` for errors of collectives after another process died."""
    try:
        yield
    except (JaxRuntimeError, TimeoutError, ValueError) as error:  # Orbax raises TimeoutError
        if jax.process_count() == 1 or not _is_loss(error):
            raise
        raise ProcessLost(
            f"Process {jax.process_index()} of {jax.process_count()} lost another process"
            f" ({str(error).splitlines()[0][:200]}). Start all of them again with the same command: the"
            " run resumes from its latest checkpoint."
        ) from error


def _is_loss(error: Exception) -> bool:
    """Returns True if the error says that another process terminated."""
    # jax raises some errors of gloo as a ValueError with a status in front.
    if isinstance(error, ValueError) and not _STATUS.match(str(error)):
        return False
    return bool(_LOST_PROCESS.search(" ".join(str(error).lower().split())))


@contextlib.contextmanager
def sync_errors() -> Iterator[None]:
    """Barrier at the end of the block that propagates one process's error to all.

    Raises:
      Exception: This process's own error.
      RemoteError: The error of another process, with the same message.
      ProcessLost: Another process terminated.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if jax.process_count() > 1:
        message = "" if failure is None else str(failure) or repr(failure)
        code = 0 if failure is None else exit_code_of(failure) or 1
        status = bytes([code]) + message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
        all_processes: Any = ()
        try:
            with detect_lost_process():
                all_processes = multihost_utils.process_allgather(np.frombuffer(status, np.uint8))
        except Exception:
            if failure is None:
                raise
        for remote_code, *text in all_processes if failure is None else ():
            if remote_code:
                remote_message = bytes(text).rstrip(b"\0").decode(errors="ignore")
                raise RemoteError(remote_message, int(remote_code))
    if failure is not None:
        raise failure


class StopEvaluation(Exception):
    """Interrupts an evaluation, which is repeated after a resume."""


class StopSignals:
    """Context manager for graceful shutdown: SIGTERM and Ctrl-C only set `received`.

    The previous handlers are restored at the end. Python allows signal handlers only in the main thread;
    in other threads `received` stays None. In a multi-process run jax forwards SIGTERM to all processes,
    and `sync` sets `received`. Messages on stderr say that the run stops and, unless `saves` is False, saves.
    """

    def __init__(self, *, saves: bool = True) -> None:
        self.received: int | None = None
        self._saves = saves
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            handlers = {signal.SIGTERM: self._receive, signal.SIGINT: self._receive}
            if jax.process_count() > 1:  # jax itself handles SIGTERM
                handlers = {signal.SIGINT: _send_sigterm}
            for number, handler in handlers.items():
                self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def sync(self) -> None:
        """Sets `received` in all processes at the same call after one process got a signal.

        Call this method in every process before every step.
        """
        # jax stops at one exact number. The number must increase by one per call, also across the runs of
        # one command.
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(next(_calls)):
            self.received = signal.SIGTERM

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields `items` until a signal comes, then raises `StopEvaluation`."""
        for item in items:
            if self.received is not None:
                raise StopEvaluation
            yield item

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # os.write, because the signal may have interrupted print, which is not reentrant.
        if self.received is None:
            self.received = number
            rest = b": finishing this step, then saving" if self._saves else b""
            os.write(2, b"\nStopping" + rest + b".\n")
        else:
            rest = (
                b"saving; kill -9 would lose the steps since the last save"
                if self._saves
                else b"stopping"
            )
            os.write(2, b"\nStill " + rest + b".\n")


def _send_sigterm(number: int, frame: FrameType | None) -> None:
    """Converts Ctrl-C to SIGTERM, which jax forwards to the other processes."""
    os.kill(os.getpid(), signal.SIGTERM)
