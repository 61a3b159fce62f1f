"""Runs jobs on this machine, several at once, each in its own process with its own accelerator or cores."""

import contextlib
import glob
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from cli.commands import message_of
from launch.jobs import MARK, Job, due_tests, read_jobs, unfinished
from launch.status import table

POLL_SECONDS = 0.1
LOCKED_SECONDS = 0.5  # between two looks at jobs of another sweep, which read all results
NOT_STARTED = 127  # exit code of a command that does not exist, as in a shell


class _Run(NamedTuple):
    job: Job
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    output: IO[bytes]  # the log, read as far as it is printed


class Queue:
    """Runs jobs of the sweep in a folder, as a function of its jobs that submitit can also call on a node.

    The first SIGTERM or Ctrl-C is forwarded to all runs, which save and end; the second kills them. A single
    worker's output is also printed. `workers` are those of `environments`.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._jobs: list[Job] = []
        self._tried: set[Job] = set()
        self._runs: list[_Run] = []
        self._free: list[dict[str, str]] = []  # environments of the workers without a run

    def __call__(self, todo: Sequence[Job]) -> int:
        """Runs the jobs, then `due_tests`; a failure does not stop the others.

        Returns:
          0 if all are done or diverged, 1 if any failed or was stopped, and 128 plus the signal's number if a
          signal stopped the queue.
        """
        self._free = [*environments(self._workers)]
        signals: list[int] = []
        num_sent = 0
        handlers = {
            stop: signal.signal(stop, lambda number, frame: signals.append(number))
            for stop in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            look = True  # for jobs to start
            while self._runs or (look and not signals):
                if look and not signals:
                    look = self._start_some(todo)
                time.sleep(LOCKED_SECONDS if look else POLL_SECONDS)
                if num_sent < min(len(signals), 2):
                    self._send((signal.SIGTERM, signal.SIGKILL)[num_sent])
                    num_sent += 1
                look |= self._collect()
        finally:
            self._stop()
            for stop, handler in handlers.items():
                signal.signal(stop, handler)
        if signals:
            return 128 + signals[0]
        return int(not all(job.is_finished for job in self._tried))

    def checkpoint(self, todo: Sequence[Job]) -> Any:
        """Stops the runs, which save, before submitit requeues the jobs at the time limit of their task."""
        import submitit

        self._stop()
        return submitit.helpers.DelayedSubmission(Queue(self._folder, self._workers), todo)

    def _start_some(self, todo: Sequence[Job]) -> bool:
        """Starts jobs on the free workers; returns True if another process has or had one of the others."""
        with contextlib.suppress(OSError, ValueError):  # the file is being edited
            self._jobs = read_jobs(self._folder)  # another sweep may have added values
        is_elsewhere = False
        for job in dict.fromkeys([*todo, *due_tests(self._jobs)]):
            if job in self._tried or not self._free:
                continue
            try:
                log = job.open_log()
            except OSError as error:
                self._tried.add(job)
                _print(f"{job.name}: failed: {message_of(error)}")
                continue
            if log is None:
                is_elsewhere = True
                continue
            self._tried.add(job)
            if job.is_finished:  # by the other process
                is_elsewhere = True
                log.close()
            else:
                self._start(job, log)
        return is_elsewhere

    def _start(self, job: Job, log: IO[bytes]) -> None:
        _print(f"{job.name}: started")
        output = job.log.open("rb")
        output.seek(0, os.SEEK_END)
        program, *arguments = job.command
        try:
            process = subprocess.Popen(
                [sys.executable if program == "python" else program, *arguments],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._free[0]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C reaches only the sweep, which forwards it
            )
        except OSError as error:
            output.close()
            _end(job, log, NOT_STARTED, message_of(error))
        else:
            self._runs.append(_Run(job, self._free.pop(0), process, log, output))

    def _send(self, number: int) -> None:
        for run in self._runs:
            run.process.send_signal(number)

    def _stop(self) -> None:
        """Sends SIGTERM to all runs and waits until they have saved and ended."""
        self._send(signal.SIGTERM)
        while self._runs:
            time.sleep(POLL_SECONDS)
            self._collect()

    def _collect(self) -> bool:
        """Prints the output of a single worker and records ended runs; returns True if there are any."""
        is_single = len(self._runs) + len(self._free) == 1
        ended = [run for run in self._runs if run.process.poll() is not None]
        for run in self._runs if is_single else ():
            new = run.output.read()
            size = len(new) if ended else new.rfind(b"\n") + 1  # whole lines until the end
            run.output.seek(size - len(new), os.SEEK_CUR)
            if size:
                _print(new[:size].decode(errors="replace").removesuffix("\n"))
        for run in ended:
            self._runs.remove(run)
            self._free.append(run.environment)
            run.output.close()
            _end(run.job, run.log, run.process.returncode)
        return bool(ended)


def _end(job: Job, log: IO[bytes], code: int, reason: str = "") -> None:
    """Writes the exit code to the log, which is closed, and prints the state of the job."""
    try:
        log.write(f"{reason}\n{MARK}{code}\n".encode())
        reason = ""
    except OSError as error:
        reason = f"{job.log} cannot be written ({error.strerror}): free some space"
    log.close()
    state = job.state(has_ended=True)
    text = f"failed: {reason}" if reason else "stopped; the same command resumes it"
    if state.kind in ("done", "diverged", "failed"):
        text = f"{state.kind}{':' if state.kind == 'failed' else ''} {state.text}"
    _print(f"{job.name}: {text}")


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # the output is closed, or on a full disk
        print(text, flush=True)


def run_all(folder: Path, jobs: Sequence[Job], workers: int) -> int:
    """Runs what is unfinished in `folder`, prints the table of all jobs; returns the code of a `Queue`."""
    todo = unfinished(jobs)
    code = Queue(folder, workers)(todo) if todo else 0
    if code > 128:
        print("run_sweep.py: stopped; the same command resumes", file=sys.stderr)
    else:
        _print(table(jobs)[0])
    return code


def environments(workers: int) -> list[dict[str, str]]:
    """Returns the environment variables of each worker.

    Args:
      workers: Number of workers; 0: one per accelerator, or one on a CPU. A single worker has all devices.
        More workers than accelerators share them and their memory. Without accelerators, workers share the
        CPU's cores, unless the user set NPROC.
    """
    if workers == 1:
        return [{}]
    devices = accelerators()
    workers = workers or len(devices) or 1
    if devices:
        share = -(-workers // len(devices))
        memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / share:.2f}"} if share > 1 else {}
        return [{**devices[worker % len(devices)], **memory} for worker in range(workers)]
    if "NPROC" in os.environ:
        return [{} for _ in range(workers)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [{"NPROC": str(max(1, (cores or 1) // workers))} for _ in range(workers)]


def accelerators() -> list[dict[str, str]]:
    """Returns the environment variables that select each visible GPU or, without GPUs, each TPU chip.

    Only devices whose jax plugin is installed count.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    plugins = {
        "CUDA_VISIBLE_DEVICES": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
        "TPU_VISIBLE_CHIPS": ("libtpu",),
    }
    chip = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
    files = {
        "CUDA_VISIBLE_DEVICES": ["/dev/nvidia[0-9]*"],
        "TPU_VISIBLE_CHIPS": ["/dev/accel[0-9]*", "/dev/vfio/[0-9]*"],  # up to v4, and from v5e on
    }
    for variable, patterns in files.items():
        if not any(map(importlib.util.find_spec, plugins[variable])):
            continue
        devices = [file for pattern in patterns for file in glob.glob(pattern)]
        numbers = os.environ.get(variable, ",".join(map(str, range(len(devices)))))
        if found := [item for item in numbers.split(",") if item and item != "-1"]:
            others = chip if variable == "TPU_VISIBLE_CHIPS" else {}
            return [{variable: item, **others} for item in found]
    return []
